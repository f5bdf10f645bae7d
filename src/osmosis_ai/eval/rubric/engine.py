"""The judge at its path of 0.3; see :mod:`osmosis_ai.rubric`."""

from __future__ import annotations

from osmosis_ai.rubric.api import evaluate_by_model as evaluate_rubric
from osmosis_ai.rubric.judge_model import DEFAULT_API_KEY_ENV, DEFAULT_REQUEST_TIMEOUT_SECONDS

__all__ = ["DEFAULT_API_KEY_ENV", "DEFAULT_REQUEST_TIMEOUT_SECONDS", "evaluate_rubric"]

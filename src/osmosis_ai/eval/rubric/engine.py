"""The path under which 0.3 users know the judge itself; it lives in :mod:`osmosis_ai.rubric.api`."""

from __future__ import annotations

from osmosis_ai.rubric.api import evaluate_by_model as evaluate_rubric
from osmosis_ai.rubric.judge_model import DEFAULT_API_KEY_ENV, DEFAULT_REQUEST_TIMEOUT_SECONDS

__all__ = ["DEFAULT_API_KEY_ENV", "DEFAULT_REQUEST_TIMEOUT_SECONDS", "evaluate_rubric"]

"""The judge at its path of 0.2; see :mod:`osmosis_ai.rubric`."""

from __future__ import annotations

from osmosis_ai.rubric.api import aevaluate_rubric, ensure_api_key_available, evaluate_rubric
from osmosis_ai.rubric.judge_model import DEFAULT_API_KEY_ENV, DEFAULT_REQUEST_TIMEOUT_SECONDS
from osmosis_ai.rubric.types import MissingAPIKeyError, ModelInfo, RewardRubricRunResult

__all__ = [
    "DEFAULT_API_KEY_ENV",
    "DEFAULT_REQUEST_TIMEOUT_SECONDS",
    "MissingAPIKeyError",
    "ModelInfo",
    "RewardRubricRunResult",
    "aevaluate_rubric",
    "ensure_api_key_available",
    "evaluate_rubric",
]

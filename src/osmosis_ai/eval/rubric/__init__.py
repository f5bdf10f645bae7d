"""The judge at its path of 0.3, which is awaited; see :mod:`osmosis_ai.rubric`."""

from __future__ import annotations

from osmosis_ai.rubric.api import evaluate_by_model as evaluate_rubric
from osmosis_ai.rubric.types import MissingAPIKeyError, ModelNotFoundError, ProviderRequestError, RubricResult

__all__ = [
    "MissingAPIKeyError",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RubricResult",
    "evaluate_rubric",
]

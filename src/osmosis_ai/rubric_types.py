"""The judge's types and errors at their path of 0.2; see :mod:`osmosis_ai.rubric`."""

from __future__ import annotations

from osmosis_ai.rubric.types import (
    MissingAPIKeyError,
    ModelInfo,
    ModelNotFoundError,
    ProviderRequestError,
    RewardRubricRunResult,
    UnscoredError,
)

__all__ = [
    "MissingAPIKeyError",
    "ModelInfo",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RewardRubricRunResult",
    "UnscoredError",
]

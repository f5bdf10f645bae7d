"""The path under which 0.2 users know the judge's types and errors; they live in :mod:`osmosis_ai.rubric`."""

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

"""The path under which 0.3 users know the judge's result and errors; they live in :mod:`osmosis_ai.rubric`."""

from __future__ import annotations

from osmosis_ai.rubric.types import MissingAPIKeyError, ModelNotFoundError, ProviderRequestError, RubricResult

__all__ = ["MissingAPIKeyError", "ModelNotFoundError", "ProviderRequestError", "RubricResult"]

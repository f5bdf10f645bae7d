"""The judge's result and errors at their path of 0.3; see :mod:`osmosis_ai.rubric`."""

from __future__ import annotations

from osmosis_ai.rubric.types import MissingAPIKeyError, ModelNotFoundError, ProviderRequestError, RubricResult

__all__ = ["MissingAPIKeyError", "ModelNotFoundError", "ProviderRequestError", "RubricResult"]

"""Resolve ``"module:attribute"`` names, under the public import path."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.backend.local.loading import load_object

__all__ = ["resolve_object"]


def resolve_object(reference: Any) -> Any:
    """Return ``reference``, or the object named by a ``"module:attribute"`` string.

    Raises:
        ValueError: The string has another form, or the attribute does not exist.
        ImportError: The module cannot be imported.
    """
    return load_object(reference, "reference")

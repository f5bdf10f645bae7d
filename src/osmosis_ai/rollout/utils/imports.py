"""Names written as ``"module:attribute"``, under the path that users import."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.backend.local.loading import load_object

__all__ = ["resolve_object"]


def resolve_object(reference: Any) -> Any:
    """Return ``reference`` itself, or what a ``"module:attribute"`` string names.

    Raises:
        ValueError: when the string is not of that form, or names nothing.
        ImportError: when the module cannot be imported.
    """
    return load_object(reference, "reference")

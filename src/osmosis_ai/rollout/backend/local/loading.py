"""Finding the classes a project names, at construction: a bad name never reaches a rollout."""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def load_object(reference: Any, role: str) -> Any:
    """Return ``reference`` itself, or what a ``"module:attribute"`` string names.

    Raises:
        ValueError: when the string is not of that form, or names nothing.
        ImportError: when the module cannot be imported.
    """
    if not isinstance(reference, str):
        return reference
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{role} must be `module:attribute`, not {reference!r}")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"{role}: module `{module_name}` has no `{attribute}`") from error
    return found


def load_class(reference: Any, role: str, method: str) -> Any:
    """Return the class ``reference`` is or names, checked to be a class that can be used as ``role``.

    Raises:
        TypeError: when it is not a class with an own ``method``.
        ValueError: when the string names nothing.
        ImportError: when the module cannot be imported.
    """
    found = load_object(reference, role)
    if not isinstance(found, type):
        raise TypeError(f"{role} must be a class (or `module:Class`), not {found!r}")
    if not callable(getattr(found, method, None)) or inspect.isabstract(found):
        raise TypeError(f"{role}: class {found.__name__} does not define `{method}`")
    return found

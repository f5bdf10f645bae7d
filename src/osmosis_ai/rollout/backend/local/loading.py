"""Load the classes a project names when the backend is created, before any rollout runs."""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def load_object(reference: Any, role: str) -> Any:
    """Return ``reference``, or the object named by a ``"module:attribute"`` string.

    Raises:
        ValueError: The string has another form, or the attribute does not exist.
        ImportError: The module cannot be imported.
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
    """Return the class that ``reference`` is or names, after checking that it can be used as ``role``.

    Raises:
        TypeError: It is not a class that overrides ``method``.
        ValueError: The string does not name an existing attribute.
        ImportError: The module cannot be imported.
    """
    found = load_object(reference, role)
    if not isinstance(found, type):
        raise TypeError(f"{role} must be a class (or `module:Class`), not {found!r}")
    if not callable(getattr(found, method, None)) or inspect.isabstract(found):
        raise TypeError(f"{role}: class {found.__name__} does not define `{method}`")
    return found

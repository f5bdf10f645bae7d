"""Import user objects named by ``"module:attribute"`` and packages of optional extras."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_EXTRA_MODULES = {
    "server": frozenset({"fastapi", "starlette", "uvicorn"}),
    "openai-agents": frozenset({"agents"}),
    "strands": frozenset({"strands"}),
}
"""Top-level modules that only this extra installs, by extra."""


def resolve_object(reference: Any, role: str = "reference") -> Any:
    """Return ``reference``, or the object named by a ``"module:attribute"`` string. ``role`` is for errors.

    Raises ValueError if the string has another form or the attribute does not exist.
    """
    if not isinstance(reference, str):
        return reference
    module_name, _, attribute = reference.partition(":")
    if not (module_name and attribute):
        raise ValueError(f"{role} must be `module:attribute`, not {reference!r}")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"{role}: module `{module_name}` has no `{attribute}`") from error
    return found


def resolve_class(reference: Any, role: str, method: str) -> Any:
    """Return the class that ``reference`` is or names. Raises TypeError if it does not override ``method``."""
    found = resolve_object(reference, role)
    if not isinstance(found, type):
        raise TypeError(f"{role} must be a class (or `module:Class`), not {found!r}")
    if not callable(getattr(found, method, None)) or inspect.isabstract(found):
        raise TypeError(f"{role}: class {found.__name__} does not define `{method}`")
    return found


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Wrap an import of optional packages: ``with needs_extra("strands", "a Strands agent"): import strands``.

    Only a missing package of this extra is reported as a missing extra, after ``purpose``. Other import errors propagate.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top not in _EXTRA_MODULES[extra]:
            raise
        found = sys.modules.get(top)
        if error.name != top and found is not None:
            raise ImportError(
                f"{purpose} needs the package `{top}` of the `{extra}` extra, but `{top}` is "
                f"{getattr(found, '__file__', None)}: rename that file",
                name=top,
            ) from error
        from osmosis_ai.errors import install_command

        raise ModuleNotFoundError(
            f"{purpose} needs the `{extra}` extra (no module named '{error.name}'). "
            f"Install it with: {install_command(extra)}. If the rollout has a pyproject.toml, list the extra there too.",
            name=error.name,
        ) from error

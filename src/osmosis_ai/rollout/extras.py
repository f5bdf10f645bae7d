"""Optional dependencies: the packages of each extra and the error for a missing one.

Only a package that belongs to the extra is reported as a missing extra. Other import errors propagate unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

MODULES = {
    "server": frozenset({"fastapi", "starlette", "uvicorn"}),
    "openai-agents": frozenset({"agents"}),
    "strands": frozenset({"strands"}),
}
"""Top-level modules that only this extra installs, by extra."""


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Wrap an import of optional packages: ``with needs_extra("strands", "a Strands agent"): import strands``.

    Args:
        extra: A key of :data:`MODULES`.
        purpose: What needs the package; starts the error message.

    Raises:
        ModuleNotFoundError: A module of the extra is missing. Names the extra and the install command.
        ImportError: Another module shadows the package, such as the user's own ``agents.py``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top not in MODULES[extra]:
            raise
        found = sys.modules.get(top)
        if error.name != top and found is not None:
            raise ImportError(
                f"{purpose} needs the package `{top}` of the `{extra}` extra, and `{top}` is "
                f"{getattr(found, '__file__', None)} here, which has no `{error.name}`: "
                "a file of yours needs another name",
                name=top,
            ) from error
        from osmosis_ai.errors import install_command

        raise ModuleNotFoundError(
            f"{purpose} needs the `{extra}` extra (no module named '{error.name}'). "
            f"Install it with: {install_command(extra)}. If the rollout has a pyproject.toml, list the extra there too.",
            name=error.name,
        ) from error

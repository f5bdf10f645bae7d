"""Optional dependencies: which packages an extra brings, and the sentence for one that is missing.

Only a package of the extra's own is reported as a missing extra. Anything else that cannot be imported is a
fault of its own and passes through as it is.
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
"""Extra -> the top-level modules that nothing but it brings."""


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Import what ``extra`` brings; used as ``with needs_extra("strands", "a Strands agent"): import strands``.

    Args:
        extra: a key of :data:`MODULES`.
        purpose: what needs it; begins the sentence.

    Raises:
        ModuleNotFoundError: naming the extra and the command that installs it, when a module of its own is missing.
        ImportError: another module has the name of what the extra brings, such as an ``agents.py`` of the user's.
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

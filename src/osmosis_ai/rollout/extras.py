"""Optional dependencies: which packages an extra brings, and the sentence for one that is missing.

Only a package of the extra's own is reported as a missing extra. Anything else that cannot be imported is a
fault of its own and passes through as it is.
"""

from __future__ import annotations

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
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in MODULES[extra]:
            raise
        from osmosis_ai.errors import install_command

        raise ModuleNotFoundError(
            f"{purpose} needs the `{extra}` extra (no module named '{error.name}'). "
            f"Install it with: {install_command(extra)}",
            name=error.name,
        ) from error

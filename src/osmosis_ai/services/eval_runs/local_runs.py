"""Pointing to the evaluations of this machine where a platform cannot be asked, or has no such run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from osmosis_ai.errors import OsmosisError

_LATEST = 5


@contextmanager
def pointing_to_local_runs(run: str | None = None) -> Iterator[None]:
    """Where nobody can ask a platform, or it has no such run, say also what this machine has.

    Args:
        run: the one that is asked for; None for all.
    """
    try:
        yield
    except OsmosisError as error:
        nobody_asked = getattr(error, "status", None) is None and error.code in (
            "AUTH_REQUIRED",
            "VALIDATION",
        )
        if nobody_asked or (run is not None and error.code == "NOT_FOUND"):
            error.hint = _with_local_runs(error.hint, run, asked=not nobody_asked)
        raise


def _with_local_runs(hint: str | None, run: str | None, *, asked: bool) -> str | None:
    from osmosis_ai.services.eval_runs.resolver import local_names

    try:
        names = local_names()
    except (OsmosisError, OSError):
        return hint
    if run in names:
        here = f"`osmosis eval watch {run}` shows the run of that name on this machine"
    elif names and not asked:
        listed = ", ".join(names[:_LATEST])
        here = f"runs of this machine need no platform: `osmosis eval watch NAME` shows them ({listed})"
    else:
        return hint
    return f"{hint}; {here}" if hint else here

"""What a judging session shows while it runs, and what Ctrl-C does to it."""

from __future__ import annotations

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.runs.view import spent
from osmosis_ai.rubric.session import SessionHooks, SessionSnapshot

QUIT_AT_ONCE = "Interrupted. Run the same command with `--resume` to go on: what was scored is kept."


class LiveSession(GracefulStop, SessionHooks):
    """The session's side of the terminal; a context manager around it."""

    def __init__(self, output: OutputContext, words: list[str]) -> None:
        super().__init__(output, words, quit_at_once=QUIT_AT_ONCE)

    def progress(self, snapshot: SessionSnapshot) -> None:
        """Move the bar; a single call has none."""
        if snapshot.total > 1:
            self._move_bar("Judging", snapshot.completed, snapshot.total, "calls", describe(snapshot))


def describe(snapshot: SessionSnapshot) -> str:
    """Return the live numbers beside the bar."""
    parts = []
    if snapshot.mean is not None:
        parts.append(f"mean {snapshot.mean:.3f}")
    if snapshot.unscored:
        parts.append(f"{formats.count(snapshot.unscored)} unscored")
    parts += spent(snapshot)
    parts.append(f"{snapshot.in_flight} in flight")
    return " · ".join(parts)

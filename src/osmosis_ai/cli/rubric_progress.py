"""The progress of a session of judges; apart, because the help of its command imports no evaluation."""

from __future__ import annotations

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks


class LiveSession(GracefulStop, RunHooks):
    """Shows a session of judges on the terminal; a context manager."""

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Move the bar; a single call has none."""
        if snapshot.total > 1:
            mean = [] if snapshot.reward_mean is None else [f"mean {snapshot.reward_mean:.3f}"]
            spent = formats.spent(snapshot, failed="without a score")
            note = " · ".join([*mean, *spent, f"{snapshot.in_flight} in flight"])
            self._move_bar("Judging", snapshot.completed, snapshot.total, "calls", note)

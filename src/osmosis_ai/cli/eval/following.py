"""A run of the platform, shown while it goes on; Ctrl-C stops showing it, not the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output.context import OutputContext, current

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.cli.output.progress import Progress
    from osmosis_ai.services.eval_runs import DescribedRun
    from osmosis_ai.services.eval_watch import SeenRun

POLL_S = 1.0


def follow(client: PlatformClient, name: str) -> DescribedRun:
    """Show how far a run is until it has ended, and return it with its numbers."""
    from osmosis_ai.services.eval_runs import describe_run
    from osmosis_ai.services.eval_watch import follow_platform_run

    output = current()
    try:
        with _Display(output) as display:
            for seen in follow_platform_run(client, name, pause=lambda: time.sleep(POLL_S), tell=output.note):
                display.show(seen)
    except KeyboardInterrupt:
        output.note(f"The run goes on; follow it again with: osmosis eval watch {name}")
        raise
    return describe_run(client, name)


def ending(described: DescribedRun) -> str:
    """Return how a run ended, in a sentence."""
    run = described.run
    said = f"Evaluation run {run.status}: {run.name or run.id}"
    return f"{said}. {run.error}" if run.error else said


def outcome(described: DescribedRun) -> Mapping[str, Any]:
    """Return what a script wants to know of a run that has ended."""
    from osmosis_ai.services.eval_runs import run_metrics

    data = described.data()
    return {
        "status": described.run.status,
        "error": described.run.error,
        "commit_sha": described.detail.commit_sha,
        "summary": data["summary"],
        "metrics": run_metrics(described.metrics),
        "metrics_error": described.metrics_error,
    }


class _Display:
    """A spinner while the run waits, a bar once samples are counted."""

    def __init__(self, output: OutputContext) -> None:
        self._output = output
        self._shown = ExitStack()
        self._waiting = ExitStack()
        self._bar: Progress | None = None
        self._status = ""

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        self._shown.close()

    def show(self, seen: SeenRun) -> None:
        """Show how the run stands now."""
        from osmosis_ai.cli.eval.live import describe

        progress = seen.progress
        if self._bar is None and (progress is None or not progress.total or seen.status == "pending"):
            self._say_status(seen.status)
            return
        if progress is None:
            return
        if self._bar is None:
            self._waiting.close()
            name = seen.detail.eval_run.name or "Evaluating"
            self._bar = self._shown.enter_context(
                self._output.progress(name, total=progress.total, unit="samples")
            )
        self._bar.update(progress.completed, note=describe(progress), total=progress.total)

    def _say_status(self, status: str) -> None:
        if status == self._status:
            return
        self._status = status
        self._waiting.close()
        said = {"pending": "Waiting for the run to start", "running": "The run is being prepared"}.get(status)
        if said is not None:
            self._waiting.enter_context(self._output.status(said))

"""What a run tells its caller, and what it asks: the seam between the engine and whoever shows it.

The defaults are those of a program that runs unattended: nothing is shown, dispatch is confirmed,
secrets come from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.evaluation.secret_values import find_secret_values
from osmosis_ai.redaction import Redactor


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """How far a run is, for a live display."""

    completed: int
    total: int
    passed: int
    failed: int
    skipped: int
    scored: int
    reward_mean: float | None
    tokens: int
    cost_usd: float | None
    in_flight: int | None
    elapsed_s: float
    finished: int

    @property
    def rate_per_s(self) -> float | None:
        """Items finished per second in this session."""
        return self.finished / self.elapsed_s if self.elapsed_s > 0 and self.finished else None


@dataclass(frozen=True)
class RunPlan:
    """What is about to happen."""

    run_name: str
    run_dir: Path
    model_path: str
    rows: int
    rows_in_file: int
    n: int
    total: int
    pending: int
    resumed: int
    continued: bool
    found: bool
    put_aside: Path | None
    servers: int = 1


class RunHooks:
    """Override what the caller cares about. Everything is called on the run's event loop."""

    def plan(self, plan: RunPlan) -> None:
        """Show what is about to happen, before anything is started or asked."""

    def note(self, message: str) -> None:
        """Tell something worth knowing."""

    def stage(self, message: str) -> None:
        """Tell what the run is busy with now (``starting the rollout's server``)."""

    def environment(self, words: str) -> None:
        """Take note of what the agent runs in; not called for one that is served elsewhere."""

    def log_event(self, event: LogEvent, redact: Redactor) -> None:
        """Take an event of the run's log; only with ``verbose``."""

    def recorded(self, record: TerminalRecord) -> None:
        """Take note of an attempt whose result has just become durable."""

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Show how far the run is; called a few times a second."""

    async def confirm_dispatch(self, *, pending: int, model_path: str) -> bool:
        """Ask whether to spend on ``pending`` rollouts; called only when there are some."""
        return True

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        """Return the values of the secrets; called only when something is dispatched."""
        return find_secret_values(names, given={}, environ=os.environ)

    def started(self, interrupt: Callable[[], None]) -> None:
        """Take the function that stops the run gracefully; from here on something is being spent."""

    def ended(self) -> None:
        """Take note that nothing is being spent any more; what follows is bookkeeping."""

"""What the classic evaluation shows while it runs, and what Ctrl-C does to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.cli.agent_loops import classic_tables
from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.runs.following import evaluation_note
from osmosis_ai.evaluation.hooks import RunHooks, RunPlan
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_state import ProgressSnapshot

if TYPE_CHECKING:
    from osmosis_ai.services.classic_eval import PreparedClassicEval

QUIT_AT_ONCE = "Interrupted. The same command goes on with what is left."


class ClassicRun(GracefulStop, RunHooks):
    """The run's side of the terminal; a context manager around it."""

    def __init__(self, output: OutputContext, prepared: PreparedClassicEval, *, quiet: bool) -> None:
        super().__init__(output, ["eval"], quit_at_once=QUIT_AT_ONCE)
        self._prepared = prepared
        self._quiet = quiet
        self._total = self._ended = 0
        self._lines: list[str] = []

    def plan(self, plan: RunPlan) -> None:
        """Show what is about to happen."""
        self._total, self._ended = plan.total, plan.resumed
        if self._quiet:
            return
        self._output.show(classic_tables.plan(plan, self._prepared))
        if plan.put_aside is not None:
            self.note(f"the earlier run is kept as {plan.put_aside.name}")
        if plan.continued and plan.resumed:
            self.note(
                f"continuing {plan.run_name}: {formats.count(plan.resumed)} of {formats.count(plan.total)} runs "
                "are finished; `--fresh` starts over"
            )

    def note(self, message: str) -> None:
        """Write a line to stderr, behind those of runs that have ended."""
        self._show_lines()
        if not self._quiet:
            self._output.note(message)

    def stage(self, message: str) -> None:
        """Tell what the run is busy with."""
        self.note(f"{message} …")

    def recorded(self, record: TerminalRecord) -> None:
        """Show a run that has ended, in a line."""
        self._ended = min(self._ended + 1, self._total)
        if self._quiet:
            return
        self._lines.append(classic_tables.run_line(record, self._ended, self._total, self._prepared.settings))
        # Above a bar a line costs more than a millisecond, which all rollouts wait: there they come together.
        if not self._output.animated:
            self._show_lines()

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Move the bar, where there is a terminal for one; elsewhere the runs' own lines tell."""
        self._show_lines()
        if self._output.animated and not self._quiet and (self._bar is not None or snapshot.in_flight):
            self._move_bar(
                "Evaluating", snapshot.completed, snapshot.total, "runs", evaluation_note(snapshot)
            )

    def ended(self) -> None:
        """Show the last runs, and close what is shown."""
        self._show_lines()
        super().ended()

    def _show_lines(self) -> None:
        if self._lines:
            self._output.note("\n".join(self._lines))
            self._lines.clear()

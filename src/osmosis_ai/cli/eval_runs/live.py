"""What `osmosis eval run` shows and asks while it runs, and what Ctrl-C does to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.runs.following import evaluation_note
from osmosis_ai.cli.startup import current_env_file, environment_with_file
from osmosis_ai.evaluation.hooks import RunHooks, RunPlan
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.evaluation.run_state import ProgressSnapshot
from osmosis_ai.evaluation.secret_values import find_secret_values
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    from osmosis_ai.services.eval_runs.run import PreparedEvalRun

QUIT_AT_ONCE = "Interrupted. Re-run the same command to resume the pending work items."


class LiveRun(GracefulStop, RunHooks):
    """The run's side of the terminal; a context manager around it."""

    def __init__(self, output: OutputContext, prepared: PreparedEvalRun, *, yes: bool) -> None:
        super().__init__(output, ["eval", "run"], quit_at_once=QUIT_AT_ONCE)
        self._prepared = prepared
        self._yes = yes or prepared.served
        self._plan: RunPlan | None = None

    def plan(self, plan: RunPlan) -> None:
        """Show the plan, and what the user should know about it."""
        from osmosis_ai.cli.eval_runs import tables

        self._plan = plan
        self._output.show(tables.plan(plan, self._prepared))
        for note in self._prepared.notes:
            self._output.warn(note)
        if plan.put_aside is not None:
            self.note(f"the earlier run is kept as {plan.put_aside.name}")
        if plan.found and plan.pending:
            self.note(
                f"continuing {plan.run_name}: {formats.count(plan.resumed)} of {formats.count(plan.total)} "
                "attempts are finished; `--fresh` starts over"
            )

    def note(self, message: str) -> None:
        """Write a line to stderr."""
        self._output.note(message)

    def stage(self, message: str) -> None:
        """Tell what the run is busy with, unless the log shows it anyway."""
        if not self._prepared.request.verbose:
            self._output.note(f"{message} …")

    def log_event(self, event: LogEvent, redact: Redactor) -> None:
        """Show an event as a line of the run's log."""
        self._output.note(event.to_line(redact))

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Move the bar, once anything is under way."""
        if self._bar is not None or snapshot.in_flight or snapshot.finished:
            self._move_bar(
                "Evaluating", snapshot.completed, snapshot.total, "rollouts", evaluation_note(snapshot)
            )

    async def confirm_dispatch(self, *, pending: int, model_path: str) -> bool:
        """Ask before spending; models we serve ourselves cost nothing, so there is nothing to ask."""
        assert self._plan is not None
        self._output.confirm(
            f"{pending} rollouts x model {model_path} — continue?",
            yes=self._yes,
            default=False,
            summary={"Run": self._plan.run_name, "Rollouts": str(pending), "Model": model_path},
            notes=self._prepared.notes,
        )
        return True

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        """Take secrets from the secrets file, the environment, the `.env`, or the user."""
        ask = self._ask if self._output.interactive else None
        given = self._prepared.request.secret_values or {}
        file = current_env_file()
        found = find_secret_values(names, given=given, environ=environment_with_file(), ask=ask)
        if file is not None:
            file.refuse_foreign_keys({**os.environ, **found})
        return found

    def _ask(self, name: str) -> str:
        import getpass

        return getpass.getpass(f"{name}: ", stream=self._output.stderr)

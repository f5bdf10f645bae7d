"""Output of `osmosis eval -m`: plan, progress and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import Block, Cell, Column, Row, Styled, Table
from osmosis_ai.cli.runs.view import evaluation_note
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.agent_loop.eval_run import run_scores
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks
from osmosis_ai.evaluation.manifest import RunPlan
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.evaluation.agent_loop.eval_run import ClassicResults
    from osmosis_ai.evaluation.agent_loop.runner import EvalEvalSummary
    from osmosis_ai.services.classic_eval import ClassicEvalRequest, PreparedClassicEval
    from osmosis_ai.statistics.estimates import Estimate


_MAX_ERROR_CHARS = 160
_SCIENTIFIC_FROM = 1e9
_UNSCORED = "unscored"


def plan_table(plan: RunPlan, prepared: PreparedClassicEval) -> Table:
    """Return the configuration of the run."""
    request, selection = prepared.request, prepared.selection
    at = f" at {request.base_url}" if request.base_url else ""
    rows: list[Row] = [
        ("Agent", f"{prepared.agent.name} ({request.module})"),
        ("Model", f"{request.model}{at}"),
        ("Rows", selection.drawn.words),
        *(("Eval function", f"{each.name} ({each.mode})") for each in prepared.eval_fns),
        ("Runs", f"{formats.count(plan.total)} ({request.n} per row, {request.batch_size} at once)"),
        ("Servers", plan.servers),
        ("Run directory", shown_path(plan.directory.path)),
    ]
    return Table(columns=("", ""), rows=rows, title="Evaluation")


def run_line(record: TerminalRecord, ended: int, total: int, request: ClassicEvalRequest) -> str:
    """Return the line of a finished run: its row, status, duration, tokens, and scores or error."""
    tokens = "unknown" if record.has_unknown_tokens else formats.count(record.tokens or 0)
    took = f"{formats.duration(record.duration_ms / 1000)}, {tokens} tokens"
    row = record.source_row_index if record.source_row_index is not None else record.row_index
    which = f"row {row}" + (f" run {record.run_index}" if request.n > 1 else "")
    head = f"[{ended}/{total}] {which}: {'OK' if record.status == 'success' else 'FAILED'} ({took})"
    if record.status != "success":
        return f"{head} - {_shortened(record.error or 'no error message')}"
    scores = run_scores(record)
    names = [*request.eval_fns, *(name for name in scores if name not in request.eval_fns)]
    shown = (f"{name}={_number(scores[name])}" if name in scores else f"{name}={_UNSCORED}" for name in names)
    reasons = "".join(f" - {name}: {_shortened(why)}" for name, why in (record.unscored or {}).items())
    return f"{head} [{', '.join(shown)}]{reasons}"


def message(result: ClassicResults) -> str:
    """Return a one-sentence summary."""
    summary = result.summary
    runs = f"{formats.count(result.runs)} {'run' if result.runs == 1 else 'runs'}"
    if summary.pending:
        stop = summary.stop
        reason = stop.reason.splitlines()[0].rstrip(".:") if stop is not None else ""
        why = f" ({reason})" if stop is not None and stop.kind != "interrupted" and reason else ""
        left = (
            f"{formats.count(summary.pending)} of {formats.count(summary.total_work_items)} runs are pending"
        )
        return f"Evaluation interrupted{why}: {left}."
    if not summary.succeeded:
        return f"Evaluation failed: none of {runs} succeeded."
    return f"Evaluation finished: {formats.count(summary.succeeded)} of {runs} succeeded."


def blocks(request: ClassicEvalRequest, result: ClassicResults) -> list[Block]:
    """Return the tables of scores, one block per eval function, and of run counts."""
    columns = ("Eval function", "", Column("Value", right=True), "95% CI", "Std. error", "Sample")
    rows = [
        row
        for name, summary in _summaries(result)
        for row in _function_rows(name, summary, request.pass_threshold)
    ]
    return [
        Table(columns, rows, title="Evaluation results", in_plain=True),
        Table(("", ""), list(_runs(request, result)), title="Runs", in_plain=True),
    ]


def next_steps(result: ClassicResults) -> list[str]:
    """Return the commands to continue with."""
    summary, steps = result.summary, []
    if summary.pending:
        spent = summary.stop is not None and summary.stop.kind == "budget"
        how = "with a higher limit or none" if spent else "again"
        steps.append(f"Continue: run the same command {how}. Run directory: {shown_path(summary.run_dir)}")
        hint = getattr(summary.stop and summary.stop.error, "hint", None)
        if hint:
            steps.append(f"hint: {hint}")
    if summary.failed:
        steps.append(
            f"Retry the failed runs: run the same command with --retry-failed --name {summary.run_dir.name}"
        )
    return steps


def _summaries(result: ClassicResults) -> Iterator[tuple[str, EvalEvalSummary]]:
    yield from result.functions.items()
    if result.reward is not None:
        yield "Agent reward", result.reward


def _function_rows(name: str, summary: EvalEvalSummary, threshold: float) -> Iterator[Sequence[Cell]]:
    ended = summary.scored + summary.unscored
    if summary.estimate is None:
        yield name, "Mean", Styled(_UNSCORED, "warn"), "", "", f"0 of {formats.count(ended)} runs scored"
        return
    over = f"{formats.count(summary.scored)} of {formats.count(ended)} runs scored"
    mean = summary.estimate
    yield name, "Mean", Styled(_number(mean.value), "strong"), formats.interval(mean), _error(mean), over
    for k, estimate in summary.pass_at_k_estimates.items():
        label = f"pass@{k}" if k > 1 else f"pass@1 (score >= {threshold:g})"
        over = f"{formats.count(estimate.clusters)} {'row' if estimate.clusters == 1 else 'rows'}"
        value = formats.percent(estimate.value)
        yield (
            name,
            label,
            value,
            formats.interval(estimate, percent=True),
            _error(estimate, percent=True),
            over,
        )


def _runs(request: ClassicEvalRequest, result: ClassicResults) -> Iterator[Row]:
    summary = result.summary
    tokens, cost = summary.metrics.estimates.tokens, summary.metrics.estimates.cost_usd
    yield "Rows", formats.count(len(result.rows))
    yield "Runs per row", request.n
    yield "Runs", formats.count(result.runs)
    if summary.failed:
        yield "  failed", Styled(formats.count(summary.failed), "bad")
    if result.pending:
        yield "  pending", Styled(formats.count(result.pending), "pending")
    if summary.resumed:
        yield "  from earlier sessions", formats.count(summary.resumed)
    yield "Duration", formats.duration(summary.duration_ms / 1000)
    yield "Tokens", numbers.partial_count(tokens.total, tokens.unreported_samples, result.runs, "runs")
    if cost.total is not None:
        yield "Cost", formats.money(cost.total)
    yield "Run directory", shown_path(summary.run_dir)
    if request.output is not None:
        yield "Results", shown_path(request.output)


def _error(estimate: Estimate, *, percent: bool = False) -> str:
    if estimate.stderr is None:
        return formats.MISSING
    return formats.percent(estimate.stderr) if percent else _number(estimate.stderr)


def _number(value: float) -> str:
    # A function may return 1e308, which is unreadable as a decimal.
    return f"{value:.3f}" if abs(value) < _SCIENTIFIC_FROM else f"{value:.3e}"


def _shortened(text: str) -> str:
    line = formats.one_line(text)
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"


QUIT_AT_ONCE = "Interrupted. Run the same command to continue."


class ClassicRun(GracefulStop, RunHooks):
    """Shows a run on the terminal; a context manager."""

    def __init__(self, output: OutputContext, prepared: PreparedClassicEval, *, quiet: bool) -> None:
        super().__init__(output, ["eval"], quit_at_once=QUIT_AT_ONCE)
        self._prepared = prepared
        self._quiet = quiet
        self._total = self._ended = 0
        self._lines: list[str] = []

    def plan(self, plan: RunPlan) -> None:
        """Show the configuration of the run."""
        self._total, self._ended = plan.total, plan.resumed
        if self._quiet:
            return
        self._output.show(plan_table(plan, self._prepared))
        if plan.archived is not None:
            self.note(f"Archived the earlier run as {plan.archived.name}.")
        if plan.resumed:
            self.note(
                f"Continuing {plan.name}: {formats.count(plan.resumed)} of {formats.count(plan.total)} runs "
                "are finished. Use '--fresh' to start over."
            )

    def note(self, message: str) -> None:
        """Write a line to stderr, after the lines of finished runs."""
        self._show_lines()
        if not self._quiet:
            self._output.note(message)

    def stage(self, message: str) -> None:
        """Show the current stage."""
        self.note(f"{message} …")

    def recorded(self, record: TerminalRecord) -> None:
        """Show a line for a finished run."""
        self._ended = min(self._ended + 1, self._total)
        if self._quiet:
            return
        self._lines.append(run_line(record, self._ended, self._total, self._prepared.request))
        # Above a progress bar a line takes more than a millisecond, which delays all rollouts, so lines are batched.
        if not self._output.animated:
            self._show_lines()

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Update the progress bar on a terminal; elsewhere the lines of the runs are enough."""
        self._show_lines()
        if self._output.animated and not self._quiet and (self._bar is not None or snapshot.in_flight):
            self._move_bar(
                "Evaluating", snapshot.completed, snapshot.total, "runs", evaluation_note(snapshot)
            )

    def ended(self) -> None:
        """Show the last lines and close the progress bar."""
        self._show_lines()
        super().ended()

    def _show_lines(self) -> None:
        if self._lines:
            self._output.note("\n".join(self._lines))
            self._lines.clear()

"""Runs of agent loops on the terminal: rows and sessions of `osmosis test`, and evaluations of `osmosis eval -m`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import Block, Cell, Column, Row, Styled, Table
from osmosis_ai.cli.runs import evaluation_note
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.eval_run import run_scores
from osmosis_ai.evaluation.agent_loop.interactive import SessionTerminal
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks
from osmosis_ai.evaluation.manifest import RunPlan
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.eval_run import ClassicResults
    from osmosis_ai.evaluation.agent_loop.runner import EvalEvalSummary, LocalRunResult
    from osmosis_ai.services.classic_eval import ClassicEvalRequest, PreparedClassicEval

_MAX_HEARTBEAT_S = 1.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_READ_BYTES = 4096
_MAX_ERROR_CHARS = 160
_SCIENTIFIC_FROM = 1e9
_UNSCORED = "unscored"
# At their lowest levels these libraries log every byte, and some log keys.
_LIBRARIES = ("LiteLLM", "aiohttp", "asyncio", "httpcore", "httpx", "openai", "urllib3")
Result = TypeVar("Result")


class BlockedLoopError(OsmosisError):
    """An agent blocks the event loop."""


class LiveRows(GracefulStop, RunHooks):
    """Writes a line for each row, in order; a context manager around the test."""

    def __init__(self, output: OutputContext, *, quiet: bool, timeout_s: float) -> None:
        super().__init__(output, ["test"], quit_at_once="Interrupted.")
        self._quiet = quiet
        self._timeout_s = timeout_s
        self._pressed = False
        self._beat: asyncio.TimerHandle | None = None
        self._before: dict[int, Any] = {}

    def started(self, interrupt: Callable[[], None]) -> None:
        """Let Ctrl-C call ``interrupt``, let a second one end the process, and start the alarm."""
        self._interrupt = interrupt
        self._running = asyncio.get_running_loop()
        handlers = {**dict.fromkeys(_INTERRUPTS, self._on_ctrl_c), signal.SIGALRM: self._blocked}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._postpone_alarm()

    def ended(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        super().ended()

    def row_ended(self, number: int, total: int, result: LocalRunResult) -> None:
        if self._quiet:
            return
        took = formats.duration(result.duration_ms / 1000)
        is_known = result.total_tokens or not result.token_usage.get("num_llm_calls")
        tokens = formats.count(result.total_tokens) if is_known else "unknown"
        line = (
            f"[{number}/{total}] Row {result.row_index}: {'OK' if result.success else 'FAILED'} "
            f"({', '.join([took, f'{tokens} tokens', *result.flagged_finishes])})"
        )
        why = "" if result.success else f" - {formats.one_line(result.raised or result.error or '')}"
        self._output.note(line + why)

    def _postpone_alarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        every_s = min(_MAX_HEARTBEAT_S, self._timeout_s / 4)
        self._beat = self._running.call_later(every_s, self._postpone_alarm)

    def _blocked(self, *_: int | FrameType | None) -> None:
        # Outside a task the agent is not the cause: this process itself was suspended.
        if asyncio.current_task(self._running) is not None:
            raise BlockedLoopError(
                f"The agent blocked the event loop for {self._timeout_s:g} s. In `run`, use `await` to wait and "
                "`asyncio.to_thread` for blocking calls."
            )

    def _on_ctrl_c(self, *_: int | FrameType | None) -> None:
        if self._pressed:
            self._interrupt = None
            self._on_signal()
        self._pressed = True
        self._running.call_soon_threadsafe(self._on_signal)


class SessionScreen(SessionTerminal):
    """Prompts and prints on the terminal."""

    def __init__(self, output: OutputContext) -> None:
        self._output = output
        self._descriptor = output.stdin.fileno()
        self._typed = b""
        self.left = False
        self._input: asyncio.Future[None] | None = None
        self._session: asyncio.Task[object] | None = None

    async def show(self, session: Callable[[SessionScreen], Awaitable[Result]]) -> Result:
        """Run a session; Ctrl-C ends it."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(session(self))
        self._session = task
        for number in _INTERRUPTS:
            loop.add_signal_handler(number, self._leave)
        try:
            return await task
        finally:
            for number in _INTERRUPTS:
                loop.remove_signal_handler(number)

    async def ask(self, prompt: str) -> str | None:
        """Return the line that the user types; None at the end of input and after Ctrl-C."""
        stream = self._output.stderr
        stream.write(formats.literal(prompt))
        stream.flush()
        while b"\n" not in self._typed and not self.left:
            await self._wait_for_input()
        if self.left:
            stream.write("\n")
            return None
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace")

    def say(self, text: str) -> None:
        """Show text unchanged, with control characters escaped."""
        self._output.note(text)

    async def _wait_for_input(self) -> None:
        loop = asyncio.get_running_loop()
        self._input = line = loop.create_future()
        loop.add_reader(self._descriptor, self._read)
        try:
            await line
        finally:
            loop.remove_reader(self._descriptor)
            self._input = None

    def _read(self) -> None:
        typed = os.read(self._descriptor, _READ_BYTES)
        self._typed += typed
        self.left = self.left or not typed
        self._answer()

    def _leave(self) -> None:
        self.left = True
        if self._input is not None:
            self._answer()
        elif self._session is not None:
            self._session.cancel()

    def _answer(self) -> None:
        if self._input is not None and not self._input.done():
            self._input.set_result(None)


@contextmanager
def show_logs(output: OutputContext, *, enabled: bool) -> Iterator[None]:
    """Show logs on stderr until the block ends, with secrets redacted."""
    if not enabled:
        yield
        return
    root, handler = logging.getLogger(), _LogHandler(output)
    before = {logger: logger.level for logger in (root, *map(logging.getLogger, _LIBRARIES))}
    for logger in before:
        logger.setLevel(logging.DEBUG if logger is root else logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in before.items():
            logger.setLevel(level)


class _LogHandler(logging.Handler):
    def __init__(self, output: OutputContext) -> None:
        super().__init__()
        self._output = output
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._output.say(formats.literal(self.format(record)))


# -- osmosis eval -m ------------------------------------------------------------------------


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
    summary = result.summary
    runs = numbers.amount(result.runs, "run")
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
    columns = ("Eval function", "Metric", Column("Value", right=True), "95% CI", "Scored")
    summaries = [*result.functions.items()]
    if result.reward is not None:
        summaries.append(("Agent reward", result.reward))
    rows = [
        row for name, summary in summaries for row in _function_rows(name, summary, request.pass_threshold)
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
            steps.append(f"Hint: {hint}")
    if summary.failed:
        steps.append(
            f"Retry the failed runs: run the same command with --retry-failed --name {summary.run_dir.name}"
        )
    return steps


def _function_rows(name: str, summary: EvalEvalSummary, threshold: float) -> Iterator[Sequence[Cell]]:
    mean, ended = summary.estimate, summary.scored + summary.unscored
    over = f"{formats.count(summary.scored)} of {numbers.amount(ended, 'run')}"
    if mean is None:
        yield name, "Mean", Styled(_UNSCORED, "warn"), "", over
        return
    yield name, "Mean", Styled(_number(mean.value), "strong"), formats.interval(mean), over
    for k, estimate in summary.pass_at_k_estimates.items():
        label = f"pass@{k}" if k > 1 else f"pass@1 (score >= {threshold:g})"
        value, low_high = formats.percent(estimate.value), formats.interval(estimate, percent=True)
        yield name, label, value, low_high, numbers.amount(estimate.clusters, "row")


def _runs(request: ClassicEvalRequest, result: ClassicResults) -> Iterator[Row]:
    summary = result.summary
    tokens, cost = summary.metrics.estimates.tokens, summary.metrics.estimates.cost_usd
    yield (
        "Runs",
        f"{formats.count(result.runs)} ({numbers.amount(len(result.rows), 'row')}, {request.n} per row)",
    )
    if summary.failed:
        yield "Failed", Styled(formats.count(summary.failed), "bad")
    if result.pending:
        yield "Pending", Styled(formats.count(result.pending), "pending")
    if summary.resumed:
        yield "From earlier sessions", formats.count(summary.resumed)
    yield "Duration", formats.duration(summary.duration_ms / 1000)
    yield "Tokens", numbers.partial_count(tokens.total, tokens.unreported_samples, result.runs, "runs")
    if cost.total is not None:
        yield "Cost", formats.money(cost.total)
    yield "Run directory", shown_path(summary.run_dir)
    if request.output is not None:
        yield "Results", shown_path(request.output)


def _number(value: float) -> str:
    # A function may return 1e308, which is unreadable as a decimal.
    return f"{value:.3f}" if abs(value) < _SCIENTIFIC_FROM else f"{value:.3e}"


def _shortened(text: str) -> str:
    return formats.shortened(formats.one_line(text), _MAX_ERROR_CHARS)


class ClassicRun(GracefulStop, RunHooks):
    """Shows a run on the terminal; a context manager."""

    def __init__(self, output: OutputContext, prepared: PreparedClassicEval, *, quiet: bool) -> None:
        super().__init__(output, ["eval"], quit_at_once="Interrupted. Run the same command to continue.")
        self._prepared = prepared
        self._quiet = quiet
        self._total = self._ended = 0
        self._lines: list[str] = []

    def plan(self, plan: RunPlan) -> None:
        self._total, self._ended = plan.total, plan.resumed
        if self._quiet:
            return
        request, prepared = self._prepared.request, self._prepared
        at = f" at {request.base_url}" if request.base_url else ""
        rows: list[Row] = [
            ("Agent", f"{prepared.agent.name} ({request.module})"),
            ("Model", f"{request.model}{at}"),
            ("Rows", prepared.selection.drawn.words),
            *(("Eval function", f"{each.name} ({each.mode})") for each in prepared.eval_fns),
            ("Runs", f"{formats.count(plan.total)} ({request.n} per row, {request.batch_size} at once)"),
            ("Servers", plan.servers),
            ("Run directory", shown_path(plan.directory.path)),
        ]
        self._output.show(Table(("", ""), rows, title="Evaluation"))
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
        self.note(f"{message} …")

    def recorded(self, record: TerminalRecord) -> None:
        self._ended = min(self._ended + 1, self._total)
        if self._quiet:
            return
        self._lines.append(run_line(record, self._ended, self._total, self._prepared.request))
        # Above a progress bar a line takes more than a millisecond, which delays all rollouts, so lines are batched.
        if not self._output.animated:
            self._show_lines()

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Update the progress bar on a terminal; otherwise the lines of the runs suffice."""
        self._show_lines()
        if self._output.animated and not self._quiet and (self._bar is not None or snapshot.in_flight):
            self._move_bar(
                "Evaluating", snapshot.completed, snapshot.total, "runs", evaluation_note(snapshot)
            )

    def ended(self) -> None:
        self._show_lines()
        super().ended()

    def _show_lines(self) -> None:
        if self._lines:
            self._output.note("\n".join(self._lines))
            self._lines.clear()

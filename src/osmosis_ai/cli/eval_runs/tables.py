"""The plan before a run and the results after it, as people see them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import Block, Cell, Column, Row, Styled, Table, Text
from osmosis_ai.evaluation.headline import Headline, spread_words
from osmosis_ai.evaluation.result_words import amount, number_lines, sample_counts

if TYPE_CHECKING:
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.comparison.run_samples import RunSlice
    from osmosis_ai.evaluation.hooks import RunPlan
    from osmosis_ai.evaluation.metrics_models import Estimates
    from osmosis_ai.evaluation.summary import FailedRow, RunSummary
    from osmosis_ai.services.eval_runs.run import EvalRunResult, PreparedEvalRun
    from osmosis_ai.services.eval_runs.watch import WatchedRun

SHOWN_FAILURES = 10
_MAX_ERROR = 160
# As a pattern for the shell a path fits on a line, and can still be pasted.
_ID_PREFIX = 8


def plan(plan: RunPlan, prepared: PreparedEvalRun) -> Table:
    """Return what is about to happen."""
    spec, request = prepared.spec, prepared.request
    rows: list[Row] = [
        ("Run", f"{plan.run_name} (continued)" if plan.continued else plan.run_name),
        ("Rollout", spec.experiment.rollout),
        ("Entrypoint", spec.experiment.entrypoint),
        ("Model", spec.experiment.model_path),
        ("Dataset", f"{spec.experiment.dataset} ({shown_path(prepared.dataset.path)})"),
        ("Rows", _rows(prepared)),
        ("Runs Per Row", spec.evaluation.n),
        ("Work Items", _work_items(plan)),
        ("Servers", plan.servers),
        ("Seed", request.seed),
        ("Output", shown_path(plan.run_dir)),
    ]
    if spec.experiment.branch or spec.experiment.commit_sha:
        rows.insert(5, ("Branch/Commit", spec.experiment.branch or spec.experiment.commit_sha))
    return Table(columns=("", ""), rows=rows, title="Local Evaluation")


def message(summary: RunSummary) -> str:
    """Return the result in a sentence."""
    where = shown_path(summary.run_dir)
    if summary.complete:
        return f"Evaluation run finished: {where}"
    reason = summary.stop.reason.splitlines()[0].rstrip(".:") if summary.stop is not None else ""
    why = f" ({reason})" if reason and summary.stop is not None and summary.stop.kind != "interrupted" else ""
    left = f"{formats.count(summary.pending)} of {formats.count(summary.total_work_items)} work items are pending"
    return f"Evaluation run interrupted: {where}{why}. {left}."


def results(summary: RunSummary, by_slice: Sequence[RunSlice] = ()) -> list[Block]:
    """Return the failures and the numbers, those of slices too."""
    failures: list[Block] = [_failed_rows(summary)] if summary.failures else []
    return [
        *failures,
        *numbers(summary.metrics.estimates, summary.rows, list(_of_this_machine(summary))),
        *slices(by_slice),
        headline(summary.headline),
    ]


def recorded_results(seen: WatchedRun) -> list[Block]:
    """Return the numbers that a run has written down."""
    estimates = seen.estimates
    if estimates is None:
        return []
    return [*numbers(estimates, seen.rows), headline(Headline.of(estimates, seen.rows))]


def numbers(estimates: Estimates, rows: RowsDrawn | None, more: Sequence[Row] = ()) -> list[Block]:
    """Return an evaluation's numbers with their intervals and denominators, wherever it was made."""
    columns = ("", Column("Value", right=True), Column("95 % interval"), Column("Over"))
    results = [*_numbers(estimates), *_warnings(estimates)]
    return [
        Table(columns, results, title="Results", in_plain=True),
        Table(("", ""), [*sample_counts(estimates, rows), *more], title="Samples", in_plain=True),
        *_row_behaviour(estimates),
    ]


def slices(found: Sequence[RunSlice]) -> list[Block]:
    """Return a table for each column of slices."""
    headings = ("Rows", "Samples", "Pass rate", "95 % interval", "Reward", "95 % interval")
    columns = (Column("", keep=True), *(Column(heading, right=True) for heading in headings))
    return [
        Table(columns, [_slice_cells(each) for each in chosen], title=f"By {column}", in_plain=True)
        for column, chosen in groupby(found, key=lambda each: each.column)
    ]


def _slice_cells(found: RunSlice) -> Sequence[Cell]:
    name = formats.MISSING if found.value is None else formats.one_line(found.value)
    rate, reward = found.pass_rate, found.reward
    if rate is None or reward is None:
        return name, found.rows, 0, None, None, None, None
    return (
        name,
        found.rows,
        rate.n,
        formats.percent(rate.value),
        formats.interval(rate, percent=True),
        f"{reward.value:.3f}",
        formats.interval(reward),
    )


def headline(found: Headline) -> Text:
    """Return an evaluation's result in a line."""
    return Text(f"Headline: {found.words}", in_plain=True)


def next_steps(result: EvalRunResult) -> list[str]:
    """Return what the user may want to do now."""
    steps = []
    if not result.summary.complete:
        steps.append(f"Resume: {_command(result)}")
        hint = getattr(result.summary.stop and result.summary.stop.error, "hint", None)
        if hint:
            steps.append(f"hint: {hint}")
    if result.summary.failed:
        steps.append(f"Redo the failed attempts: {_command(result, '--retry-failed')}")
    if result.summary.succeeded:
        steps.append(f"Conversations: {shown_path(result.summary.run_dir / 'trajectories')}/")
    steps.append(f"Look at it: {_view_command(result)}")
    return steps


def next_steps_structured(result: EvalRunResult) -> list[Mapping[str, Any]]:
    """Return the same for programs."""
    steps: list[Mapping[str, Any]] = []
    if not result.summary.complete:
        steps.append({"action": "resume", "command": _command(result)})
    if result.summary.failed:
        steps.append({"action": "retry_failed", "command": _command(result, "--retry-failed")})
    steps.append({"action": "view", "command": _view_command(result)})
    return steps


def _view_command(result: EvalRunResult) -> str:
    """Return the command that shows this run in a browser: by its name where runs are, else by its directory."""
    summary, elsewhere = result.summary, result.prepared.request.output is not None
    return shlex.join(["osmosis", "view", shown_path(summary.run_dir) if elsewhere else summary.run_dir.name])


def _rows(prepared: PreparedEvalRun) -> str:
    everything = prepared.request.rows is None and prepared.config.evaluation.limit is None
    note = " (the config sets no limit)" if everything else ""
    return f"{prepared.selection.drawn.words}{note}"


def _work_items(plan: RunPlan) -> str:
    if plan.pending == plan.total:
        return formats.count(plan.total)
    return f"{formats.count(plan.total)} ({formats.count(plan.pending)} pending)"


def _failed_rows(summary: RunSummary) -> Table:
    shown = summary.failures[:SHOWN_FAILURES]
    more = summary.failed - len(shown)
    further = f"; {formats.count(more)} more failed rows are in its events.jsonl" if more > 0 else ""
    return Table(
        columns=("Row", "Source", "Run", "Boundary", "Error type", "Error", Column("Files", keep=True)),
        rows=[_failed_row(failure) for failure in shown],
        title="Failed rows",
        note=f"files are in {shown_path(shown[0].rollout_dir.parent)}" + further,
        in_plain=True,
    )


def _failed_row(failure: FailedRow) -> Sequence[Cell]:
    record = failure.record
    error = formats.one_line(record.error or "")
    return (
        record.row_index,
        record.source_row_index,
        record.run_index,
        record.boundary,
        Styled(record.error_type or "", "bad"),
        error if len(error) <= _MAX_ERROR else error[: _MAX_ERROR - 1] + "…",
        f"{failure.rollout_dir.name[:_ID_PREFIX]}*",
    )


def _numbers(estimates: Estimates) -> Iterator[Sequence[Cell]]:
    for line in number_lines(estimates):
        yield (
            line.label,
            Styled(line.value, "strong") if line.is_result else line.value,
            line.interval,
            line.over,
        )


def _row_behaviour(estimates: Estimates) -> Iterator[Block]:
    """Yield the rows that pass now and then, and whether more rows or more attempts would help."""
    flaky = estimates.flaky
    if flaky is not None and flaky.worst:
        shown = len(flaky.worst)
        listed = f"; the {shown} that passed least are listed" if shown < flaky.count else ""
        yield Table(
            ("Row", "Source", Column("Passed", right=True)),
            [
                (row.row_index, row.source_row_index, Styled(f"{row.passed} of {row.scored}", "warn"))
                for row in flaky.worst
            ],
            title="Flaky rows",
            note=f"{formats.count(flaky.count)} of {amount(flaky.of, 'row')} passed some of their attempts{listed}",
            in_plain=True,
        )
    words = spread_words(estimates.variance) if estimates.variance is not None else None
    if words is not None:
        yield Text(f"{words[:1].upper()}{words[1:]}.", in_plain=True)


def _warnings(estimates: Estimates) -> Iterator[Sequence[Cell]]:
    for warning in estimates.warnings:
        yield Styled("Warning", "warn"), "", "", Styled(warning, "warn")


def _of_this_machine(summary: RunSummary) -> Iterator[Row]:
    if summary.pending:
        yield "Pending", Styled(formats.count(summary.pending), "pending")
    if summary.resumed:
        yield "From earlier sessions", formats.count(summary.resumed)
    yield "Duration", formats.duration(summary.duration_ms / 1000)
    yield "Output", shown_path(summary.run_dir)


def _command(result: EvalRunResult, *extra: str) -> str:
    """Return the command that continues this run, by its directory's name: one put aside was made under another."""
    request, summary = result.prepared.request, result.summary
    words = ["osmosis", "eval", "run", str(request.config), "--name", summary.run_dir.name]
    return shlex.join([*words, *request.options(), *extra])

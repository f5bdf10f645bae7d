"""Output of evaluations: lists, details, progress and results, local and on the platform."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.cli.application import current_env_file, environment_with_file
from osmosis_ai.cli.connection import platform_context, platform_when_needed
from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import Declined, OutputContext, current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import (
    Block,
    Cell,
    Column,
    DetailResult,
    ListResult,
    Row,
    Section,
    Status,
    Styled,
    Table,
    Text,
    Timestamp,
    joined,
)
from osmosis_ai.cli.runs import RunStanding, RunView, evaluation_note
from osmosis_ai.config.sections import EvaluationSettings
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks, RunSummary
from osmosis_ai.evaluation.manifest import RunPlan
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.services.context import find_checkout_if_any
from osmosis_ai.services.downloaded_runs import fetching, is_download, is_downloaded_run
from osmosis_ai.services.eval_runs import info, local_runs, resolver
from osmosis_ai.services.eval_runs.info import DescribedEvaluation, EvaluationLook
from osmosis_ai.services.eval_runs.run import PreparedEvalRun, find_secret_values
from osmosis_ai.services.runs.download import save_metrics
from osmosis_ai.ui import numbers, run_numbers
from osmosis_ai.ui.numbers import amount
from osmosis_ai.viewer.source import RunDetail, RunEntry

if TYPE_CHECKING:
    from osmosis_ai.decisions.samples import RunSlice

SHOWN_FAILURES = 10
_MAX_ERROR = 160
# Fewer rows do not show how rows differ.
_MIN_VARIANCE_ROWS = 10
# A shell pattern keeps a path short enough for a line, and it can still be pasted.
_ID_PREFIX = 8


def finished_message(summary: RunSummary) -> str:
    where = shown_path(summary.run_dir)
    if summary.complete:
        return f"Evaluation run finished: {where}"
    reason = summary.stop.reason.splitlines()[0].rstrip(".:") if summary.stop is not None else ""
    why = f" ({reason})" if reason and summary.stop is not None and summary.stop.kind != "interrupted" else ""
    left = f"{formats.count(summary.pending)} of {formats.count(summary.total_work_items)} attempts"
    return f"Evaluation run interrupted: {where}{why}. {left} are pending."


def result_blocks(summary: RunSummary, by_slice: Sequence[RunSlice]) -> list[Block]:
    session: list[tuple[str, str]] = []
    verbose = current().verbose
    if summary.failures and not verbose:
        record = summary.failures[0]
        error = formats.one_line(record.error or record.category or "")[:_MAX_ERROR]
        session.append(("First failure", f"row {record.row_index}, attempt {record.run_index}: {error}"))
    if verbose:
        session.append(("From earlier sessions", formats.count(summary.resumed)))
        session.append(("Duration", formats.duration(summary.duration_ms / 1000)))
    saved = Text(f"Saved to {shown_path(summary.run_dir)}", in_plain=True)
    return [
        *([_failed_rows(summary)] if verbose and summary.failures else []),
        *number_blocks(summary.metrics.estimates, summary.rows if verbose else None, session),
        *slice_tables(by_slice),
        *result_line(summary.headline),
        *([saved] if summary.complete else []),
    ]


def recorded_results(seen: local_runs.WatchedRun) -> list[Block]:
    estimates = seen.estimates
    if estimates is None:
        return []
    return [*number_blocks(estimates, seen.rows), *result_line(RunScore.of(estimates, seen.rows))]


def number_blocks(
    estimates: Estimates, rows: RowsDrawn | None, more: Sequence[tuple[str, str]] = ()
) -> list[Block]:
    """Return an evaluation's main numbers, or with ``--verbose`` all of them."""
    if not current().verbose:
        shown = [f"{'Results':<32}95% CI", *_main_numbers(estimates), *_circumstances(estimates, rows, more)]
        return [Text("\n".join(shown), in_plain=True)]
    columns = ("", Column("Value", right=True), Column("95% CI"), Column("Over"))
    lines: list[Sequence[Cell]] = [
        (line.label, Styled(line.value, "strong") if line.is_result else line.value, line.interval, line.over)
        for line in run_numbers.number_lines(estimates)
    ]
    lines += [(Styled("Warning", "warn"), "", "", Styled(text, "warn")) for text in estimates.warnings]
    return [
        Table(columns, lines, title="Results", in_plain=True),
        Table(
            ("", ""), [*run_numbers.sample_counts(estimates, rows), *more], title="Attempts", in_plain=True
        ),
        *_row_behaviour(estimates),
    ]


def _main_numbers(estimates: Estimates) -> Iterator[str]:
    """Yield a line for each number that decides, with its interval and its meaning, and one for what was spent."""
    counts, rate, reward = estimates.counts, estimates.pass_rate, estimates.reward
    scored = f"{amount(counts.scored, 'attempt')} scored, {sum(counts.failed_by_boundary.values()):,} failed"
    rates = [("Pass rate", rate, f"reward ≥ {float(estimates.pass_threshold)}, {scored}")]
    for sign, meaning, found in (
        ("@", "at least one of {} attempts passes", estimates.pass_at_k),
        ("^", "all {} attempts pass", estimates.pass_hat_k),
    ):
        rates += [(f"pass{sign}{k}", each, meaning.format(k)) for k, each in [*found.items()][-1:] if k > 1]
    for label, each, meaning in rates:
        if each is None:
            yield _number(label, "unknown", "", meaning)
        else:
            meaning = f"mean over {amount(each.clusters, 'row')}: {meaning}"
            yield _number(label, formats.percent(each.value), formats.interval(each, percent=True), meaning)
    if reward is not None and rate is not None and reward.value != rate.value:
        meaning = f"mean over {amount(reward.clusters, 'row')}"
        yield _number("Reward", formats.number(reward.value), formats.interval(reward), meaning)
    spent = []
    if (latency := estimates.latency.rollout_ms) is not None:
        p50, p95 = (formats.duration(each / 1000) for each in (latency.p50, latency.p95))
        spent.append(f"Latency    {p50} p50 · {p95} p95")
    tokens, cost = estimates.tokens, estimates.cost_usd.total
    if tokens.known_samples or not tokens.unreported_samples:
        spent.append(f"Tokens {tokens.total:,}")
    if cost is not None:
        spent.append(f"Cost {formats.money(cost)}")
    if spent:
        yield f"  {'        '.join(spent)}"


def _number(label: str, value: str, interval: str, meaning: str) -> str:
    if interval.startswith("none: "):
        meaning, interval = f"{meaning} (no interval: {interval.removeprefix('none: ')})", formats.MISSING
    return f"  {label:<10}{value:>9}{interval:>18}     {meaning}"


def _circumstances(
    estimates: Estimates, rows: RowsDrawn | None, more: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield what limits the numbers: rows, failures, unfinished attempts, warnings, rows with mixed outcomes."""
    hidden = ("Scored", "Bottleneck", "  infrastructure failures")
    for label, text in [*run_numbers.sample_counts(estimates, rows), *more]:
        if label not in hidden:
            yield f"  {label:<26}{text}"
    for line in run_numbers.number_lines(estimates):
        if line.label == "Judges":
            yield f"  {line.label:<26}{line.value}, {line.over}"
    for warning in estimates.warnings:
        yield f"  Warning: {warning}"
    if (mixed := estimates.flaky) is not None and mixed.count:
        yield ""
        yield f"{formats.count(mixed.count)} of {amount(mixed.of, 'row')} had mixed outcomes."


def slice_tables(found: Sequence[RunSlice]) -> list[Block]:
    headings = ("Rows", "Samples", "Pass rate", "95% CI", "Reward", "95% CI")
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
        formats.number(reward.value),
        formats.interval(reward),
    )


def result_line(found: RunScore, *, is_alone: bool = False) -> list[Block]:
    """Return the result in a line, if ``is_alone`` or with ``--verbose``; the main numbers say it otherwise."""
    is_shown = is_alone or current().verbose
    return [Text(f"Result: {run_numbers.describe_score(found)}", in_plain=True)] if is_shown else []


def next_steps(
    prepared: PreparedEvalRun, summary: RunSummary
) -> tuple[list[tuple[str, str]], list[Mapping[str, Any]]]:
    """Return the commands to continue with, for people and for scripts."""
    request = prepared.request
    # Archiving changes the name of a directory, not the run that a command continues.
    run = ["osmosis", "eval", "run", str(request.config), "--name", summary.run_dir.name]
    words = [*run, *request.options()]
    shown = quote(summary.run_dir.name if request.output is None else shown_path(summary.run_dir))
    view = f"osmosis view {shown}"
    steps = [("browse attempts and conversations", view)]
    structured: list[Mapping[str, Any]] = [{"action": "view", "command": view}]
    if summary.failed:
        retry = shlex.join([*words, "--retry-failed"])
        steps.insert(0, ("read the failed attempts", f"osmosis eval show {shown} --failed"))
        steps.append(("retry the failed attempts with unchanged code", retry))
        structured.insert(0, {"action": "retry_failed", "command": retry})
    if not summary.complete:
        budget = request.run.budget
        limits = {
            "--max-cost": budget.max_cost_usd,
            budget.tokens_option: budget.max_tokens,
            "--max-time": budget.max_time_s,
        }
        is_spent = summary.stop is not None and summary.stop.kind == "budget"
        kept = [
            word
            for option, limit in limits.items()
            if limit is not None and not is_spent
            for word in (option, f"{limit:.12g}")
        ]
        resume = shlex.join([*words, *kept])
        steps.insert(0, ("resume without a budget" if is_spent else "resume", resume))
        structured.insert(0, {"action": "resume", "command": resume})
    steps.append(("compare with an earlier run", f"osmosis eval compare BASELINE {shown}"))
    steps.append(("all metrics and provenance", f"osmosis eval info {shown} --verbose"))
    return steps[:3], structured


def _failed_rows(summary: RunSummary) -> Table:
    shown = summary.failures[:SHOWN_FAILURES]
    more = summary.failed - len(shown)
    further = f"; {formats.count(more)} more are in events.jsonl" if more > 0 else ""
    return Table(
        columns=("Row", "Dataset row", "Attempt", "Source", "Code", "Error", Column("Files", keep=True)),
        rows=[_failed_row(record) for record in shown],
        title="Failed attempts",
        note=f"files: {shown_path(summary.run_dir / 'rollout_trials')}" + further,
        in_plain=True,
    )


def _failed_row(record: TerminalRecord) -> Sequence[Cell]:
    error = formats.one_line(record.error or "")
    return (
        record.row_index,
        record.source_row_index,
        record.run_index,
        record.boundary,
        Styled(record.category or "", "bad"),
        formats.shortened(error, _MAX_ERROR),
        f"{record.rollout_id[:_ID_PREFIX]}*",
    )


def _row_behaviour(estimates: Estimates) -> Iterator[Block]:
    """Yield the rows with mixed outcomes, and whether more rows or more attempts would help."""
    flaky = estimates.flaky
    if flaky is not None and flaky.worst:
        shown = len(flaky.worst)
        listed = f"; the {shown} with the lowest pass rates are listed" if shown < flaky.count else ""
        yield Table(
            ("Row", "Dataset row", Column("Passed", right=True)),
            [
                (row.row_index, row.source_row_index, Styled(f"{row.passed} of {row.scored}", "warn"))
                for row in flaky.worst
            ],
            title="Rows with mixed outcomes",
            note=f"{formats.count(flaky.count)} of {amount(flaky.of, 'row')} passed only some of their attempts{listed}",
            in_plain=True,
        )
    variance = estimates.variance
    if variance is not None and variance.rows >= _MIN_VARIANCE_ROWS:
        between = variance.between_rows
        if not between:
            advice = "More attempts help as much as more rows."
        elif variance.between_attempts / variance.attempts_per_row < between:
            advice = "More rows help more than more attempts."
        else:
            advice = "More attempts help nearly as much as more rows."
        yield Text(f"Between-row variance: {between:.0%}. {advice}", in_plain=True)


def sliced_info(name: str, output: str | None, columns: Sequence[str]) -> DetailResult:
    shown = VIEW.info(name, output)
    if not columns:
        return shown
    from osmosis_ai.decisions.samples import run_slices
    from osmosis_ai.services.eval_runs.samples import find_run_samples

    with platform_context() as context, current().status("Fetching attempts"):
        found = run_slices(find_run_samples(f"platform:{name}", client=lambda: context.client), columns)
    return replace(
        shown,
        data={**shown.data, "slices": [each.data() for each in found]},
        blocks=[*shown.blocks, *slice_tables(found)],
    )


def _standing(seen: DescribedEvaluation) -> RunStanding:
    run, progress = seen.detail.eval_run, seen.progress
    return RunStanding(
        name=run.name or "Evaluating",
        status=run.status,
        completed=progress.completed if progress else None,
        total=progress.total if progress else None,
        unit="attempts",
        note=evaluation_note(progress) if progress else "",
        waits=seen.detail.waits or "",
        waits_for=seen.detail.waits_for,
        is_retried=run.revision > 0,
    )


def _settings(config: Mapping[str, Any]) -> Iterable[str]:
    known = EvaluationSettings.model_fields
    others = sorted(key for key in config if key not in known and key != "model_path")
    return (
        f"{key}={numbers.setting(config[key])}" for key in (*known, *others) if config.get(key) is not None
    )


def _numbers_of(described: DescribedEvaluation, *, rows: RowsDrawn | None = None) -> Iterator[Block]:
    """Yield the numbers as `eval run` shows them if the platform computes intervals, otherwise those that it has."""
    estimates = described.estimates
    overview = described.metrics.overview if described.metrics else None
    if estimates is None:
        yield Section("Results", [*_results(described), *_spread(described)])
    elif overview is None or overview.total_samples != 0:
        more: list[tuple[str, str]] = []
        if overview is not None and overview.duration_ms is not None and current().verbose:
            more.append(("Duration", formats.duration(overview.duration_ms / 1000)))
        yield from number_blocks(estimates, rows, more)


def _results(described: DescribedEvaluation) -> Iterator[Row]:
    """Yield the result of a run whose platform computes no intervals."""
    headline, metrics = described.headline, described.metrics
    if headline is not None:
        yield "Scored", run_numbers.format_scored(headline)
        if headline.failed:
            yield "Failed", run_numbers.format_failed(headline)
        rule = run_numbers.pass_rule(headline.pass_threshold)
        yield "Pass rate", f"{run_numbers.format_rate(headline)} ({rule})"
        for warning in headline.warnings:
            yield "Warning", Styled(warning, "warn")
    elif metrics is not None and metrics.overview.pass_rate is not None:
        over = formats.count(metrics.overview.completed_samples)
        yield "Pass rate", f"{formats.percent(metrics.overview.pass_rate)} of {over} attempts"


def _spread(described: DescribedEvaluation) -> Iterator[Row]:
    metrics, results = described.metrics, described.detail.results
    stats = (results.reward_stats if results else None) or (metrics.reward_stats if metrics else None) or {}
    names = ("mean", "std", "min", "median", "max")
    known = [f"{name} {stats[name]:.3f}" for name in names if isinstance(stats.get(name), (int, float))]
    if known:
        yield "Reward", " · ".join(known)
    points = stats.get("pass_at_k")
    if not isinstance(points, Mapping):
        points = {point.k: point.value for point in metrics.pass_at_k} if metrics else {}
    for k, value in points.items():
        yield f"pass@{k}", formats.percent(value) if isinstance(value, (int, float)) else None
    if tokens := described.summary.get("total_tokens") or (metrics and metrics.overview.tokens_used):
        yield "Tokens", formats.count(tokens)


def _headline(described: DescribedEvaluation) -> Iterator[Block]:
    yield from _numbers_of(described, rows=info.rows_drawn(described.detail))
    if described.headline is not None:
        yield from result_line(described.headline, is_alone=described.estimates is None)


def _hints(described: DescribedEvaluation, followed: bool) -> list[str]:
    """Return what to do next with a run of the platform."""
    run, name = described.run, quote(described.name)
    failed = described.headline is not None and described.headline.failed
    steps = {
        "open in a browser": run.platform_url,
        "read the log": f"osmosis eval logs {name}" if run.status == "failed" else None,
        "follow the run": None if described.ended else f"osmosis eval watch {name}",
        "stop it": f"osmosis eval stop {name}"
        if not described.ended and "stopping" not in (described.detail.waits or "")
        else None,
        # Only a platform of ours computes intervals and accepts retries.
        "retry the failed attempts": f"osmosis eval retry {name}"
        if failed and described.ended and run.imported is None and described.estimates is not None
        else None,
        "read the conversations": f"osmosis eval show platform:{name}"
        if described.metrics is not None
        else None,
        "show all metrics": f"osmosis eval info {name} --verbose" if followed else None,
    }
    return formats.next_block([(purpose, step) for purpose, step in steps.items() if step][:3])


def _reward(item: Mapping[str, Any]) -> str:
    """Return the mean reward, over scored attempts if the platform reports that."""
    reward = (item["headline"] or {}).get("reward")
    return formats.number(item["summary"].get("avg_reward") if reward is None else reward)


def _result(item: Mapping[str, Any]) -> str | None:
    headline, rows = item["headline"], item["rows"]
    parts = [
        "imported" if "imported" in item else None,
        headline["brief"] if headline is not None else None,
        rows,
    ]
    return "; ".join(filter(None, parts)) or None


def _short_result(item: Mapping[str, Any]) -> str | None:
    """Return a result that fits into a terminal of 120 columns."""
    headline = item["headline"]
    parts = ["imported"] if "imported" in item else []
    if headline is not None:
        rate, failed = headline["pass_rate"], headline["failed"]
        parts.append(
            f"{formats.percent(rate)} pass, " * (rate is not None)
            + f"{headline['scored']:,} of {headline['planned']:,} scored"
            + f", {failed:,} failed" * bool(failed)
        )
    return "; ".join(parts) or None


def _state(described: DescribedEvaluation) -> Iterator[Row]:
    """Yield how far a run is."""
    run, detail, progress = described.run, described.detail, described.summary.get("progress")
    yield "Name", run.name or "(unnamed)"
    if detail.is_internal_user:
        yield "ID", run.id
    yield "Status", Status(run.status) if run.status else None
    if run.error:
        yield "Error", Styled(run.error, "bad")
    if described.waiting:
        yield "Progress", "Waiting to be retried" if run.revision else "Waiting to start"
    elif progress is not None and not described.ended:
        done, total = formats.count(progress["completed"]), formats.count(progress["total"])
        yield "Progress", f"{done} / {total} attempts"
    if detail.waits and not described.ended:
        yield "Waits", Styled(detail.waits, "warn")
    took_ms = described.duration_ms
    yield "Duration", formats.duration(took_ms / 1000 if took_ms is not None else None)
    if described.metrics_error is not None:
        yield "Metrics", f"Not available: {described.metrics_error}"
    elif described.in_progress:
        yield "Note", "The metrics are a snapshot: the run has not ended."
    if run.imported is not None:
        yield "Imported", Styled(run.imported.words, "warn")
    if run.revision:
        yield "Retried", f"{amount(run.revision, 'time')}, last {formats.date(run.retried_at)}"


def _configuration(described: DescribedEvaluation) -> Iterator[Row]:
    run, detail, rows = described.run, described.detail, info.rows_drawn(described.detail)
    yield "Rollout", detail.rollout.name if detail.rollout else None
    yield "Model", described.model
    yield "Dataset", detail.dataset.name if detail.dataset else None
    if rows is not None:
        yield "Rows", rows.words
    for section in VIEW.configuration(described):
        yield from section.rows
    yield "Submitted", Timestamp(run.created_at)
    yield "Submitted by", run.creator_name
    yield "Started", Timestamp(run.started_at)
    if current().verbose:
        yield "Completed", Timestamp(run.completed_at)


def _details(described: DescribedEvaluation) -> DetailResult:
    headline = described.headline
    return DetailResult(
        data={},
        title="Evaluation run",
        rows=list(_state(described)),
        blocks=[
            *_numbers_of(described),
            *(result_line(headline) if headline is not None else ()),
            Section("Configuration", list(_configuration(described))),
        ],
        hints=_hints(described, followed=False),
    )


VIEW = RunView(
    kind="eval",
    columns=(
        Column("Rollout", "rollout"),
        Column("Result (scored attempts)", value=_result, in_rich=False),
        Column("Result (scored attempts)", value=_short_result, in_plain=False),
        Column("Reward", value=_reward, right=True),
    ),
    fetch=info.list_runs,
    item=info.run_item,
    describe=info.describe_run,
    look=EvaluationLook,
    standing=_standing,
    save=lambda context, described, output: save_metrics(
        context.client, described.run, context.workspace, Path(output) if output is not None else None
    ),
    settings=_settings,
    details=_details,
    headline=_headline,
    hints=_hints,
)

ResultT = TypeVar("ResultT")
_ARCHIVES_NAMED = 3
_LOCAL = "(this machine)"

_COLUMNS = ("Name", "Status", "Rollout", "Result (scored attempts)", Column("Reward", right=True), "Started")


def local_run_first(
    run: str, *, local: Callable[[Path], ResultT], remote: Callable[[str], ResultT], downloads: bool = True
) -> ResultT:
    """Return the result for the local run of this name, otherwise for the platform's.

    With ``downloads``, a downloaded run is a local run.
    """
    named = resolver.named_on_platform(run)
    if named is not None:
        return remote(named)
    try:
        directory = resolver.find_local_run(run, downloads=downloads)
    except WorkspaceRequiredError:
        return remote(run)
    except NotFoundError as missing:
        name = resolver.name_elsewhere(run, missing)
        try:
            return remote(name)
        except OsmosisError as error:
            # Without a Git origin, no platform can have the run.
            has_origin = find_checkout_if_any() is not None
            if has_origin and (error.code == "VALIDATION" or not resolver.local_names()):
                raise
            raise resolver.run_not_found(run, missing, error) from None
    return local(directory)


def with_local_runs(
    local: local_runs.LocalRuns, of_platform: Callable[[], ListResult], *, limit: int | None
) -> ListResult:
    """Return the platform's list and the local runs, or only those without a platform.

    In plain mode both together have at most ``limit`` lines.
    """
    extra: dict[str, Any] = {
        "local_runs": [local_runs.local_item(entry) for entry in local.items],
        "local_total_count": local.total,
    }
    if local.archived:
        extra["local_archived"] = list(local.archived)
    hints = []
    if names := local.archived:
        more = f" and {len(names) - _ARCHIVES_NAMED} more" if len(names) > _ARCHIVES_NAMED else ""
        runs = "run was" if len(names) == 1 else "runs were"
        hints.append(f"{len(names)} {runs} archived by --fresh: {', '.join(names[:_ARCHIVES_NAMED])}{more}")
    if local.unreadable:
        extra["local_unreadable"] = list(local.unreadable)
        current().note(f"Runs without read permission are not listed: {', '.join(local.unreadable)}")
    for entry in local.items:
        if entry.error is not None and entry.headline is not None:
            current().warn(f"{entry.name}: {formats.one_line(entry.error)}")
    try:
        found = of_platform()
    except OsmosisError as error:
        local_list = ListResult([], title="", extra=extra, hints=hints, blocks=_local_blocks(local, limit))
        if not local.items:
            if local_runs.is_without_platform(error):
                first = f"to start on this machine: {local_runs.first_run_command()}"
                error.hint = f"{error.hint}; {first}" if error.hint else first
            raise
        if local_runs.is_without_platform(error):
            current().note(f"Only local runs are listed: {error.message}")
            return local_list
        if current().mode == "json":
            error.details |= extra
        else:
            current().emit(local_list)
        raise
    room = None if limit is None else limit - len(found.items)
    return replace(
        found,
        extra={**found.extra, **extra},
        blocks=[*found.blocks, *_local_blocks(local, room)],
        hints=[*found.hints, *hints],
    )


def local_info(directory: Path, output: str | None, columns: Sequence[str]) -> DetailResult:
    if output is not None:
        raise OsmosisError(
            f"{directory.name} is a local run; its numbers are in {directory / 'metrics.json'}.",
            hint="omit --output, or select the platform's run with platform:NAME",
        )
    detail = local_runs.describe_local_run(directory)
    entry, estimates = detail.summary, detail.estimates
    slices: Sequence[RunSlice] = ()
    if columns:
        if is_download(directory):
            raise resolver.download_without_rows(directory)
        from osmosis_ai.decisions.samples import run_slices
        from osmosis_ai.services.eval_runs.samples import read_run_directory

        with platform_when_needed() as client:
            slices = run_slices(read_run_directory(directory, client=client), columns)
    shown = quote(formats.shown_path(directory))
    steps = [
        ("retry the failed attempts" if "--retry-failed" in command else "resume the run", command)
        for command in detail.commands
    ]
    if is_downloaded_run(directory):
        steps.append(("read the conversations", f"osmosis eval show {shown}"))
        steps.append(("write a page", f"osmosis view {shown} --report FILE.html"))
    elif is_download(directory):
        steps.append(("fetch the attempts", fetching(directory, "trajectories")))
    else:
        steps.append(("browse attempts and conversations", f"osmosis view {shown}"))
        if not current().verbose:
            steps.append(("all metrics and provenance", f"osmosis eval info {shown} --verbose"))
    headline = entry.headline
    blocks: list[Block] = []
    if estimates is not None:
        blocks += number_blocks(estimates, headline.rows if headline is not None else None)
    blocks += slice_tables(slices)
    if headline is not None:
        blocks += result_line(headline, is_alone=estimates is None)
    verbose = current().verbose
    facts: list[Row] = [fact for fact in detail.facts if verbose or fact[0] not in _VERBOSE_FACTS]
    blocks.append(Section("Configuration", facts))
    if detail.config_written is not None and verbose:
        blocks.append(Text(detail.config_written, title="Configuration file"))
    return DetailResult(
        data={
            "local_run": local_runs.local_item(entry, directory),
            "headline": run_numbers.score_json(headline),
            "metrics": {
                **detail.summary_numbers,
                "estimates": estimates.model_dump(mode="json") if estimates is not None else None,
            },
            "config": dict(detail.config_effective),
            "config_written": detail.config_written,
            "secret_names": list(detail.secret_names),
            "problems": list(detail.problems),
            "commands": list(detail.commands),
            **({"slices": [each.data() for each in slices]} if columns else {}),
        },
        title="Downloaded evaluation run" if is_download(directory) else "Local evaluation run",
        rows=list(_rows(detail)),
        blocks=blocks,
        hints=formats.next_block(steps[:3]),
    )


_VERBOSE_FACTS = frozenset(
    {
        "Dataset's SHA-256",
        "Digest of the source",
        "Grader",
        "Agent's time limit (s)",
        "Grader's time limit (s)",
        "Osmosis version",
        "Run id",
    }
)


def _rows(detail: RunDetail) -> Iterator[Row]:
    entry = detail.summary
    yield "Name", entry.name
    yield "Status", Status(entry.status)
    for problem in detail.problems:
        yield "Problem", Styled(problem, "bad")
    if entry.started_at is not None:
        yield "Started", Timestamp(entry.started_at.isoformat())
    if entry.duration_s is not None:
        yield "Duration", formats.duration(entry.duration_s)
    if detail.previous is not None:
        yield "Previous run", detail.previous.name


def _local_blocks(local: local_runs.LocalRuns, limit: int | None) -> list[Block]:
    """Return a table of the local runs, or in plain mode at most ``limit`` lines with the platform's columns."""
    if current().mode == "plain":
        # The last column of a platform's run is its submitter.
        lines = [joined([*_cells(entry), _LOCAL]) for entry in local.items[:limit]]
        return [Text("\n".join(lines), in_plain=True)] if lines else []
    more = f", {len(local.items)} of {local.total}" if local.total > len(local.items) else ""
    rows = [_cells(entry) for entry in local.items]
    return [Table(_COLUMNS, rows, title=f"Local runs{more}")] if rows else []


def _cells(entry: RunEntry) -> Sequence[Cell]:
    headline = entry.headline
    result = (
        run_numbers.describe_briefly(headline)
        if headline is not None
        else Styled(entry.error, "bad")
        if entry.error
        else None
    )
    return (
        entry.name,
        Status(entry.status),
        entry.rollout,
        result,
        formats.number(entry.reward),
        Timestamp(entry.started_at.isoformat()) if entry.started_at is not None else None,
    )


QUIT_AT_ONCE = "Interrupted. Run the same command to resume the pending attempts."


class LiveRun(GracefulStop, RunHooks):
    """Shows a run on the terminal; a context manager."""

    quit_status = 1  # the public CLI exits with 1, too

    def __init__(self, output: OutputContext, prepared: PreparedEvalRun, *, yes: bool) -> None:
        super().__init__(output, ["eval", "run"], quit_at_once=QUIT_AT_ONCE)
        self._prepared = prepared
        self._yes = yes or prepared.served
        self._plan: RunPlan | None = None

    def plan(self, plan: RunPlan) -> None:
        self._plan, prepared, spec = plan, self._prepared, self._prepared.spec
        attempts = f"{prepared.selection.drawn.words} × {amount(spec.evaluation.n, 'attempt')}"
        pending = f" ({formats.count(plan.pending)} pending)" if plan.pending != plan.total else ""
        seed = f"seed {prepared.request.run.seed}"
        parts = (spec.experiment.rollout, spec.experiment.model_path, attempts + pending, seed)
        self._output.show(Text(" · ".join(parts)))
        for note in prepared.notes:
            self._output.warn(note)
        if plan.archived is not None:
            self.note(f"Archived the earlier run as {plan.archived.name}.")
        if plan.was_found and plan.pending:
            self.note(
                f"Continuing {plan.name}: {formats.count(plan.resumed)} of {formats.count(plan.total)} "
                "attempts are finished. Use '--fresh' to start over."
            )

    def note(self, message: str) -> None:
        self._output.note(message)

    def stage(self, message: str) -> None:
        """Show the current stage, unless the log shows it anyway."""
        if not self._prepared.request.run.verbose:
            self._show_stage(message)

    def log_event(self, event: LogEvent) -> None:
        self._output.note(event.to_line())

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Update the progress bar once an attempt has started."""
        if self._bar is not None or snapshot.in_flight or snapshot.finished:
            self._move_bar(
                "Evaluating", snapshot.completed, snapshot.total, "attempts", evaluation_note(snapshot)
            )

    async def confirm_dispatch(self, *, pending: int, model_path: str) -> bool:
        """Ask before spending; built-in models cost nothing, so the answer is yes."""
        assert self._plan is not None
        self._output.confirm(
            f"Run {amount(pending, 'attempt')} with model {model_path}?",
            yes=self._yes,
            default=False,
            summary={"Run": self._plan.name, "Rollouts": str(pending), "Model": model_path},
            notes=self._prepared.notes,
        )
        return True

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        """Read secrets from the secrets file, the environment, the `.env` file, or a prompt."""
        given = self._prepared.request.secret_values or {}
        file = current_env_file()
        found = find_secret_values(names, given=given, environ=environment_with_file(), ask=self._ask)
        if file is not None:
            file.refuse_foreign_keys({**os.environ, **found})
        return found

    def _ask(self, name: str) -> str | None:
        """Ask for a secret on a terminal; return None without one."""
        if not self._output.interactive:
            return None
        typed = self._output.ask_hidden(name)
        if typed is None:
            raise Declined(name)
        return typed

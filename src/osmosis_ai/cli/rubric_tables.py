"""Output of `osmosis eval rubric`: progress, scores and the agreement of judges."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import Block, Column, Row, Styled, Table, Text
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks
from osmosis_ai.rubric.documents import describe_outside_scale
from osmosis_ai.ui.numbers import amount

if TYPE_CHECKING:
    from osmosis_ai.rubric.agreement import AgreementReport
    from osmosis_ai.rubric.documents import CallStatus, SessionComparison
    from osmosis_ai.rubric.session import JudgingSession
    from osmosis_ai.services.rubric import RubricOutcome


class LiveSession(GracefulStop, RunHooks):
    """The session's side of the terminal; a context manager around it."""

    def __init__(self, output: OutputContext, words: list[str]) -> None:
        kept = "Interrupted. Run the same command with `--resume` to go on: what was scored is kept."
        super().__init__(output, words, quit_at_once=kept)

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Move the bar; a single call has none."""
        if snapshot.total > 1:
            mean = [] if snapshot.reward_mean is None else [f"mean {snapshot.reward_mean:.3f}"]
            parts = [
                *mean,
                *formats.spent(snapshot, failed="without a score"),
                f"{snapshot.in_flight} in flight",
            ]
            self._move_bar("Judging", snapshot.completed, snapshot.total, "calls", " · ".join(parts))


SHOWN_DISPUTES = 5


def _agreement_blocks(report: AgreementReport, *, with_page: bool) -> Iterator[Block]:
    """Yield every figure with its interval and denominators, and the records on which scores differ most."""
    from itertools import groupby, islice

    from osmosis_ai.rubric.agreement import ScoreFormat, agreement_tables, not_measured

    tables = agreement_tables(report)
    for table in tables:
        if table.rows:
            columns = [Column(heading, right=place > 1) for place, heading in enumerate(table.headings)]
            yield Table(columns, table.rows, title=table.title, note=table.note, in_plain=True)
    scale = ScoreFormat(report.score_min, report.score_max)
    disputes = [
        (between, f"{each.record:,}", each.label, *map(scale.points, each.scores))
        for between, found in groupby(report.disputed, lambda each: each.between)
        for each in islice(found, SHOWN_DISPUTES)
    ]
    if disputes:
        headings = ("Between", "#", "Record", "Score", "Score")
        columns = [Column(each, right=each in ("#", "Score")) for each in headings]
        yield Table(columns, disputes, title="Largest disagreements", in_plain=True)
        if not with_page:
            yield Text("`--report report.html` shows their texts and explanations.", tone="dim")
    if missing := not_measured(tables):
        yield Text("\n".join(missing), tone="dim", in_plain=True)


_LONGEST = 280
# Least, greatest and counts say more of how much was judged than of how well: the file has them.
_COMPARED = ("average", "variance", "stdev")
# As many records as a screen or two hold, whatever the number of calls about each.
_LISTED_CALLS, _LEAST_RECORDS = 40, 3


def blocks(outcome: RubricOutcome) -> list[Block]:
    """Return the records, the statistics, what is known of the judges, and the comparison."""
    session = outcome.session
    shown: list[Block] = [Text("\n".join(_head(outcome)), in_plain=True)]
    listed = outcome.records[: max(_LEAST_RECORDS, _LISTED_CALLS // session.spec.calls_per_record)]
    shown += [Text("\n".join(_record_lines(entry)), in_plain=True) for entry in listed]
    more = len(session.index) - len(listed)
    if more > 0:
        rest = f"… {amount(more, 'more record')} in {shown_path(outcome.session.output)}"
        shown.append(Text(rest, tone="dim", in_plain=True))
    return [*shown, *_conclusions(outcome)]


def scores(outcome: RubricOutcome) -> list[Block]:
    """Return a line for each record, its label, its average and its scores, and what follows from them."""
    rows = [
        (
            entry["label"],
            f"{entry['statistics']['average']:.4f}" if entry["scores"] else None,
            *(f"{score:.4f}" for score in entry["scores"]),
        )
        for entry in outcome.records
    ]
    return [Table(("Record", "Average", "Scores"), rows, in_plain=True), *_conclusions(outcome)]


def _conclusions(outcome: RubricOutcome) -> Iterator[Block]:
    yield Table(("", ""), [*_overall(outcome)], title="Overall Statistics", in_plain=True)
    yield from _agreement_blocks(outcome.agreement, with_page=outcome.prepared.report is not None)
    if outcome.comparison is not None:
        yield Text("\n".join(_baseline_lines(outcome.comparison)), in_plain=True)


def _head(outcome: RubricOutcome) -> Iterator[str]:
    prepared, session = outcome.prepared, outcome.session
    if prepared.request.classic:
        yield f"Rubric: {session.spec.rubric.rubric_id} ({prepared.spec.rubric.source})"
        yield f"Provider: {prepared.provider_shown}"
        yield f"Model: {prepared.model_shown}"
        yield f"Loaded {formats.count(len(session.index))} matching record(s) from {prepared.request.data}"
        yield f"Running {formats.count(session.spec.runs)} evaluation(s) per record"
        return
    yield f"Model: {', '.join(session.spec.model_names)}"
    yield f"Evaluated {amount(len(session.index), 'record')} from {prepared.request.data}"
    runs = "Calls per record and judge" if len(session.spec.judges) > 1 else "Runs per record"
    yield f"{runs}: {session.spec.runs}"


def message(outcome: RubricOutcome) -> str:
    """Return why a session that was halted ended, in a sentence."""
    stop, session = outcome.session.stop, outcome.session
    why = "interrupted" if stop is None or stop.kind == "interrupted" else f"stopped ({stop.reason})"
    left = (
        f"{formats.count(session.count('pending'))} of {formats.count(len(session.calls))} calls are pending"
    )
    return f"Rubric evaluation {why}. {left}."


def what_is_missing(outcome: RubricOutcome) -> str:
    """Return how many calls have no score, by reason, and one of the errors."""
    session = outcome.session
    parts = [f"{count} {status} ({reasons})" for status, count, reasons in _without_score(session)]
    if pending := session.count("pending"):
        parts.append(f"{formats.count(pending)} pending")
    missing = f"{amount(len(session.calls), 'call')}: {', '.join(parts)}."
    first = session.stop.reason if session.stop is not None else _first_error(outcome)
    return f"{missing} {first}".rstrip()


def _without_score(session: JudgingSession) -> Iterator[tuple[CallStatus, str, str]]:
    """Yield what became of calls without a score, how many, and why."""
    statuses: tuple[CallStatus, ...] = ("failed", "unscored")
    for status in statuses:
        if reasons := session.reasons(status):
            listed = ", ".join(f"{formats.count(count)} {reason}" for reason, count in reasons.items())
            yield status, formats.count(sum(reasons.values())), listed


def next_steps(outcome: RubricOutcome) -> list[str]:
    """Return the written files and the next commands."""
    what = "evaluation results" if outcome.prepared.request.classic else "results"
    steps = [f"Wrote {what} to {shown_path(outcome.session.output)}"]
    if outcome.prepared.report is not None:
        steps.append(f"Report: {shown_path(outcome.prepared.report)}")
    if outcome.journal_path is not None:
        steps.append(f"Resume: {resume_command(outcome)}")
    return steps


def resume_command(outcome: RubricOutcome) -> str:
    """Return the command that resumes the session; it never contains a key."""
    request = outcome.prepared.request
    words = ["osmosis", "eval-rubric"] if request.classic else ["osmosis", "eval", "rubric"]
    words += ["--data", str(request.data), "--rubric", request.rubric]
    options: list[tuple[str, object]] = [
        ("--config", request.config),
        *(("--model", model) for model in request.models),
        ("--number", request.number if request.number > 1 else None),
        ("--score-min", request.score_min),
        ("--score-max", request.score_max),
        ("--timeout", request.timeout_s),
        # A query string may hold a key.
        ("--api-base", request.api_base and request.api_base.partition("?")[0]),
        ("--output", request.output),
        ("--report", request.report),
        ("--baseline", request.baseline),
        ("--concurrency", request.concurrency),
        ("--seed", request.seed or None),
    ]
    for option, value in options:
        if value is not None:
            words += [option, str(value)]
    if (limits := request.budget) is not None:
        stop = outcome.session.stop
        is_spent = stop is not None and stop.kind == "budget"
        budget = {
            "--max-cost": limits.max_cost_usd,
            "--max-tokens": limits.max_tokens,
            "--max-time": limits.max_time_s,
        }
        for option, limit in budget.items():
            if limit is not None:
                words += [option, "HIGHER" if is_spent else str(limit)]
    if request.swap:
        words.append("--swap")
    if not request.report_text:
        words.append("--no-text")
    return shlex.join([*words, "--resume"])


def _baseline_lines(comparison: SessionComparison) -> Iterator[str]:
    """Yield the verdict, the records it is over, what differs, and the shift of the statistics."""
    yield f"Baseline comparison (source: {comparison.baseline.source_path}):"
    yield f"  {comparison.verdict}"
    if comparison.paired_by:
        yield f"  Paired by {comparison.paired_by}: {amount(comparison.common, 'record')} in both"
    yield from (f"  {_short(change)}" for change in comparison.changes)
    yield from (f"  warning: {warning}" for warning in comparison.warnings)
    for key in _COMPARED:
        delta = comparison.delta_statistics.get(key)
        if delta is not None:
            before = comparison.baseline.statistics[key]
            digits = 6 if key == "variance" else 4
            now = before + delta
            delta = round(delta, digits) + 0.0  # no negative zero
            yield f"  {key} baseline={before:.{digits}f} current={now:.{digits}f} delta={delta:+.{digits}f}"


def _record_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one record, of either form of entry."""
    if "judgements" not in entry:
        yield from _classic_lines(entry)
        return
    yield f"[{entry['label']}]"
    several = len({judgement["model"] for judgement in entry["judgements"]}) > 1
    for judgement in entry["judgements"]:
        who = f" {judgement['model']}" if several else ""
        if judgement["score"] is not None:
            yield f"  Run {judgement['run']:02d}{who}: score={judgement['score']:.4f}"
            yield f"    explanation: {_short(judgement['explanation'])}"
        else:
            status = "ERROR" if judgement["status"] == "failed" else judgement["status"].upper()
            yield f"  {status}{who}: {_short(judgement.get('error') or 'not judged yet')}"
    if len(entry["scores"]) > 1:
        yield "  Summary: " + _summary(entry["statistics"])
    if entry.get("consensus") is not None:
        yield f"  Consensus: {entry['consensus']:.4f}"


def _classic_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{entry['conversation_id']}]"
    for run in entry["runs"]:
        yield f"  Run {run['run_index']:02d} [{run['status'].upper()}]"
        if run["score"] is not None:
            yield f"    score: {run['score']:.4f}"
        if run["preview"]:
            yield f"    preview: {_short(run['preview'])}"
        if run["score"] is not None:
            yield f"    explanation: {_short(run['explanation'])}"
        else:
            yield f"    error: {_short(run['error'])}"
        if run["duration_seconds"] is not None:
            yield f"    duration: {run['duration_seconds']:.2f}s"
    statistics = entry["statistics"]
    if statistics["total_runs"] > 1 or statistics["failure_count"]:
        yield "  Summary:"
        yield (
            f"    total={statistics['total_runs']} successes={statistics['success_count']} "
            f"failures={statistics['failure_count']}"
        )
        variance = f" variance={statistics['variance']:.6f}"
        yield "    " + (_summary(statistics) + variance if statistics["success_count"] else "avg=n/a")


def _summary(statistics: Mapping[str, float]) -> str:
    return (
        f"avg={statistics['average']:.4f} stdev={statistics['stdev']:.4f} "
        f"min={statistics['min']:.4f} max={statistics['max']:.4f}"
    )


def _overall(outcome: RubricOutcome) -> Iterator[Row]:
    from osmosis_ai.services.rubric import token_count

    session, numbers = outcome.session, outcome.session.statistics
    scored = session.count("scored")
    average = f"{numbers['average']:.4f}" if scored else formats.MISSING
    clamped = describe_outside_scale(session.outside_scale, scored)
    yield "average", Styled(f"{average} ({clamped})" if clamped else average, "strong")
    yield "stdev", f"{numbers['stdev']:.4f}" if scored else None
    yield "min / max", f"{numbers['min']:.4f} / {numbers['max']:.4f}" if scored else None
    counts = outcome.agreement.counts
    calls = f"{formats.count(counts.scored_calls)} of {amount(counts.calls, 'call')}"
    records = f"{formats.count(counts.scored_records)} of {amount(counts.records, 'record')}"
    yield "scored", f"{calls}, in {records}"
    if copies := counts.copied_records:
        yield "duplicates", f"{amount(copies, 'record')} (excluded from the counts below)"
    for status, count, reasons in reversed([*_without_score(session)]):
        yield status, Styled(f"{count}: {reasons}", "bad" if status == "failed" else "warn")
    if pending := session.count("pending"):
        yield "pending", Styled(formats.count(pending), "pending")
    if session.resumed:
        yield "from earlier sessions", formats.count(session.resumed)
    yield "tokens", token_count(session)
    yield "cost", formats.money(session.cost_usd) if session.cost_usd is not None else "unknown"
    yield "duration", formats.duration(session.elapsed_s)


def _first_error(outcome: RubricOutcome) -> str:
    for entry in outcome.records:
        for judgement in entry.get("judgements", entry.get("runs", ())):
            if judgement.get("error"):
                return f"The first: {_short(judgement['error'])}"
    return ""


def _short(text: str | None) -> str:
    line = formats.one_line(text or "")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"

"""The pages of runs: lists, evaluations with their attempts, training runs, judging sessions, and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timezone
from itertools import groupby
from math import isfinite
from operator import attrgetter
from shlex import quote
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from markupsafe import Markup

from osmosis_ai.decisions.samples import RunSlice, run_slices
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.metrics import LEAST_SCORED, RunScore, describe_few_scored
from osmosis_ai.evaluation.results import UNKNOWN
from osmosis_ai.rubric.documents import ReadRecord, describe_result, read_records
from osmosis_ai.training.runs import metrics
from osmosis_ai.training.runs.curves import LEAST_WORDS, TrainingCurves, after_steps
from osmosis_ai.training.runs.run_differences import flat_settings
from osmosis_ai.ui import charts, numbers
from osmosis_ai.ui.numbers import compact, duration, interval, money, number, percent
from osmosis_ai.ui.run_numbers import format_interval, format_scored, number_lines, sample_counts
from osmosis_ai.viewer import queries
from osmosis_ai.viewer.access import LISTS, SECTIONS, RenderedPage, Tile, Viewing, environment
from osmosis_ai.viewer.conversations import search_conversations
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.queries import Words, number_of, query_string, whole_number, word
from osmosis_ai.viewer.source import (
    SORTED_BY,
    FailureCount,
    Outcome,
    RunDetail,
    RunEntry,
    SampleEntry,
    page_from,
    sample_entry,
)

if TYPE_CHECKING:
    from osmosis_ai.rubric.agreement import AgreementReport, JudgeAgreement
    from osmosis_ai.statistics.estimates import Floats

    JudgeScores = Sequence[tuple[str, Floats]]

RUNS_A_PAGE = 50
PLATFORM_COMMANDS: dict[RunKind, Sequence[str]] = {
    "eval": ("osmosis eval submit configs/eval/NAME.toml",),
    "training": ("osmosis train submit configs/training/NAME.toml",),
}
LOCAL_COMMANDS: dict[RunKind, Sequence[str]] = {
    "eval": ("osmosis eval run configs/eval/NAME.toml", "osmosis demo"),
    "rubric": ("osmosis eval rubric -d DATA -r @RUBRIC.md --model MODEL",),
}


def listed(view: Viewing, words: Words, *, kind: RunKind | None = None) -> RenderedPage:
    query = queries.run_query(words, kind=kind)
    found = view.source.runs(query, limit=RUNS_A_PAGE, cursor=word(words, "cursor"))
    here = view.href(SECTIONS[kind]) if kind is not None else view.href()
    filters = queries.kept_words(words, queries.RUN_WORDS)
    return RenderedPage(
        "runs.html",
        {
            "title": LISTS[kind] if kind else "Runs",
            "kind": kind,
            "found": found,
            "runs": [(run, view.run_href(run.kind, run.name), _trend(run)) for run in found.items],
            "query": query,
            "filters": filters,
            "statuses": queries.STATUSES,
            "here": here,
            "address": lambda **more: here + query_string(filters, **more),
            "filtered": queries.is_filtered(filters),
            "narrowed": queries.is_filtered(filters, "q", "status") or query.archived,
            "commands": (LOCAL_COMMANDS if view.is_local else PLATFORM_COMMANDS).get(kind or "eval", ()),
            "compares": kind != "rubric" and bool(found.items),
        },
    )


def _trend(run: RunEntry) -> Markup:
    label, written = ("pass rates", percent) if run.kind == "eval" else ("rewards", number)
    return charts.sparkline(run.trend, label=label, number=written)


SAMPLES_A_PAGE = 100
_AMOUNTS = ("reward", "tokens", "duration", "cost")


def samples(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return an evaluation's attempts; the page updates when the run ends or is deleted."""
    query, grouped = queries.sample_query(words), queries.choice_of(words, "group", ("row",))
    in_conversations = queries.searches_conversations(words, query)
    cursor, source = word(words, "cursor"), view.source
    search = search_conversations(source, run, query, cursor=cursor) if in_conversations else None
    found = search.page if search else source.samples(run, query, limit=SAMPLES_A_PAGE, cursor=cursor)
    filters = queries.kept_words(words, queries.SAMPLE_WORDS)
    here = view.run_href("eval", run, "samples")
    shown = filters | {"group": grouped or "", "in": "conversations" if in_conversations else ""}
    # An attempt's neighbours come from the table, which does not contain conversations.
    near = query_string(filters | {"q": ""} if in_conversations else filters)
    return RenderedPage(
        "samples.html",
        {
            "title": f"Attempts of {run}",
            "crumbs": view.crumbs("eval", run),
            "here": here,
            "found": found,
            "search": search,
            "query": query,
            "run": run,
            "near": near,
            "groups": [(row, list(those)) for row, those in groupby(found.items, key=attrgetter("row"))]
            if grouped and query.sort == "row"
            else None,
            "grouped": grouped,
            "outcomes": get_args(Outcome),
            "columns": [name for name in _AMOUNTS if query.sort == name or _varies(found.items, name)],
            "causes": sorted({*_causes(view, run), *([query.category] if query.category else [])}),
            "address": lambda **more: here + query_string(shown, **more),
            "filters": filters,
            "filtered": queries.is_filtered(filters),
            "narrowed": queries.is_filtered(filters, "q", "outcome", "category"),
            "exported": query_string(shown, group=""),
        },
        parts={"outcomes": "samples_outcomes.html"},
        # A page that has not been read to its end reloads itself.
        is_live=found.progress is None,
    )


def _varies(samples: Sequence[SampleEntry], sort: str) -> bool:
    """Whether a column has different values; constant columns are hidden."""
    values = {getattr(each, SORTED_BY[sort] or "") for each in samples}
    return values != {None} if len(samples) == 1 else len(values) > 1


def _causes(view: Viewing, run: str) -> set[str]:
    return {each.category for each in view.source.run("eval", run).failures if each.category}


LINES_A_PAGE = 200


def log(view: Viewing, words: Words, *, run: str, kind: RunKind = "eval") -> RenderedPage:
    cursor = word(words, "cursor")
    found = view.source.log(kind, run, limit=LINES_A_PAGE, cursor=cursor)
    here = view.run_href(kind, run, "log")
    return RenderedPage(
        "log.html",
        {
            "title": f"Log of {run}",
            "crumbs": view.crumbs(kind, run),
            "here": here,
            "log": found.logs,
            "older": here + query_string({"cursor": found.next_cursor}) if found.next_cursor else None,
            "is_end": cursor is None,
        },
        parts={"log": "log_lines.html"},
    )


LOG_LINES = 20
_FAILURES = 50
_MOST_SLICED = 5_000
FOLDED = ("Commit", "Dataset, SHA-256", "Grader", "Platform", "Environment", "Isolation")
_Sliced = tuple[str, Sequence[RunSlice], OsmosisError | None]


def evaluation(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    detail = view.source.run("eval", run)
    headline, estimates = detail.summary.headline, detail.estimates
    passed, samples = detail.summary_numbers.get("passed"), view.run_href("eval", run, "samples")
    rows = headline.rows if headline is not None else None
    about = (detail.summary.model, detail.summary.dataset, rows.words if rows else None)
    named, decided = word(words, "slice"), detail.decided.slices if detail.decided is not None else ()
    slices = _slices(view, detail, named, decided)
    counts = estimates.counts if estimates is not None else None
    # The bounds already show this warning.
    few_scored = describe_few_scored(counts.scored, counts.finished) if counts is not None else None
    warnings = [each for each in (estimates.warnings if estimates else ()) if each != few_scored]
    is_none = named is not None and any("column" in error.details for *_, error in slices if error)
    return RenderedPage(
        "run.html",
        {
            **shown_run(detail),
            "crumbs": view.crumbs("eval"),
            "interval": interval,
            "here": view.run_href("eval", run),
            "sentence": _result(detail),
            "few_scored": _bounds(headline, passed) if headline else None,
            "warnings": warnings,
            "subject": " · ".join(filter(None, about)),
            "tiles": list(_tiles(detail, samples)),
            "mixed_href": samples + query_string({"outcome": "flaky"}),
            "numbers": list(number_lines(estimates)) if estimates is not None else [],
            "counts": list(sample_counts(estimates, rows)) if estimates is not None else [],
            "failures": detail.failures[:_FAILURES],
            "example_href": lambda failure: view.sample_href(run, *failure.example) + _filter(failure),
            "failures_href": lambda failure: samples + _filter(failure),
            "rewards": _rewards(detail),
            "row_href": lambda row: samples + query_string({"row": row.row_index}),
            "slices": slices,
            "slice": named,
            "columns": list(dict.fromkeys(filter(None, (*decided, *detail.columns, named)))),
            **log_tail(view, detail.summary),
        },
        400 if is_none else 200,
        parts={name: f"run_{name}.html" for name in ("standing", "numbers", "failures", "log")},
    )


def _tiles(detail: RunDetail, samples: str) -> Iterator[Tile]:
    run, estimates = detail.summary, detail.estimates
    score = run.headline
    if score is None:
        yield Tile("Scored", "–" if detail.problems else "0", "", samples)
        return
    limits = format_interval(score).strip(" ()")
    yield Tile("Pass rate", percent(score.pass_rate), f"95% CI {limits}" if limits else "")
    yield Tile("Scored", f"{score.scored:,}", f"of {score.planned:,} planned", samples)
    causes = ", ".join(f"{number:,} {name}" for name, number in score.failed_by_boundary.items())
    failed = samples + query_string({"outcome": "failed"})
    yield Tile("Failed", f"{score.failed:,}", causes, failed if score.failed else "")
    if estimates is not None:
        rates = [(f"pass@{k}", each) for k, each in estimates.pass_at_k.items() if k > 1]
        for label, rate in rates[-1:]:
            yield Tile(label, percent(rate.value), f"95% CI {interval(rate, percent=True)}")
        if (latency := estimates.latency.rollout_ms) is not None:
            yield Tile("Latency", duration(latency.p50 / 1000), f"p50; {duration(latency.p95 / 1000)} p95")
        tokens = estimates.tokens
        if tokens.known_samples:
            each = f"{tokens.per_sample:,.0f} per attempt" if tokens.per_sample is not None else ""
            yield Tile("Tokens", f"{tokens.total:,}", each)
    if run.cost_usd is not None:
        yield Tile("Cost", money(run.cost_usd))
    if run.duration_s is not None:
        yield Tile("Duration", duration(run.duration_s))


def log_tail(view: Viewing, run: RunEntry) -> Mapping[str, Any]:
    log = view.source.log(run.kind, run.name, limit=LOG_LINES).logs if view.wants("log") else None
    return {"log": log, "log_href": view.run_href(run.kind, run.name, "log")}


def _filter(failure: FailureCount) -> str:
    source = failure.boundary or UNKNOWN
    return query_string({"outcome": "failed", "boundary": source, "category": failure.category})


def _rewards(detail: RunDetail) -> charts.SvgChart | None:
    found = detail.rewards
    if found is None or not any(found.counts):
        return None
    name, label = f"{sum(found.counts):,} scored attempts", "Scored attempts by reward"
    return charts.counted_histogram(found.edges, found.counts, name=name, label=label, axis="reward")


def _result(detail: RunDetail) -> str:
    """Return why there is no result; "" if there is one."""
    score, yet = detail.summary.headline, " yet" if detail.summary.goes_on else ""
    if score is None:
        return "The results cannot be read." if detail.problems else f"No attempt has a score{yet}."
    if score.pass_rate is None:
        is_over = 0 < score.planned <= score.scored + score.skipped + score.failed
        return f"No attempt has a score{'' if is_over else yet}: {format_scored(score)} scored."
    return ""


def _bounds(score: RunScore, passed: Any) -> str | None:
    """Return bounds of the pass rate if too few finished attempts have a score (Manski 1990): none or all others pass."""
    finished = score.finished
    if score.scored >= LEAST_SCORED * finished:
        return None
    unscored = finished - score.scored
    known = passed if isinstance(passed, int) else round((score.pass_rate or 0.0) * score.scored)
    counts = (score.scored, known, known + unscored)
    share, worst, best = (percent(count / finished) for count in counts)
    return (
        f"Only {score.scored:,} of {finished:,} finished attempts have a score ({share}). "
        f"If none of the other {unscored:,} passed, {worst} would pass; if all did, {best}."
    )


def shown_run(detail: RunDetail) -> dict[str, Any]:
    """Return the values of an evaluation's and a training run's page that are the same in its report."""
    run, said = detail.summary, dict(detail.facts)
    names = ("model", "dataset", "rollout", "config", "commit")
    known = {name.capitalize(): getattr(run, name) for name in names} | {
        "Uncommitted changes": "yes" if run.dirty else None,
        "Started": numbers.date(run.started_at, zone=timezone.utc) if run.started_at else None,
        "Submitted by": run.person,
    }
    shown = [(label, value) for label, value in known.items() if value and label not in said]
    config = {name: "none" if value == {} else value for name, value in detail.config_effective.items()}
    return {
        "title": run.name,
        "run": run,
        "detail": detail,
        "facts": [*shown, *detail.facts],
        "config": [(name, numbers.setting(value)) for name, value in flat_settings(config)],
        "FOLDED": FOLDED,
    }


def _slices(view: Viewing, detail: RunDetail, named: str | None, decided: Sequence[str]) -> Sequence[_Sliced]:
    """Return the dataset's columns, the results by their values, and why there are none."""
    headline = detail.summary.headline
    # A run must be small for all of its samples to be read for every look at its page.
    is_small = headline is not None and headline.planned <= _MOST_SLICED
    columns = (named,) if named is not None else decided if is_small else ()
    if not columns or not view.wants("slices"):
        return ()
    found: list[_Sliced] = []
    try:
        samples = view.source.run_samples([detail.summary.name])[0]
    except NotFoundError:
        raise
    except OsmosisError as error:
        return [(columns[0], (), error)]
    for column in columns:
        try:
            found.append((column, run_slices(samples, [column]), None))
        except OsmosisError as error:
            found.append((column, (), error))
    return found


_CHARTS: Sequence[tuple[str, Sequence[str]]] = (
    ("Training reward", ("rollout/raw_reward",)),
    ("Validation reward", ("eval/validation/reward",)),
    ("Validation pass rate", ("eval/validation/pass_rate",)),
    ("Loss (nats per token)", (metrics.TRAINING_LOSS, metrics.VALIDATION_LOSS)),
    ("KL (nats per token)", ("train/kl_sampler", "train/kl_base")),
    ("Entropy (nats per token)", ("train/entropy_loss",)),
    ("Length (tokens)", ("rollout/response_lengths", "rollout/total_lengths")),
    ("Unused (share)", ("rollout/zero_variance_fraction", metrics.DROPPED)),
    ("Cut off (share of rollouts)", ("rollout/truncated_ratio", "rollout/timed_out_ratio")),
    ("Learner and server, log-probability gap", ("train/logprob_gap_mean", "train/logprob_gap_max")),
    ("Time of a step (s)", [key for key in metrics.TITLES if key.startswith("time/")]),
)
"""Charts and their titles; the first two show marks."""
MAIN_CHARTS = 3
_MOST_MARKS = 40
_MOST_VALIDATED = 10
HOLLOW = f"under {LEAST_WORDS} scored"


def training(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return a training run; ``smooth`` is the weight of earlier points in a smoothed curve."""
    smoothing = _smoothing(words)
    detail = view.source.run("training", run)
    shows_curves = any(map(view.wants, ("standing", "curves", "validation", "adapters")))
    curves = view.source.curves(run) if shows_curves else TrainingCurves()
    return RenderedPage(
        "training.html",
        {
            **shown_training(detail, curves, smoothing, draws=view.wants("curves")),
            "crumbs": view.crumbs("training"),
            "here": view.run_href("training", run),
            "validated": _validated(view, run, whole_number(words, "validation") or 0),
            "quote": None if view.is_local else quote,
            **log_tail(view, detail.summary),
        },
        parts={name: f"training_{name}.html" for name in ("standing", "curves", "validation", "adapters")}
        | {"log": "run_log.html"},
    )


def shown_training(
    detail: RunDetail, curves: TrainingCurves, smoothing: float = 0.0, *, draws: bool = True
) -> dict[str, Any]:
    return {
        **shown_run(detail),
        "subject": " · ".join(filter(None, (detail.summary.model, detail.summary.dataset))),
        "tiles": list(_training_tiles(detail, curves)),
        "MAIN_CHARTS": MAIN_CHARTS,
        "curves": curves,
        "has_steps": bool(curves.points(metrics.TRAINING_REWARD)) or curves.is_supervised,
        "hollow": after_steps(curves.hollow_validations()),
        "least": LEAST_WORDS,
        "charts": list(_charts(curves, smoothing)) if draws else [],
        "smoothing": smoothing,
        "quote": None,
    }


def _training_tiles(detail: RunDetail, curves: TrainingCurves) -> Iterator[Tile]:
    validated = [point for point in curves.points(metrics.VALIDATION_PASS_RATE) if isfinite(point.value)]
    rewards = [point for point in curves.points(metrics.VALIDATION_REWARD) if isfinite(point.value)]
    if validated:
        first, best = validated[0], max(validated, key=lambda point: point.value)
        yield Tile("Validation pass rate", percent(validated[-1].value), f"{percent(first.value)} at first")
        yield Tile("Best pass rate", percent(best.value), f"after step {best.step:,}")
    if rewards:
        last = rewards[-1]
        limits = None
        if last.low is not None and last.high is not None:
            limits = f"95% CI {numbers.number_range(last.low, last.high)}"
        newest = curves.headline.scored_words if curves.headline is not None else None
        scored = newest and f"{newest} scored"
        yield Tile("Validation reward", number(last.value), "; ".join(filter(None, (limits, scored))))
    for title, key in (
        ("Validation loss", metrics.VALIDATION_LOSS),
        ("Training loss", metrics.TRAINING_LOSS),
    ):
        if curves.is_supervised and (losses := curves.points(key)):
            yield Tile(title, compact(losses[-1].value), f"{compact(losses[0].value)} at first")
    trained = curves.points(metrics.TRAINING_REWARD)
    if trained:
        yield Tile("Training reward", number(trained[-1].value), f"after step {trained[-1].step:,}")
    sampling, learning = (curves.points(f"speed/{phase}_tokens_per_s") for phase in ("sampling", "learning"))
    if sampling:
        learned = f"; {learning[-1].value:,.0f} learned" if learning else ""
        yield Tile("Tokens per second", f"{sampling[-1].value:,.0f}", f"sampled in the last step{learned}")
    if steps := curves.points("time/step_s"):
        phases = [(phase, curves.points(f"time/{phase}_s")) for phase in ("sampling", "learning")]
        spent = [f"{phase} {duration(points[-1].value)}" for phase, points in phases if points]
        yield Tile("Time per step", duration(steps[-1].value), ", ".join(["last step", *spent]))
    if detail.summary.duration_s is not None:
        yield Tile("Duration", duration(detail.summary.duration_s))


def _validated(view: Viewing, run: str, start: int) -> Mapping[str, Any]:
    samples = problem = None
    if view.wants("validation"):
        try:
            samples = view.source.validation(run)
        except NotFoundError:
            raise
        except OsmosisError as error:
            problem = error.message
    if samples is None:
        return {"samples": None, "problem": problem}
    page = page_from(samples.records, start, _MOST_VALIDATED)
    lines = [sample_entry(each, samples.pass_threshold) for each in page.items]
    return {"samples": samples, "page": page, "lines": lines, "problem": None}


def _smoothing(words: Words) -> float:
    weight = number_of(words, "smooth") or 0.0
    if not 0 <= weight < 1:
        raise OsmosisError(f"'smooth' is from 0 (none) to below 1, not {weight:g}.")
    return weight


def _charts(curves: TrainingCurves, smoothing: float) -> Iterator[charts.SvgChart]:
    # There may be many warnings: where there is no room for all marks, they are left out.
    room = sorted(curves.marks, key=lambda mark: mark.kind == "warning")[:_MOST_MARKS]
    marks = sorted(room, key=lambda mark: mark.step)
    for place, (title, keys) in enumerate(_CHARTS):
        if metrics.TRAINING_LOSS in keys and not curves.is_supervised:
            continue  # the loss of a policy gradient says nothing about the policy
        found = [curve for key in keys for curve in curves.curves if curve.key == key and curve.points]
        if found:
            yield charts.line(
                found,
                label=title,
                # A validation stands on enough samples of its own to be read as it is, and is drawn with its interval.
                smoothing=0.0 if keys[0].startswith("eval/") else smoothing,
                marks=marks if place < 2 or metrics.TRAINING_LOSS in keys else (),
                hollow=HOLLOW,
            )


RECORDS_A_PAGE = 50
_UNREADABLE = "The file contains no agreement of the judges that this release can read."


def judging(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    detail, here = view.source.run("rubric", run), view.run_href("rubric", run)
    start = whole_number(words, "cursor") or 0
    values = shown_judging(detail, start, RECORDS_A_PAGE)
    if start and start >= values["total"]:
        raise OsmosisError("this cursor is not of this list.")
    return RenderedPage(
        "rubric.html",
        {
            **values,
            "address": lambda **more: here + query_string(more) + "#records",
            "crumbs": view.crumbs("rubric"),
            "left_out": "",
        },
    )


def shown_judging(
    detail: RunDetail, start: int, size: int | None, *, text: bool = True, scores: JudgeScores | None = None
) -> dict[str, Any]:
    """Return the values of a session's page and report; ``scores`` are by default those of its records."""
    document = detail.summary_numbers
    everything = read_records(document)
    found = page_from(everything, start, size or len(everything))
    linked = {record.number for record in found.items}
    measured = _measured(document, everything, scores, linked=linked, text=text)
    return {
        "title": detail.summary.name,
        "run": detail.summary,
        "sentence": describe_result(document, everything),
        "problems": [*detail.problems, *([_UNREADABLE] if measured is None and document else [])],
        "facts": detail.facts,
        "rubric": detail.config_written,
        "measured": measured,
        "text": text,
        "start": start,
        "found": found,
        "total": len(everything),
    }


def _measured(
    document: Mapping[str, Any], records: Sequence[ReadRecord], scores: JudgeScores | None, **shown: object
) -> Markup | None:
    """Return the judges' agreement on these records; None if the file lacks it; ``shown`` is for its template."""
    from osmosis_ai.rubric.agreement import AgreementReport, ScoreFormat, agreement_tables, not_measured

    try:
        report = msgspec.convert(document.get("trust"), AgreementReport)
        drawn = {"scores": _histograms(records, report, scores), "calibration": _calibration(report)}
        values = {
            "counts": report.counts,
            "tables": agreement_tables(report),
            "charts": {name: chart for name, chart in drawn.items() if chart is not None},
            "not_measured": not_measured,
            "points": ScoreFormat(report.score_min, report.score_max).points,
            "disputes": report.disputed,
            **shown,
        }
        return Markup(environment().get_template("rubric_agreement.html").render(values))
    except (ValueError, ArithmeticError, LookupError):
        return None  # its numbers are not what this release writes


def _histograms(
    records: Sequence[ReadRecord], report: AgreementReport, scores: JudgeScores | None
) -> charts.SvgChart | None:
    import numpy as np

    if scores is None:
        found: dict[str, list[float]] = {judge.model: [] for judge in report.judges}
        for call in (call for record in records for call in record.calls):
            if call.score is not None:
                # The public 0.2 form has one judge and does not name it.
                found.get(call.model, next(iter(found.values()))).append(call.score)
        scores = [(model, np.array(values)) for model, values in found.items()]
    values = np.concatenate([values for _, values in scores])
    values = values[~np.isnan(values)]
    # Bounds of single records are another scale.
    if not values.size or values.min() < report.score_min or values.max() > report.score_max:
        return None
    label = "Histograms of the scores of each judge"
    return charts.histograms(scores, low=report.score_min, high=report.score_max, label=label, axis="score")


def _calibration(report: AgreementReport) -> charts.SvgChart | None:
    from osmosis_ai.rubric.agreement import ScoreFormat

    judges = [*report.judges, *([report.panel] if report.panel is not None else [])]
    series = [charts.ChartSeries(judge.model, _by_category(judge)) for judge in judges]
    if not any(each.points for each in series):
        return None
    return charts.scatter(
        series,
        low=report.score_min,
        high=report.score_max,
        label="Mean score by people against the score of the judge, with intervals; dotted where both are equal",
        axes=("score of the judge", "mean score by people"),
        number=ScoreFormat(report.score_min, report.score_max).points,
    )


def _by_category(judge: JudgeAgreement) -> list[charts.ChartPoint]:
    # The mean score by people is the judge's score minus its bias, so its interval follows from the bias's interval.
    return [
        charts.ChartPoint(
            found.judge,
            found.people,
            None if found.bias.high is None else found.judge - found.bias.high,
            None if found.bias.low is None else found.judge - found.bias.low,
            found.bias.records,
        )
        for found in judge.bins
        if found.judge is not None and found.people is not None
    ]

"""An evaluation's page: what came out and how sure that is, what failed, and of what it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osmosis_ai.decisions.samples import RunSlice, run_slices
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.metrics import LEAST_SCORED, RunScore, describe_few_scored
from osmosis_ai.ui.charts.drawing import SvgChart
from osmosis_ai.ui.numbers import count, duration, interval, money, percent, percent_range
from osmosis_ai.ui.run_numbers import format_scored, number_lines, sample_counts
from osmosis_ai.viewer.access import RenderedPage, Tile, Viewing
from osmosis_ai.viewer.queries import Words, query_string, word
from osmosis_ai.viewer.source import FailureCount, RunDetail, RunEntry

LOG_LINES = 20
_FAILURES = 50
_BARS = 10
_MOST_SLICED = 5_000
FOLDED = ("Commit", "Dataset, SHA-256", "Grader", "Platform", "Environment", "Isolation")
"""What is shown of a run only on demand."""
_Sliced = tuple[str, Sequence[RunSlice], OsmosisError | None]


def page(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return an evaluation."""
    live = view.live("eval", run)
    detail = view.read(view.source.run, "eval", run)
    headline, estimates = detail.summary.headline, detail.estimates
    passed, samples = detail.summary_numbers.get("passed"), view.run_href("eval", run, "samples")
    rows = headline.rows if headline is not None else None
    named, decided = word(words, "slice"), detail.decided.slices if detail.decided is not None else ()
    slices = _slices(view, detail, named, decided)
    is_none = named is not None and any("column" in error.details for *_, error in slices if error)
    return RenderedPage(
        "run.html",
        {
            "title": detail.summary.name,
            "crumbs": view.crumbs("eval"),
            "interval": interval,
            "run": detail.summary,
            "detail": detail,
            "here": view.run_href("eval", run),
            "sentence": _result(detail),
            "few_scored": _bounds(headline, passed) if headline else None,
            "warnings": _warnings(detail),
            "subject": " · ".join(
                filter(None, (detail.summary.model, detail.summary.dataset, rows.words if rows else None))
            ),
            "tiles": list(_tiles(detail, samples)),
            "mixed_href": samples + query_string({"outcome": "flaky"}),
            "FOLDED": FOLDED,
            "numbers": list(number_lines(estimates)) if estimates is not None else [],
            "counts": list(sample_counts(estimates, rows)) if estimates is not None else [],
            "failures": detail.failures[:_FAILURES],
            "example_href": lambda failure: view.sample_href(run, *failure.example) + _filter(failure),
            "failures_href": lambda failure: samples + _filter(failure),
            "rewards": _rewards(detail),
            "row_href": lambda row: samples + query_string({"row": row.row_index}),
            "facts": known_facts(detail),
            "config": list(flat_config(detail.config_effective)),
            "before": detail.previous,
            "slices": slices,
            "slice": named,
            "samples_href": samples,
            **log_tail(view, detail.summary),
        },
        400 if is_none else 200,
        parts={name: f"run_{name}.html" for name in ("standing", "numbers", "failures", "log")},
        live=live,
    )


def _tiles(detail: RunDetail, samples: str) -> Iterator[Tile]:
    """Yield the tiles of an evaluation; those that name attempts lead to them."""
    run, estimates = detail.summary, detail.estimates
    score = run.headline
    if score is None:
        yield Tile("Scored", "–" if detail.problems else "0", "", samples)
        return
    limits = percent_range(score.low, score.high) if score.low is not None and score.high is not None else ""
    yield Tile("Pass rate", percent(score.pass_rate), f"95% CI {limits}" if limits else "")
    yield Tile("Scored", count(score.scored), f"of {score.planned:,} planned", samples)
    causes = ", ".join(f"{number:,} {name}" for name, number in score.failed_by_boundary.items())
    unscored = samples + query_string({"outcome": "unscored"})
    yield Tile("Failed", count(score.failed), causes, unscored if score.failed else "")
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
    """Return the end of a run's log as templates show it; nothing where the source keeps none."""
    log = None
    if view.can("logs") and view.wants("log"):
        log = view.read(view.source.log, run.kind, run.name, limit=LOG_LINES).logs
    return {"log": log, "log_href": view.run_href(run.kind, run.name, "log") if view.can("logs") else None}


def _filter(failure: FailureCount) -> str:
    """Return the query that finds all samples that failed so."""
    return query_string({"outcome": "unscored", "boundary": failure.boundary, "category": failure.category})


def _rewards(detail: RunDetail) -> SvgChart | None:
    found = detail.rewards
    if found is None or not any(found.counts):
        return None
    from osmosis_ai.ui.charts.bars import counted_histogram

    scored = f"{sum(found.counts):,} scored attempts"
    return counted_histogram(
        found.edges, found.counts, name=scored, label="Scored attempts by reward", axis="reward"
    )


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
    """Return bounds of the pass rate if too few of the finished attempts have a score; None otherwise.

    They are the rates if all samples without a score failed, and if all passed (Manski 1990).
    """
    finished = score.finished
    if score.scored >= LEAST_SCORED * finished:
        return None
    unscored = finished - score.scored
    known = passed if isinstance(passed, int) else round((score.pass_rate or 0.0) * score.scored)
    counts = (score.scored, known, known + unscored)
    share, worst, best = (percent(count / finished) for count in counts)
    return (
        f"Only {score.scored:,} of {finished:,} finished attempts have a score ({share}). "
        f"If the other {unscored:,} all failed, {worst} would pass; if they all passed, {best}."
    )


def _warnings(detail: RunDetail) -> Sequence[str]:
    """Return what stands beside the numbers, but for what stands above them with its bounds."""
    if detail.estimates is None:
        return ()
    counts = detail.estimates.counts
    above = describe_few_scored(counts.scored, counts.finished)
    return [warning for warning in detail.estimates.warnings if warning != above]


def known_facts(detail: RunDetail) -> Sequence[tuple[str, str]]:
    """Return what a run was made of, each once: what the source says of it, and what its line in a list does."""
    run, said = detail.summary, dict(detail.facts)
    known = [
        *(
            (name.capitalize(), getattr(run, name))
            for name in ("model", "dataset", "rollout", "config", "commit")
        ),
        ("Changes", "there were some that are not in the commit" if run.dirty else None),
        ("By", run.person),
    ]
    return [*((label, value) for label, value in known if value and label not in said), *detail.facts]


def flat_config(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by their full names, as ``evaluation.n``."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat_config(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value if isinstance(value, str) else repr(value)


def _slices(view: Viewing, detail: RunDetail, named: str | None, decided: Sequence[str]) -> Sequence[_Sliced]:
    """Return columns of the dataset, the numbers by their values, and why there are none."""
    if not view.can("compare") or not view.wants("slices"):
        return ()
    headline = detail.summary.headline
    # A run must be small for all of its samples to be read for every look at its page.
    is_small = headline is not None and headline.planned <= _MOST_SLICED
    if named is None and not (decided and is_small):
        return ()
    columns = (named,) if named is not None else decided
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

"""Evaluations side by side: what differs, by how much, on which rows, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from osmosis_ai.decisions import compare
from osmosis_ai.decisions.comparability import Allowances
from osmosis_ai.decisions.compare import row_counts
from osmosis_ai.decisions.samples import RunSamples, mean_rewards
from osmosis_ai.errors import OsmosisError
from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts.comparisons import forest, scatter
from osmosis_ai.ui.charts.drawing import ChartPoint, ChartSeries, SvgChart
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.queries import Words, query_string, word

RowHref = Callable[[str, tuple[str, str]], str]

_ROWS_SHOWN = 25
_MOST_POINTS = 2_000
ALLOWANCES = ("unpaired", "partial", "different_grader", "same")
"""Words of an address that allow what is refused otherwise."""


def choices(words: Words) -> dict[str, Any]:
    """Return what the form shows that compares again."""
    return {
        "metric": word(words, "metric") or "",
        "slices": ", ".join(words.get("slice", ())),
        "allowed": words.get("allow", ()),
    }


def allowance_for(refusal: OsmosisError) -> str | None:
    """Return which of :data:`ALLOWANCES` lets through what was refused; commands name it as an option."""
    options = set(re.findall(r"--(?:allow-)?([a-z-]+)", refusal.hint or ""))
    return next((name for name in ALLOWANCES if name.replace("_", "-") in options), None)


def found(view: Viewing, names: Sequence[str], options: compare.CompareOptions) -> dict[str, Any]:
    """Return the values of the page."""

    def row_href(key: str, runs: tuple[str, str]) -> str:
        return view.href("compare", "row") + query_string({"run": runs, "row": key})

    baseline, *others = runs = view.source.run_samples(names)
    # As `eval compare` has it: the file beside the last run's config says between what rewards lie.
    options = replace(options, reward_range=runs[-1].reward_range)
    return shown(compare.compare_runs(baseline, others, options), runs, row_href)


def shown(
    comparison: compare.RunComparison, runs: Sequence[RunSamples], row_href: RowHref | None = None
) -> dict[str, Any]:
    """Return the values of a comparison that was made."""
    baseline, *others = runs
    return {
        "row_href": row_href,
        "sentence": comparison.sentence,
        "notes": [note for each in comparison.candidates for note in each.comparability.notes],
        "differs": compare.differing_inputs(comparison),
        "candidates": [
            _candidate(comparison, each, baseline, other)
            for each, other in zip(comparison.candidates, others, strict=True)
        ],
        "forest": _forest(comparison),
        "totals": compare.taken(comparison),
    }


def options_of(words: Words) -> compare.CompareOptions:
    """Return how an address asks to compare runs."""
    allowed = set(words.get("allow", ()))
    if strange := allowed - set(ALLOWANCES):
        raise OsmosisError(f"{sorted(strange)[0]!r} is nothing that a comparison can allow.")
    slices = [name.strip() for given in words.get("slice", ()) for name in given.split(",")]
    return compare.CompareOptions(
        metric=word(words, "metric"),
        slices=tuple(dict.fromkeys(filter(None, slices))),
        rows_shown=_ROWS_SHOWN,
        allowances=Allowances(**{name: name in allowed for name in ALLOWANCES}),
    )


def _candidate(
    comparison: compare.RunComparison, candidate: compare.ComparedCandidate, a: RunSamples, b: RunSamples
) -> dict[str, Any]:
    rows, names = candidate.rows, (a.name, b.name)
    return {
        "name": candidate.name,
        "names": names,
        "metrics": compare.changed_metrics(comparison, candidate),
        "scatter": _scatter(candidate, a, b),
        "counts": None if rows is None else row_counts(rows),
        "rows": compare.changed_rows(names, rows, " are not shown"),
        "slices": compare.changed_slices(comparison, candidate),
    }


def _forest(comparison: compare.RunComparison) -> SvgChart | None:
    """Return the deciding difference of every candidate, and of its slices, with the line of no difference."""
    names: list[str] = []
    points: list[ChartPoint] = []
    for candidate in comparison.candidates:
        deciding = next(each for each in candidate.changes if each.metric == comparison.metric)
        named = [(candidate.name, deciding)]
        named += [
            (f"{candidate.name}: {each.column} = {each.value}", each.change) for each in candidate.slices
        ]
        for name, change in named:
            if change.change is not None:
                points.append(
                    ChartPoint(change.change.value, len(names), change.change.low, change.change.high)
                )
                names.append(name)
    if not points:
        return None
    none = 1.0 if deciding.described.scale == "amount" else 0.0
    return forest(
        names,
        [ChartSeries(comparison.metric, points)],
        label=f"Difference of {comparison.metric} from {comparison.baseline.name}, with intervals; dotted at none",
        axis=f"difference of {comparison.metric}",
        lines=(none,),
        number=numbers.number,
        is_share=False,
    )


def _scatter(candidate: compare.ComparedCandidate, a: RunSamples, b: RunSamples) -> SvgChart | None:
    """Return each common row by its mean rewards in both runs; rows of the same means are one point."""
    matched = candidate.comparability.matched
    if matched is None:
        return None
    places, rows = mean_rewards(a, b, matched)
    counted = zip(places[:_MOST_POINTS], rows[:_MOST_POINTS], strict=True)
    points = [ChartPoint(float(x), float(y), over=int(count)) for (x, y), count in counted]
    if not points:
        return None
    ends = [value for point in points for value in point[:2]]
    return scatter(
        [ChartSeries("rows", points)],
        low=min(0.0, *ends),
        high=max(1.0, *ends),
        label="Each row by its mean reward in both runs; dotted where both are equal",
        axes=(f"mean reward, {a.name}", f"mean reward, {b.name}"),
        number=numbers.number,
        joined=False,
        counted="Rows",
    )

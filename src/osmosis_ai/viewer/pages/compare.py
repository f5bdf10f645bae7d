"""Comparison of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from starlette.responses import RedirectResponse, Response

from osmosis_ai.decisions import compare
from osmosis_ai.decisions.comparability import Allowances
from osmosis_ai.decisions.compare import ComparedTable
from osmosis_ai.decisions.samples import RunSamples, mean_rewards
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.training.runs import run_differences
from osmosis_ai.training.runs.curves import TrainingCurves
from osmosis_ai.training.runs.run_differences import ComparedTraining, TrainingDifferences
from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts import ChartPoint, ChartSeries, SvgChart, forest, line, scatter
from osmosis_ai.ui.numbers import MISSING
from osmosis_ai.ui.pages import sentence
from osmosis_ai.viewer.access import SECTIONS, RenderedPage, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.pages.runs import HOLLOW
from osmosis_ai.viewer.queries import Words, choice_of, query_string, word
from osmosis_ai.viewer.source import RunDetail

_ROWS_SHOWN = 25
_MOST_POINTS = 2_000
ALLOWANCES = ("unpaired", "partial", "different_grader", "same")
"""Query parameters that allow comparisons that are refused otherwise."""


def allowance_for(refusal: OsmosisError) -> str | None:
    options = set(re.findall(r"--(?:allow-)?([a-z-]+)", refusal.hint or ""))
    return next((name for name in ALLOWANCES if name.replace("_", "-") in options), None)


def shown(
    comparison: compare.RunComparison, runs: Sequence[RunSamples], view: Viewing | None = None
) -> dict[str, Any]:
    """Return the values of a comparison; without ``view``, rows have no links."""
    baseline, *others = runs
    rows = view.href("compare", "row") if view is not None else ""
    return {
        "row_href": rows and (lambda key, names: rows + query_string({"run": names, "row": key})),
        "sentence": comparison.sentence,
        # Do not capitalize a run's name at the beginning of a sentence.
        "notes": [
            note if note.startswith(tuple(run.name for run in runs)) else sentence(note)
            for each in comparison.candidates
            for note in each.comparability.notes
        ],
        "differs": compare.differing_inputs(comparison),
        "candidates": [
            {
                "name": each.name,
                "names": (names := (baseline.name, other.name)),
                "metrics": compare.changed_metrics(comparison, each),
                "scatter": _scatter(each, baseline, other),
                "counts": compare.row_counts(each.rows) if each.rows is not None else None,
                "rows": compare.changed_rows(names, each.rows, " are not shown"),
                "slices": compare.changed_slices(comparison, each),
            }
            for each, other in zip(comparison.candidates, others, strict=True)
        ],
        "metric_name": comparison.metric,
        "forest": _forest(comparison),
        "totals": compare.taken(comparison),
    }


def options_of(words: Words) -> compare.CompareOptions:
    allowed = set(words.get("allow", ()))
    if strange := allowed - set(ALLOWANCES):
        raise OsmosisError(f"{sorted(strange)[0]!r} is not an exception that a comparison allows.")
    slices = [name.strip() for given in words.get("slice", ()) for name in given.split(",")]
    return compare.CompareOptions(
        metric=word(words, "metric"),
        slices=tuple(dict.fromkeys(filter(None, slices))),
        rows_shown=_ROWS_SHOWN,
        allowances=Allowances(**{name: name in allowed for name in ALLOWANCES}),
    )


def _forest(comparison: compare.RunComparison) -> SvgChart | None:
    """Return the deciding difference of each candidate and its slices, with a line at zero."""
    points: list[tuple[str, ChartPoint]] = []
    for candidate in comparison.candidates:
        deciding = next(each for each in candidate.changes if each.metric == comparison.metric)
        named = {f"{candidate.name}: {each.column} = {each.value}": each.change for each in candidate.slices}
        for name, change in ({candidate.name: deciding} | named).items():
            if found := change.change:
                points.append((name, ChartPoint(found.value, 0, found.low, found.high)))
    if not points:
        return None
    return forest(
        comparison.metric,
        points,
        label=f"Difference of {comparison.metric} from {comparison.baseline.name}, with intervals; dotted at none",
        axis=f"difference of {comparison.metric}",
        line=1.0 if deciding.described.scale == "amount" else 0.0,
    )


def _scatter(candidate: compare.ComparedCandidate, a: RunSamples, b: RunSamples) -> SvgChart | None:
    """Return common rows by their mean rewards in both runs; equal means are one point."""
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


_DRAWN = ("rollout/raw_reward", "eval/validation/reward", "train/kl_base", "rollout/response_lengths")


def compared_training(view: Viewing, names: Sequence[str]) -> dict[str, Any]:
    found = view.source.compared_training(names)
    runs = [_compared(detail, own) for detail, own in found]
    baseline, *others = (run.name for run in runs)
    differences = [run_differences.compare_training(runs[0], run) for run in runs[1:]]
    return {
        "sentence": run_differences.summary(runs, differences),
        "charts": list(_charts(names, [own for _, own in found])),
        "settings": _settings(names, differences),
        "metrics": [
            ComparedTable(
                f"{name} against {baseline}",
                ("Metric", baseline, name, "B - A", "95% interval"),
                each.metric_rows(),
                note=each.note,
            )
            for name, each in zip(others, differences, strict=True)
        ],
    }


def _compared(run: RunDetail, curves: TrainingCurves) -> ComparedTraining:
    summary = run.summary
    experiment = {name: getattr(summary, name) for name in ("model", "dataset", "rollout")}
    experiment["commit_sha"] = summary.commit
    settings = dict(run_differences.flat_settings({"experiment": experiment, **run.config_effective}))
    return ComparedTraining(
        summary.name,
        {key: value for key, value in settings.items() if value is not None},
        {curve.key: curve.title for curve in curves.curves},
        {curve.key: {point.step: point.value for point in curve.points} for curve in curves.curves},
        curves.validation,
        curves.hollow_validations(),
    )


def _charts(names: Sequence[str], curves: Sequence[TrainingCurves]) -> Iterator[SvgChart]:
    for key in _DRAWN:
        drawn = [
            (name, curve)
            for name, own in zip(names, curves, strict=True)
            for curve in own.curves
            if curve.key == key and curve.points
        ]
        if len(drawn) >= 2:
            series = [replace(curve, title=name) for name, curve in drawn]
            yield line(series, label=drawn[0][1].title, hollow=HOLLOW)


def _settings(names: Sequence[str], differences: Sequence[TrainingDifferences]) -> ComparedTable:
    values: dict[str, list[Any]] = {}
    for place, each in enumerate(differences, start=1):
        for setting in each.settings:
            row = values.setdefault(setting.key, [setting.a] * len(names))
            row[place] = setting.b
    rows = [
        (key, *(MISSING if value is None else numbers.setting(value) for value in row))
        for key, row in values.items()
    ] or [("all settings", *("same" for _ in names))]
    return ComparedTable("Differing settings", ("Setting", *names), rows, range(len(names) + 1))


_MOST_RUNS = 10
_MOST_PLACES = 1_000


def page(view: Viewing, words: Words) -> RenderedPage:
    names = list(dict.fromkeys(map(_named, words.get("run", ()))))
    if len(names) > _MOST_RUNS:
        raise OsmosisError(f"at most {_MOST_RUNS} runs are compared at a time.")
    here = view.href("compare")
    turned = here + query_string({"run": [*names[1:], *names[:1]]})
    given: dict[str, Any] = {"title": "Compare", "names": names, "turned": turned, "again": here}
    if len(names) < 2:
        return RenderedPage("compare.html", {**given, "itself": len(words.get("run", ())) > 1})
    options = options_of(words)
    kind = _kind(view, names, words)
    try:
        if kind == "training":
            return RenderedPage("compare_training.html", {**given, **compared_training(view, names)})
        given |= {
            "metric": word(words, "metric") or "",
            "slices": ", ".join(words.get("slice", ())),
            "allowed": words.get("allow", ()),
        }
        baseline, *others = runs = view.source.run_samples(names)
        # As in `eval compare`, the decide file next to the last run's config gives the reward range.
        options = replace(options, reward_range=runs[-1].reward_range)
        found = shown(compare.compare_runs(baseline, others, options), runs, view)
        return RenderedPage("compare_evaluations.html", {**given, **found})
    except OsmosisError as error:
        _kind(view, names, words)  # says which of them was deleted meanwhile
        # A name is written as it is.
        refused = error.message if error.message.startswith(tuple(names)) else error.sentence
        given |= {"refused": refused, "allowed_by": allowance_for(error)}
        # Of what the address names there is none; else it is the runs that may not be compared.
        return RenderedPage("compare.html", given, 400 if {"metric", "column"} & {*error.details} else 200)


def _named(run: str) -> str:
    section, _, name = run.partition("/")
    return name if name and section in SECTIONS.values() else run


def row(view: Viewing, words: Words) -> Response:
    """Return the address of both conversations of a row, or of the only one."""
    names, digest = list(words.get("run", ()))[:2], word(words, "row") or ""
    found = zip(names, view.source.samples_of_row(digest, names, limit=_MOST_PLACES), strict=True)
    # Failures first: they are more informative.
    there = [
        (name, min(samples, key=lambda each: (each.passed is not False, each.attempt)))
        for name, samples in found
        if samples
    ]
    if not there:
        raise NotFoundError("neither run has this row, or which rows they have was not recorded.")
    address = view.sample_href(there[0][0], there[0][1].row, there[0][1].attempt)
    if len(there) > 1:
        name, sample = there[1]
        address += query_string({"with": f"{name}/{sample.row}.{sample.attempt}"})
    return RedirectResponse(address, status_code=303)


def _kind(view: Viewing, names: Sequence[str], words: Words) -> RunKind:
    kinds: Sequence[RunKind] = ("eval", "training")
    wanted = [asked] if (asked := choice_of(words, "kind", kinds)) else kinds
    there = view.source.kinds(names)
    for kind in wanted:
        if all(kind in there[name] for name in names):
            return kind
    missing = next((name for name in names if not {*wanted} & {*there[name]}), None)
    if missing is None:
        raise OsmosisError("an evaluation and a training run cannot be compared.")
    nearest: list[list[str]] = []
    for kind in wanted:
        try:
            view.source.run(kind, missing)
        except NotFoundError as error:
            nearest.append([f"{SECTIONS[kind]}/{near}" for near in error.details.get("nearest", ())])
    of_each = [near for best in zip_longest(*nearest) for near in best if near is not None]
    raise NotFoundError(f"there is no run '{missing[:200]}' to compare.", details={"nearest": of_each[:3]})

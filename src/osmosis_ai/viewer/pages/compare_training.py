"""Training runs side by side: their curves over each other, settings that differ, the numbers of ``train compare``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.ui import numbers
from osmosis_ai.ui.shell import TableColumn
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.pages.compare_evaluations import ComparedTable

if TYPE_CHECKING:
    from osmosis_ai.training.runs.run_differences import (
        ComparedTraining,
        MetricDifference,
        TrainingDifferences,
    )
    from osmosis_ai.ui.charts import SvgChart
    from osmosis_ai.viewer.source import RunDetail, TrainingCurves

_DRAWN = ("rollout/raw_reward", "eval/validation/reward", "train/kl_base", "rollout/response_lengths")


def found(view: Viewing, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the page; every run is compared with the first."""
    from osmosis_ai.training.runs.run_differences import compare_training

    curves = [view.source.curves(name) for name in names]
    runs = [
        _compared(view.source.run("training", name), own) for name, own in zip(names, curves, strict=True)
    ]
    differences = [compare_training(runs[0], run) for run in runs[1:]]
    return {
        "sentence": " ".join(each.verdict.sentence for each in differences),
        "charts": list(_charts(names, curves)),
        "settings": _settings(names, differences),
        "metrics": [
            _metrics(runs[0].name, run.name, each) for run, each in zip(runs[1:], differences, strict=True)
        ],
    }


def _compared(run: RunDetail, curves: TrainingCurves) -> ComparedTraining:
    from osmosis_ai.training.runs.run_differences import ComparedTraining, flat_settings

    summary = run.summary
    experiment = {
        "model": summary.model,
        "dataset": summary.dataset,
        "rollout": summary.rollout,
        "commit_sha": summary.commit,
    }
    settings = dict(flat_settings({"experiment": experiment, **run.config_effective}))
    return ComparedTraining(
        summary.name,
        {key: value for key, value in settings.items() if value is not None},
        {curve.key: curve.title for curve in curves.curves},
        {curve.key: {point.step: point.value for point in curve.points} for curve in curves.curves},
        curves.validation,
    )


def _charts(names: Sequence[str], curves: Sequence[TrainingCurves]) -> Iterator[SvgChart]:
    from osmosis_ai.ui.charts import ChartPoint, ChartSeries, line

    for key in _DRAWN:
        drawn = [
            (name, curve)
            for name, own in zip(names, curves, strict=True)
            for curve in own.curves
            if curve.key == key and curve.points
        ]
        if len(drawn) < 2:
            continue
        yield line(
            [
                ChartSeries(
                    name,
                    [
                        ChartPoint(point.step, point.value, point.low, point.high, point.over)
                        for point in curve.points
                    ],
                )
                for name, curve in drawn
            ],
            label=drawn[0][1].title,
            axis="step",
        )


def _settings(names: Sequence[str], differences: Sequence[TrainingDifferences]) -> ComparedTable:
    values: dict[str, list[Any]] = {}
    for place, each in enumerate(differences, start=1):
        for setting in each.settings:
            row = values.setdefault(setting.key, [setting.a] * len(names))
            row[place] = setting.b
    rows = [(key, *map(_shown, row)) for key, row in values.items()]
    same = [("all settings", *("same" for _ in names))]
    return ComparedTable(
        "Configured differently", [TableColumn("Setting"), *map(TableColumn, names)], rows or same
    )


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)


def _metrics(a: str, b: str, differences: TrainingDifferences) -> ComparedTable:
    headings = (f"{a}, last", f"{b}, last", "B - A", "95 % interval")
    return ComparedTable(
        f"{b} against {a}",
        [TableColumn("Metric"), *(TableColumn(heading, "number") for heading in headings)],
        [_metric_row(metric) for metric in differences.metrics],
        differences.note,
    )


def _metric_row(metric: MetricDifference) -> tuple[str, ...]:
    interval = (
        f"{numbers.compact(metric.low)} to {numbers.compact(metric.high)}"
        if metric.low is not None
        else numbers.MISSING
    )
    return (metric.title, *map(numbers.compact, (metric.a, metric.b, metric.difference)), interval)

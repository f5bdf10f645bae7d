"""Training runs side by side: their curves over each other, settings that differ, the numbers of ``train compare``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from osmosis_ai.decisions.compare import ComparedTable
from osmosis_ai.training.runs import run_differences
from osmosis_ai.training.runs.curves import TrainingCurves
from osmosis_ai.training.runs.run_differences import ComparedTraining, TrainingDifferences
from osmosis_ai.ui.charts.drawing import ChartSeries, SvgChart
from osmosis_ai.ui.numbers import MISSING
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.pages.training import HOLLOW, chart_points
from osmosis_ai.viewer.source import RunDetail

_DRAWN = ("rollout/raw_reward", "eval/validation/reward", "train/kl_base", "rollout/response_lengths")


def found(view: Viewing, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the page about the runs of these names; every run is compared with the first."""
    told = view.source.compared_training(names)
    curves = [own for _, own in told]
    runs = [_compared(detail, own) for detail, own in told]
    differences = [run_differences.compare_training(runs[0], run) for run in runs[1:]]
    return {
        "sentence": run_differences.summary(runs, differences),
        "charts": list(_charts(names, curves)),
        "settings": _settings(names, differences),
        "metrics": [
            _metrics(runs[0].name, run.name, each) for run, each in zip(runs[1:], differences, strict=True)
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
    from osmosis_ai.ui.charts.curves import line

    for key in _DRAWN:
        drawn = [
            (name, curve)
            for name, own in zip(names, curves, strict=True)
            for curve in own.curves
            if curve.key == key and curve.points
        ]
        if len(drawn) >= 2:
            series = [ChartSeries(name, chart_points(curve)) for name, curve in drawn]
            yield line(series, label=drawn[0][1].title, axis="step", hollow=HOLLOW)


def _settings(names: Sequence[str], differences: Sequence[TrainingDifferences]) -> ComparedTable:
    values: dict[str, list[Any]] = {}
    for place, each in enumerate(differences, start=1):
        for setting in each.settings:
            row = values.setdefault(setting.key, [setting.a] * len(names))
            row[place] = setting.b
    rows = [
        (key, *(MISSING if value is None else str(value) for value in row)) for key, row in values.items()
    ] or [("all settings", *("same" for _ in names))]
    return ComparedTable("Configured differently", ("Setting", *names), rows, range(len(names) + 1))


def _metrics(a: str, b: str, differences: TrainingDifferences) -> ComparedTable:
    headings = ("Metric", f"{a}, last", f"{b}, last", "B - A", "95% interval")
    return ComparedTable(f"{b} against {a}", headings, differences.metric_rows(), note=differences.note)

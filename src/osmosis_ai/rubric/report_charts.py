"""The charts of a report: what of a session's trust is drawn, and how it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.rubric.messages import RELIABLE, TENTATIVE, Wording
from osmosis_ai.ui.charts.bars import histograms
from osmosis_ai.ui.charts.comparisons import forest, scatter
from osmosis_ai.ui.charts.drawing import ChartPoint, ChartSeries, SvgChart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osmosis_ai.rubric.calibration import Calibration
    from osmosis_ai.rubric.estimate import TrustEstimate
    from osmosis_ai.rubric.scores import ScoreTable
    from osmosis_ai.rubric.trust import TrustReport


def charts(trust: TrustReport, table: ScoreTable | None = None) -> dict[str, SvgChart]:
    """Return the charts that the data allow, by name."""
    wording = Wording(trust.score_min, trust.score_max, trust.counts.runs)
    drawn = {
        "scores": _score_histograms(table) if table is not None else None,
        "reliability": _reliability(trust, wording),
        "calibration": _calibration(trust, wording),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def agreement_square(trust: TrustReport) -> list[tuple[str, list[float | None]]]:
    """Return how each two judges correlate, a row for each judge; empty where that is not known of any two."""
    if trust.panel is None:
        return []
    names = [judge.model for judge in trust.judges]
    found = {(pair.first, pair.second): pair.pearson.value for pair in trust.panel.pairs}
    if all(value is None for value in found.values()):
        return []
    return [(a, [found.get((a, b), found.get((b, a))) for b in names]) for a in names]


def _score_histograms(table: ScoreTable) -> SvgChart | None:
    """Return a histogram of every judge's scores, one above the other on the same scales."""
    import numpy as np

    if np.isnan(table.scores).all():
        return None
    return histograms(
        [(model, table.scores[:, place, :].ravel()) for place, model in enumerate(table.models)],
        low=table.score_min,
        high=table.score_max,
        label="Histograms of the scores of each judge",
        axis="score",
    )


def _reliability(trust: TrustReport, wording: Wording) -> SvgChart | None:
    """Return reliabilities with their intervals beside the usual bars, one row per judge."""
    names = [judge.model for judge in trust.judges]
    measures: list[tuple[str, list[TrustEstimate]]] = [
        ("alpha, repeated calls", [judge.alpha for judge in trust.judges]),
        ("ICC, one call", [judge.retest.single for judge in trust.judges]),
        ("ICC, mean of runs", [judge.retest.average for judge in trust.judges]),
    ]
    if trust.panel is not None:
        names.append("panel")
        panel = (trust.panel.alpha, trust.panel.absolute.single, trust.panel.absolute.average)
        for (_, figures), figure in zip(measures, panel, strict=True):
            figures.append(figure)
    series = [ChartSeries(name, _measured(figures)) for name, figures in measures]
    if not any(each.points for each in series):
        return None
    return forest(
        names,
        series,
        label=f"Reliability of each judge with intervals; dotted lines at {TENTATIVE:g} and {RELIABLE:g}",
        axis="reliability",
        lines=(TENTATIVE, RELIABLE),
        number=wording.coefficient,
    )


def _measured(figures: Sequence[TrustEstimate]) -> list[ChartPoint]:
    return [
        ChartPoint(figure.value, row, figure.low, figure.high)
        for row, figure in enumerate(figures)
        if figure.value is not None
    ]


def _calibration(trust: TrustReport, wording: Wording) -> SvgChart | None:
    """Return what people say where a judge says so much, with intervals, beside the line of agreement."""
    judged = [(judge.model, judge.calibration) for judge in trust.judges]
    if trust.consensus_calibration is not None:
        judged.append(("panel", trust.consensus_calibration))
    series = [ChartSeries(name, _by_category(calibration)) for name, calibration in judged]
    if not any(each.points for each in series):
        return None
    return scatter(
        series,
        low=trust.score_min,
        high=trust.score_max,
        label="Mean score by people against the score of the judge, with intervals; dotted where both are equal",
        axes=("score of the judge", "mean score by people"),
        number=wording.points,
    )


def _by_category(calibration: Calibration) -> list[ChartPoint]:
    points = []
    for found in calibration.bins:
        if found.judge is None or found.people is None:
            continue
        low, high = found.bias.low, found.bias.high
        # People are the judge less its bias, so that the interval of one is that of the other.
        points.append(
            ChartPoint(
                found.judge,
                found.people,
                None if high is None else found.judge - high,
                None if low is None else found.judge - low,
                found.bias.records,
            )
        )
    return points

"""The charts of a report, as plotly figures in JSON; the page gives them its colours and its width."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.rubric.messages import RELIABLE, TENTATIVE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Chart

    from osmosis_ai.rubric.calibration import Calibration
    from osmosis_ai.rubric.estimate import TrustEstimate
    from osmosis_ai.rubric.scores import Floats, ScoreTable
    from osmosis_ai.rubric.trust import TrustReport

# Paul Tol's bright scheme: told apart by the colour-blind, and on light and dark grounds.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#999999")
_SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up")
_BINS = 20
_ROW = 92
_NAME = 26
_FEW = 4


def charts(table: ScoreTable, trust: TrustReport) -> dict[str, Mapping[str, Any]]:
    """Return the charts that the data allow, by name, as plotly JSON."""
    drawn = {
        "scores": _score_histograms(table),
        "reliability": _reliability(trust),
        "agreement": _agreement(trust),
        "calibration": _calibration(trust),
    }
    # plotly's own encoder turns what it keeps into plain JSON; NaN becomes null.
    return {name: json.loads(chart.to_json()) for name, chart in drawn.items() if chart is not None}


def _score_histograms(table: ScoreTable) -> Chart | None:
    """Return a histogram of every judge's scores, one above the other on the same scales."""
    import numpy as np
    from plotly.subplots import make_subplots

    if np.isnan(table.scores).all():
        return None
    models = len(table.models)
    titles = [_safe(model) for model in table.models]
    chart = make_subplots(
        models, 1, shared_xaxes=True, vertical_spacing=min(0.12, 0.5 / models), subplot_titles=titles
    )
    centres, edges = _bins(table)
    highest = 0.0
    for place in range(models):
        scores = table.scores[:, place, :]
        counts, _ = np.histogram(scores[~np.isnan(scores)], bins=edges)
        shares = counts / max(int(counts.sum()), 1)
        highest = max(highest, float(shares.max()))
        chart.add_bar(
            x=centres.tolist(),
            y=shares.tolist(),
            customdata=counts.tolist(),
            marker_color=COLOURS[place % len(COLOURS)],
            hovertemplate="%{x:.3g}: %{y:.1%}, %{customdata:,} scores<extra></extra>",
            row=place + 1,
            col=1,
        )
    margin = 0.02 * table.span
    chart.update_xaxes(range=[float(edges[0]) - margin, float(edges[-1]) + margin])
    chart.update_yaxes(tickformat=".0%", range=[0, 1.08 * highest], nticks=4)
    chart.update_xaxes(title_text="score", row=models, col=1)
    # Titles sit above their rows at the left, where bars do not reach.
    chart.update_annotations(x=0, xanchor="left", font_size=13)
    return _finished(chart, height=80 + 130 * models, bargap=0.08)


def _bins(table: ScoreTable) -> tuple[Floats, Floats]:
    """Return (centres, edges): one bin per score that was given when they are few, else twenty."""
    import numpy as np

    given = np.unique(table.scores[~np.isnan(table.scores)])
    steps = np.diff(given)
    if (
        2 <= given.size <= 2 * _BINS + 1
        and np.isclose(steps / steps.min(), np.round(steps / steps.min())).all()
    ):
        step = float(steps.min())
        parts = round(table.span / step)
        if parts <= 2 * _BINS and np.isclose((given - table.score_min) / step % 1, 0).all():
            centres: Floats = np.linspace(table.score_min, table.score_min + parts * step, parts + 1)
            limits: Floats = np.append(centres - step / 2, centres[-1] + step / 2)
            return centres, limits
    edges = np.linspace(table.score_min, table.score_max, _BINS + 1)
    middles: Floats = (edges[:-1] + edges[1:]) / 2
    return middles, edges


def _reliability(trust: TrustReport) -> Chart | None:
    """Return reliabilities with their intervals beside the usual bars, one row per judge."""
    measures: list[tuple[str, list[tuple[str, TrustEstimate]]]] = [
        ("alpha, repeated calls", [(judge.model, judge.alpha) for judge in trust.judges]),
        ("ICC, one call", [(judge.model, judge.retest.single) for judge in trust.judges]),
        ("ICC, mean of runs", [(judge.model, judge.retest.average) for judge in trust.judges]),
    ]
    if trust.panel is not None:
        measures[0][1].append(("panel", trust.panel.alpha))
        measures[1][1].append(("panel", trust.panel.absolute.single))
        measures[2][1].append(("panel", trust.panel.absolute.average))
    if all(figure.value is None for _, rows in measures for _, figure in rows):
        return None
    from plotly.graph_objects import Figure as Chart

    chart = Chart()
    names = [_broken(name) for name, _ in measures[0][1]]
    least = 0.0
    for place, (measure, rows) in enumerate(measures):
        shift = 0.22 * (place - 1)
        known = [(row + shift, figure) for row, (_, figure) in enumerate(rows) if figure.value is not None]
        least = min([least, *(figure.low if figure.low is not None else 0.0 for _, figure in known)])
        _add_points(chart, known, name=measure, place=place)
    for bar in (TENTATIVE, RELIABLE):
        chart.add_vline(x=bar, line_dash="dot", line_width=1)
    chart.update_xaxes(range=[max(least, -1.0) - 0.02, 1.03], title_text="reliability")
    chart.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.5, -0.5], automargin=True
    )
    chart.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    return _finished(chart, height=110 + _ROW * len(names))


def _add_points(chart: Chart, rows: Sequence[tuple[float, TrustEstimate]], *, name: str, place: int) -> None:
    figures = [figure for _, figure in rows]
    chart.add_scatter(
        x=[figure.value for figure in figures],
        y=[row for row, _ in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [_beyond(figure.high, figure.value) for figure in figures],
            "arrayminus": [_beyond(figure.value, figure.low) for figure in figures],
            "thickness": 1.5,
        },
        mode="markers",
        marker={"color": COLOURS[place], "size": 9, "symbol": _SYMBOLS[place]},
        name=name,
        hovertemplate="%{x:.3f}<extra>" + name + "</extra>",
    )


def _beyond(high: float | None, low: float | None) -> float:
    return max(0.0, high - low) if high is not None and low is not None else 0.0


def _agreement(trust: TrustReport) -> Chart | None:
    """Return how each two judges correlate, as a square of numbers."""
    if trust.panel is None:
        return None
    from plotly.graph_objects import Figure as Chart

    names = [judge.model for judge in trust.judges]
    found = {(pair.first, pair.second): pair.pearson.value for pair in trust.panel.pairs}
    values = [[found.get((a, b), found.get((b, a))) for b in names] for a in names]
    if all(value is None for value in found.values()):
        return None
    # Names once, at the side: below, they would not fit a narrow screen, nor would long ones beside many columns.
    places = list(range(len(names)))
    many = len(names) > _FEW
    shown = [
        f"{_safe(name, most=_NAME // 2) if many else _broken(name)} ({place + 1})"
        for place, name in enumerate(names)
    ]
    numbers = [f"({place + 1})" for place in places]
    chart = Chart()
    chart.add_heatmap(
        z=values,
        x=places,
        y=places,
        zmin=0,
        zmax=1,
        colorscale=[[0, "#f4f7fb"], [1, "#7fa3cc"]],
        showscale=False,
        xgap=3,
        ygap=3,
        text=[["" if value is None else _two_digits(value, short=many) for value in row] for row in values],
        texttemplate="%{text}",
        textfont={"color": "#10151c", "size": 11 if many else 14},
        hoverinfo="skip",
    )
    chart.update_xaxes(
        tickvals=places, ticktext=numbers, tickangle=0, side="bottom", showgrid=False, zeroline=False
    )
    chart.update_yaxes(
        tickvals=places, ticktext=shown, autorange="reversed", automargin=True, showgrid=False, zeroline=False
    )
    return _finished(chart, height=90 + 64 * len(names))


def _calibration(trust: TrustReport) -> Chart | None:
    """Return what people say where a judge says so much, with intervals, beside the line of agreement."""
    judged: list[tuple[str, Calibration]] = [(judge.model, judge.calibration) for judge in trust.judges]
    if trust.consensus_calibration is not None:
        judged.append(("panel", trust.consensus_calibration))
    if not any(calibration.bins for _, calibration in judged):
        return None
    from plotly.graph_objects import Figure as Chart

    low, high = trust.score_min, trust.score_max
    chart = Chart()
    chart.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"dash": "dot", "width": 1, "color": COLOURS[-1]},
        name="agreement",
        hoverinfo="skip",
    )
    for place, (name, calibration) in enumerate(judged):
        bins = [found for found in calibration.bins if found.judge is not None]
        chart.add_scatter(
            x=[found.judge for found in bins],
            y=[found.people for found in bins],
            error_y={
                "type": "data",
                "symmetric": False,
                # People are the judge less its bias, so that the interval of one is that of the other.
                "array": [_beyond(found.bias.value, found.bias.low) for found in bins],
                "arrayminus": [_beyond(found.bias.high, found.bias.value) for found in bins],
                "thickness": 1.2,
            },
            customdata=[found.bias.records for found in bins],
            mode="lines+markers",
            line={"color": COLOURS[place % len(COLOURS)], "width": 3 if name == "panel" else 1.5},
            marker={"size": 8, "symbol": _SYMBOLS[place % len(_SYMBOLS)]},
            name=_safe(name),
            hovertemplate="judge %{x:.3g}, people %{y:.3g}, %{customdata:,} records<extra>"
            + _safe(name)
            + "</extra>",
        )
    margin = 0.03 * (high - low)
    chart.update_xaxes(range=[low - margin, high + margin], title_text="score of the judge")
    chart.update_yaxes(range=[low - margin, high + margin], title_text="mean score by people")
    chart.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    return _finished(chart, height=460)


def _finished(chart: Chart, *, height: int, bargap: float | None = None) -> Chart:
    chart.update_layout(
        template=None,
        height=height,
        bargap=bargap,
        showlegend=chart.layout.legend.orientation is not None,
        dragmode=False,
        margin={"l": 48, "r": 16, "t": 36, "b": 48},
        hovermode="closest",
    )
    chart.update_xaxes(fixedrange=True)
    chart.update_yaxes(fixedrange=True)
    return chart


def _two_digits(value: float, *, short: bool) -> str:
    """Return a correlation; ``short`` leaves out the zero before the point, as journals do."""
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1) if short else text


def _safe(text: str, *, most: int = _NAME) -> str:
    """Return a name as plotly shows it: plotly reads some tags in texts, and refuses half a surrogate pair."""
    # The end of a long name tells models apart; a legend has no room for all of it.
    shown = text if len(text) <= most else "…" + text[-most:]
    return html.escape(shown.encode("utf-8", errors="replace").decode("utf-8"))


def _broken(name: str) -> str:
    """Return a model's name on two lines, so that a narrow screen keeps room for the chart."""
    maker, slash, model = name.rpartition("/")
    return f"{_safe(maker)}/<br>{_safe(model)}" if slash else _safe(name)

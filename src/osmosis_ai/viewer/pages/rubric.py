"""The page of a judging session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.documents import ReadRecord, describe_result, read_records
from osmosis_ai.ui.charts import ChartPoint, ChartSeries, SvgChart, histograms, scatter
from osmosis_ai.viewer.access import RenderedPage, Viewing, environment
from osmosis_ai.viewer.queries import Words, query_string, whole_number
from osmosis_ai.viewer.source import RunDetail, page_from

if TYPE_CHECKING:
    from osmosis_ai.rubric.agreement import AgreementReport, JudgeAgreement
    from osmosis_ai.statistics.estimates import Floats

    JudgeScores = Sequence[tuple[str, Floats]]

RECORDS_A_PAGE = 50
_UNREADABLE = "The file contains no agreement of the judges that this release can read."


def page(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    detail, here = view.source.run("rubric", run), view.run_href("rubric", run)
    start = whole_number(words, "cursor") or 0
    values = shown(detail, start, RECORDS_A_PAGE)
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


def shown(
    detail: RunDetail, start: int, size: int | None, *, text: bool = True, scores: JudgeScores | None = None
) -> dict[str, Any]:
    """Return the values of a session's page and report; ``scores`` are by default those of its records."""
    document = detail.summary_numbers
    everything = read_records(document)
    found = page_from(everything, start, size or len(everything))
    linked = {record.number for record in found.items}
    measured = _measured(document, everything, scores, linked, text=text)
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
    document: Mapping[str, Any],
    records: Sequence[ReadRecord],
    scores: JudgeScores | None,
    linked: set[int],
    *,
    text: bool,
) -> Markup | None:
    """Return the judges' agreement on these records; None if the file lacks it."""
    import msgspec

    from osmosis_ai.rubric.agreement import AgreementReport, ScoreFormat, agreement_tables, not_measured

    try:
        report = msgspec.convert(document.get("trust"), AgreementReport)
        charts = {"scores": _histograms(records, report, scores), "calibration": _calibration(report)}
        values = {
            "counts": report.counts,
            "tables": agreement_tables(report),
            "charts": {name: chart for name, chart in charts.items() if chart is not None},
            "not_measured": not_measured,
            "points": ScoreFormat(report.score_min, report.score_max).points,
            "disputes": report.disputed,
            "linked": linked,
            "text": text,
        }
        return Markup(environment().get_template("rubric_agreement.html").render(values))
    except (ValueError, ArithmeticError, LookupError):
        return None  # its numbers are not what this release writes


def _histograms(
    records: Sequence[ReadRecord], report: AgreementReport, scores: JudgeScores | None
) -> SvgChart | None:
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
    return histograms(scores, low=report.score_min, high=report.score_max, label=label, axis="score")


def _calibration(report: AgreementReport) -> SvgChart | None:
    from osmosis_ai.rubric.agreement import ScoreFormat

    judges = [*report.judges, *([report.panel] if report.panel is not None else [])]
    series = [ChartSeries(judge.model, _by_category(judge)) for judge in judges]
    if not any(each.points for each in series):
        return None
    return scatter(
        series,
        low=report.score_min,
        high=report.score_max,
        label="Mean score by people against the score of the judge, with intervals; dotted where both are equal",
        axes=("score of the judge", "mean score by people"),
        number=ScoreFormat(report.score_min, report.score_max).points,
    )


def _by_category(judge: JudgeAgreement) -> list[ChartPoint]:
    # The mean score by people is the judge's score minus its bias, so its interval follows from the bias's interval.
    return [
        ChartPoint(
            found.judge,
            found.people,
            None if found.bias.high is None else found.judge - found.bias.high,
            None if found.bias.low is None else found.judge - found.bias.low,
            found.bias.records,
        )
        for found in judge.bins
        if found.judge is not None and found.people is not None
    ]

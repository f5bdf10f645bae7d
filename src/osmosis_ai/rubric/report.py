"""One HTML file with everything a session found; it requests nothing.

Texts of records, models and judges are hostile: the template escapes all of them, data for the script is JSON in which no tag
can begin, the script writes text and never HTML, and the page's policy allows no other style or script and no request.
Everything can be read without scripts; they add the search. Memory does not grow with the session beyond the bounds below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from osmosis_ai.files import write_atomic
from osmosis_ai.rubric.agreement_tables import ScoreFormat, agreement_tables, not_measured
from osmosis_ai.rubric.scores import score_ranges
from osmosis_ai.ui.assets import KIT
from osmosis_ai.ui.charts.bars import histograms
from osmosis_ai.ui.charts.comparisons import scatter
from osmosis_ai.ui.charts.drawing import ChartPoint, ChartSeries, SvgChart
from osmosis_ai.ui.pages import inline, one_file_policy, templates
from osmosis_ai.ui.terminal_text import told_without_sequences
from osmosis_ai.ui.text import data_for_scripts, visible

if TYPE_CHECKING:
    from jinja2 import Environment

    from osmosis_ai.rubric.judge_agreement import AgreementReport, Calibration, Disputed
    from osmosis_ai.rubric.scores import Booleans, Floats, ScoreTable

_PAGE = Path(__file__).parent / "page"
_SHORT = 160
MAX_LISTED = 100_000
MAX_DETAILED = 10_000
MAX_TEXT = 4_000
MAX_EXPLANATION = 1_000
MAX_QUOTED = 320
"""Characters of a text that is quoted where judges disagree, of which the page has all beside its record."""
MAX_CHARACTERS = 48_000_000
MAX_WRITTEN_OUT = 100
_CHUNK = 200
_DIGITS = 4


class ReportJudgement(NamedTuple):
    """What one call said of a record."""

    model: str
    run: int
    score: float | None
    explanation: str | None
    error: str | None

    @property
    def who(self) -> str:
        """Who judged, and which time it was."""
        return f"{self.model}, run {self.run}" if self.model else f"Run {self.run}"


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """One record of a report."""

    label: str
    index: int
    text: str
    ground_truth: str | None
    judgements: Sequence[ReportJudgement | tuple[str, int, float | None, str | None, str | None]]
    original_input: str | None = None

    def without_text(self) -> ReportRecord:
        """Return it with its label, its place and its scores alone."""
        scores = [(model, run, score, None, None) for model, run, score, *_ in self.judgements]
        return ReportRecord(self.label, self.index, "", None, scores)


@dataclass(frozen=True, slots=True)
class Side:
    """One of two that disagree: who, with which score, and why; people give no reason."""

    who: str
    score: float
    explanation: str | None


@dataclass(frozen=True, slots=True)
class Dispute:
    """A record on which two disagree, the lower score first."""

    record: int
    label: str
    gap: float
    text: str
    sides: tuple[Side, Side]


class WrittenRecord(NamedTuple):
    """A record as it stands on the page itself, to be read without scripts."""

    number: int
    label: str
    mean: float | None
    people: float | None
    texts: Sequence[tuple[str, str]]
    calls: Sequence[tuple[str, float | None, str | None, str | None]]


@dataclass
class RecordPages:
    """The records of a report as the page holds them."""

    records: int
    listed: int
    listing: dict[str, Any]
    detailed: int = 0
    cut: int = 0
    written: list[WrittenRecord] = field(default_factory=list)
    chunks: list[list[Any]] = field(default_factory=list)
    disputed: list[Dispute] = field(default_factory=list)
    unstable: list[Dispute] = field(default_factory=list)
    far: list[Dispute] = field(default_factory=list)

    def clipped(self, text: str | None, limit: int) -> str | None:
        """Return ``text`` within ``limit`` characters, counting what had to be cut."""
        self.cut += text is not None and len(text) > limit
        return _clipped(text, limit)


def write_report(
    path: Path,
    header: Mapping[str, str],
    table: ScoreTable,
    agreement: AgreementReport,
    records: Iterable[ReportRecord],
) -> None:
    """Write the report of a session as one HTML file that needs nothing else."""
    pages = collect_records(table, agreement, records)
    style = inline(KIT / "tokens.css", KIT / "kit.css", KIT / "judging.css", _PAGE / "page.css")
    script = inline(_PAGE / "page.js")
    calibrations = (agreement.consensus_calibration, *(judge.calibration for judge in agreement.judges))
    levels = next((each.levels for each in calibrations if each is not None and each.levels), ())
    page = (
        _environment(agreement)
        .get_template("page.html")
        .render(
            title=header.get("title", "Judge report"),
            results=header.get("results"),
            facts={name: value for name, value in header.items() if name not in ("title", "results")},
            short=_SHORT,
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            policy=one_file_policy(style=style, script=script),
            style=style,
            script=script,
            agreement=agreement,
            disputes=[
                each
                for each in (
                    ("judges", "Between judges", pages.disputed),
                    ("runs", "Between runs of one judge", pages.unstable),
                    ("people", "Between judge and people", pages.far),
                )
                if each[2]
            ],
            pages=pages,
            notes=_bounds(pages, header.get("results")),
            listing=data_for_scripts(_shown(pages.listing)),
            chunks=[data_for_scripts(_shown(chunk)) for chunk in pages.chunks],
            people_levels=", ".join(levels) or "in which people scored",
            **_measured(agreement, table),
        )
    )
    write_atomic(path, page.encode("utf-8"))


def measured(agreement: AgreementReport, table: ScoreTable | None = None) -> Markup:
    """Return the figures of the judges of a session as a piece of a page."""
    template = _environment(agreement).get_template("measured.html")
    return Markup(template.render(**_measured(agreement, table)))


def _measured(agreement: AgreementReport, table: ScoreTable | None) -> dict[str, Any]:
    charts = {
        "scores": _score_histograms(table) if table is not None else None,
        "calibration": _calibration(agreement),
    }
    return {
        "counts": agreement.counts,
        "tables": agreement_tables(agreement),
        "charts": {name: chart for name, chart in charts.items() if chart is not None},
        "not_measured": not_measured,
    }


def _environment(agreement: AgreementReport) -> Environment:
    environment = templates(_PAGE)
    environment.filters["points"] = ScoreFormat(agreement.score_min, agreement.score_max).points
    return environment


def _shown(value: Any) -> Any:
    """Return data for the script with every text in it as it may be shown."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_shown(part) for part in value]
    return {name: _shown(part) for name, part in value.items()} if isinstance(value, dict) else value


def _bounds(pages: RecordPages, results: str | None) -> list[str]:
    """Return what the page leaves out, and where it is."""
    where = f"Every record is in {results}." if results else "Every record is in the session's results file."
    notes = []
    if pages.listed < pages.records:
        notes.append(
            f"The list ends at record {pages.listed:,} of {pages.records:,} (a page holds {MAX_LISTED:,}). {where}"
        )
    if pages.detailed < pages.listed:
        notes.append(
            f"Every record's scores are listed. Texts and explanations are here for {pages.detailed:,} of them, "
            f"chosen by how far scores differ: as many as a page holds. {where}"
        )
    if pages.cut:
        notes.append(f"{pages.cut:,} long texts are cut and end in “…”. {where}")
    return notes


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


def _calibration(agreement: AgreementReport) -> SvgChart | None:
    """Return the mean score by people for each score of a judge, with intervals and the line of agreement."""
    judged = [(judge.model, judge.calibration) for judge in agreement.judges]
    if agreement.consensus_calibration is not None:
        judged.append(("panel", agreement.consensus_calibration))
    series = [ChartSeries(name, _by_category(calibration)) for name, calibration in judged]
    if not any(each.points for each in series):
        return None
    return scatter(
        series,
        low=agreement.score_min,
        high=agreement.score_max,
        label="Mean score by people against the score of the judge, with intervals; dotted where both are equal",
        axes=("score of the judge", "mean score by people"),
        number=ScoreFormat(agreement.score_min, agreement.score_max).points,
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


def _clipped(text: str | None, limit: int) -> str | None:
    """Return what a model, a file or a provider said as it is read: cut, and without what only a terminal obeys."""
    return (
        None if text is None else told_without_sequences(text if len(text) <= limit else text[:limit] + "…")
    )


def collect_records(
    table: ScoreTable, agreement: AgreementReport, records: Iterable[ReportRecord]
) -> RecordPages:
    """Return the records as the page holds them, taking each once."""
    pages = RecordPages(table.records, min(table.records, MAX_LISTED), _listing(table))
    wanted = _worth_reading(table, pages.listed, MAX_DETAILED)
    written = _worth_reading(table, pages.listed, MAX_WRITTEN_OUT)
    disputed = {
        found.record - 1 for found in (*agreement.disputed, *agreement.unstable, *agreement.far_from_people)
    }
    kept: dict[int, ReportRecord] = {}
    places, left, row = [-1] * pages.listed, MAX_CHARACTERS, -1
    for row, record in enumerate(records):
        if row in disputed:
            kept[row] = record
        if row >= pages.listed or not wanted[row] or left <= 0:
            continue
        detail = _detail(pages, record, table.models)
        left -= sum(len(part) for part in _texts_of(detail))
        pages.detailed += 1
        if row in disputed:
            kept[row] = replace(record, text=_clipped(record.text, MAX_QUOTED) or "")
        if written[row]:
            pages.written.append(_written(pages.listing, row, detail))
            continue
        if not pages.chunks or len(pages.chunks[-1]) == _CHUNK:
            pages.chunks.append([])
        places[row] = (len(pages.chunks) - 1) * _CHUNK + len(pages.chunks[-1])
        pages.chunks[-1].append(detail)
    if row + 1 != table.records:
        raise ValueError(f"the table has {table.records} rows, but there are {row + 1} records")
    pages.listing["place"] = places
    pages.disputed = [_between_judges(table, found, kept) for found in agreement.disputed]
    pages.unstable = [_between_runs(table, found, kept) for found in agreement.unstable]
    pages.far = [_against_people(table, found, kept) for found in agreement.far_from_people]
    return pages


def _listing(table: ScoreTable) -> dict[str, Any]:
    """Return the columns of the list: names, scores by model, people's, and how far scores differ."""
    import numpy as np

    records = min(table.records, MAX_LISTED)
    known = ~np.isnan(table.scores[:records])
    return {
        "models": list(table.models),
        "low": table.score_min,
        "high": table.score_max,
        "chunk": _CHUNK,
        "label": [str(label) for label in table.labels[:records]],
        "mean": [_plain(table.model_means()[:records, place]) for place in range(len(table.models))],
        "all": _plain(table.consensus()[:records]),
        "people": _plain(table.human[:records]),
        "spread": _plain(score_ranges(table.scores[:records].reshape(records, -1))),
        "unscored": (~known).sum(axis=(1, 2)).tolist(),
    }


def _plain(values: Floats) -> list[float | None]:
    """Return numbers for JSON: short, and null for NaN."""
    import numpy as np

    known: Booleans = ~np.isnan(values)
    rounded = np.round(values, _DIGITS)
    return [value if there else None for value, there in zip(rounded.tolist(), known.tolist(), strict=True)]


def _worth_reading(table: ScoreTable, listed: int, most: int) -> Booleans:
    """Return the records worth reading: all, or the ``most`` on which scores differ most."""
    import numpy as np

    wanted: Booleans = np.ones(listed, dtype=bool)
    if listed <= most:
        return wanted
    spread = score_ranges(table.scores[:listed].reshape(listed, -1))
    gap = np.abs(table.consensus()[:listed] - table.human[:listed])
    # A record without any score has the most to explain.
    interest = np.fmax(np.nan_to_num(spread, nan=table.span), np.nan_to_num(gap, nan=0.0))
    wanted[:] = False
    wanted[np.argsort(-interest, kind="stable")[:most]] = True
    return wanted


def _detail(pages: RecordPages, record: ReportRecord, models: Sequence[str]) -> list[Any]:
    """Return a record for the page: text, reference, input, and [model, run, score, explanation, error]."""
    numbers = {model: number for number, model in enumerate(models)}
    return [
        pages.clipped(record.text, MAX_TEXT),
        pages.clipped(record.ground_truth, MAX_TEXT),
        pages.clipped(record.original_input, MAX_TEXT),
        [
            [
                numbers[model],
                run,
                score,
                pages.clipped(explanation, MAX_EXPLANATION),
                pages.clipped(error, MAX_EXPLANATION),
            ]
            for model, run, score, explanation, error in record.judgements
        ],
    ]


def _written(listing: dict[str, Any], row: int, detail: Sequence[Any]) -> WrittenRecord:
    text, truth, asked, calls = detail
    titled = (("Input", asked), ("Judged text", text), ("Reference answer", truth))
    return WrittenRecord(
        number=row + 1,
        label=listing["label"][row],
        mean=listing["all"][row],
        people=listing["people"][row],
        texts=[(title, part) for title, part in titled if part],
        calls=[
            (f"{listing['models'][model]}, run {run}", score, explanation, error)
            for model, run, score, explanation, error in calls
        ],
    )


def _texts_of(detail: Sequence[Any]) -> Iterable[str]:
    for part in detail:
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            yield from _texts_of(part)


def _between_judges(table: ScoreTable, found: Disputed, kept: dict[int, ReportRecord]) -> Dispute:
    import numpy as np

    means = table.model_means()[found.record - 1]
    record = kept[found.record - 1]
    sides = [
        Side(
            table.models[place],
            float(means[place]),
            _words(_nearest(record, table.models[place], float(means[place]))),
        )
        for place in (int(np.nanargmin(means)), int(np.nanargmax(means)))
    ]
    return _dispute(found, record, sides)


def _between_runs(table: ScoreTable, found: Disputed, kept: dict[int, ReportRecord]) -> Dispute:
    import numpy as np

    scores = table.scores[found.record - 1]
    record = kept[found.record - 1]
    place = int(np.argmax(np.nan_to_num(score_ranges(scores), nan=-1.0)))
    sides = []
    for run in (int(np.nanargmin(scores[place])), int(np.nanargmax(scores[place]))):
        score = float(scores[place, run])
        explanation = _words(_nearest(record, table.models[place], score))
        sides.append(Side(f"{table.models[place]}, run {run + 1}", score, explanation))
    return _dispute(found, record, sides)


def _against_people(table: ScoreTable, found: Disputed, kept: dict[int, ReportRecord]) -> Dispute:
    record = kept[found.record - 1]
    judge, people = found.scores
    call = _nearest(record, None, judge)
    who = table.models[0]
    if len(table.models) > 1:
        who = "Mean of the judges" + (f"; nearest to it, {call.model}" if call is not None else "")
    sides = [Side("People", people, None), Side(who, judge, _words(call))]
    return _dispute(found, record, sorted(sides, key=lambda side: side.score))


def _dispute(found: Disputed, record: ReportRecord, sides: Sequence[Side]) -> Dispute:
    first, second = (replace(side, explanation=_clipped(side.explanation, MAX_EXPLANATION)) for side in sides)
    text = _clipped(record.text, MAX_EXPLANATION) or ""
    return Dispute(found.record, str(found.label), found.gap, text, (first, second))


def _nearest(record: ReportRecord, model: str | None, score: float) -> ReportJudgement | None:
    """Return the explained call whose score is nearest to ``score``; of one model, if it is named."""
    calls = [ReportJudgement(*call) for call in record.judgements]
    explained = [
        call
        for call in calls
        if call.score is not None and call.explanation and (model is None or call.model == model)
    ]
    return min(explained, key=lambda call: abs((call.score or 0.0) - score), default=None)


def _words(call: ReportJudgement | None) -> str | None:
    return call.explanation if call is not None else None

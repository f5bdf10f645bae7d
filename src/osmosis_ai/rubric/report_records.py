"""The records of a report: a short line for each, the texts of those worth reading, within fixed bounds.

What is held does not grow with the session beyond the bounds below, however many records stream past.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from osmosis_ai.rubric.spread import score_ranges
from osmosis_ai.ui.terminal_text import told_without_sequences

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Booleans, Floats, ScoreTable
    from osmosis_ai.rubric.trust import Disputed, TrustReport

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


def _clipped(text: str | None, limit: int) -> str | None:
    """Return what a model, a file or a provider said as it is read: cut, and without what only a terminal obeys."""
    return (
        None if text is None else told_without_sequences(text if len(text) <= limit else text[:limit] + "…")
    )


def collect_records(table: ScoreTable, trust: TrustReport, records: Iterable[ReportRecord]) -> RecordPages:
    """Return the records as the page holds them, taking each once."""
    pages = RecordPages(table.records, min(table.records, MAX_LISTED), _listing(table))
    wanted = _worth_reading(table, pages.listed, MAX_DETAILED)
    written = _worth_reading(table, pages.listed, MAX_WRITTEN_OUT)
    disputed = {found.record - 1 for found in (*trust.disputed, *trust.unstable, *trust.far_from_people)}
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
    pages.disputed = [_between_judges(table, found, kept) for found in trust.disputed]
    pages.unstable = [_between_runs(table, found, kept) for found in trust.unstable]
    pages.far = [_against_people(table, found, kept) for found in trust.far_from_people]
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

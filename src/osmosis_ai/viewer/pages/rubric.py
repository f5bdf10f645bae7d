"""The page of a judging session: how far its judges can be trusted, and what they said of each record.

A result is a file that anybody may have written: what is no number is no score, and what can not be read is left out
and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.ui import numbers
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.queries import Words, cursor_of, query_string

if TYPE_CHECKING:
    from markupsafe import Markup

    from osmosis_ai.rubric.scores import ScoreTable
    from osmosis_ai.rubric.trust import TrustReport
    from osmosis_ai.viewer.source import RunDetail

RECORDS_A_PAGE = 50
_MOST_SCORES = 10_000_000
_UNREADABLE = "What was measured of the judges is not in the file, or not as this release writes it: the records are below."


def page(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return a judging session, with some of its records."""
    detail, here = view.source.run("rubric", run), view.run_href("rubric", run)
    records = len(_records(detail))
    start = _start(cursor_of(words), records)
    end = start + RECORDS_A_PAGE
    return RenderedPage(
        "rubric.html",
        {
            **shown(detail, start, end),
            "crumbs": view.crumbs("rubric"),
            "left_out": 0,
            "next": here + query_string({"cursor": end}) + "#records" if end < records else None,
            "previous": here + query_string({"cursor": max(start - RECORDS_A_PAGE, 0)}) + "#records"
            if start
            else None,
        },
    )


def shown(detail: RunDetail, start: int, end: int | None, *, text: bool = True) -> dict[str, Any]:
    """Return what is shown of a judging session wherever it is shown: no address.

    Args:
        detail: the session.
        start, end: which of its records; None for all that follow.
        text: whether it holds what records and judges say.
    """
    document, records = detail.summary_numbers, _records(detail)
    measured = _measured(document, records)
    lines = [_line(start + number, record, text=text) for number, record in enumerate(records[start:end], 1)]
    return {
        "title": detail.summary.name,
        "run": detail.summary,
        "sentence": _sentence(document, records),
        "problems": [*detail.problems, *([_UNREADABLE] if measured is None and document else [])],
        "facts": detail.facts,
        "rubric": detail.config_written,
        "measured": measured,
        "records": lines,
        "total": len(records),
    }


def _records(detail: RunDetail) -> Sequence[Mapping[str, Any]]:
    return [each for each in _list(detail.summary_numbers.get("records")) if isinstance(each, dict)]


def _start(cursor: str | None, records: int) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9 and int(cursor) < max(records, 1)):
        raise OsmosisError("this cursor is not of this list.")
    return int(cursor)


def _sentence(document: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    statistics = document.get("overall_statistics")
    average = as_number(statistics.get("average")) if isinstance(statistics, dict) else None
    low, high = (as_number(document.get(end)) for end in ("score_min", "score_max"))
    scale = "" if low is None or high is None else f" on a scale from {low:g} to {high:g}"
    scored = sum(map(_has_score, records))
    many = f"{len(records):,} {'record' if len(records) == 1 else 'records'}"
    if average is None or not scored:
        return f"{many}, none with a score."
    over = many if scored == len(records) else f"the {scored:,} of {many} that have a score"
    return f"Mean score {numbers.number(average)}{scale}, over {over}."


def _measured(document: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Return what was measured of the judges; None where the file does not say so."""
    from osmosis_ai.rubric.report import measured
    from osmosis_ai.rubric.trust import TrustReport

    try:
        trust = TrustReport.from_json(document.get("trust"))
        return measured(trust, _table(trust, records))
    except (
        ValueError,
        ArithmeticError,
        LookupError,
    ):  # whatever its numbers are, they are nothing that can be drawn
        return None


def _table(trust: TrustReport, records: Sequence[Mapping[str, Any]]) -> ScoreTable | None:
    """Return the scores of a session; None where they are not all there, or not on its scale."""
    from math import prod

    import numpy as np

    from osmosis_ai.rubric.scores import ScoreTable

    models = [judge.model for judge in trust.judges]
    shape = (len(records), len(models), trust.counts.runs)
    if len(records) != trust.counts.records or len(set(models)) != len(models):
        return None
    if min(shape) < 1 or prod(shape) > _MOST_SCORES:
        return None
    scores = np.full(shape, np.nan)
    for row, record in enumerate(records):
        for model, run, call in _calls(record):
            place = models.index(model) if model in models else 0
            if run <= shape[2] and (score := as_number(call.get("score"))) is not None:
                scores[row, place, run - 1] = score
    nothing = np.full(len(records), np.nan)
    try:
        return ScoreTable(
            models, [""] * len(records), scores, trust.score_min, trust.score_max, nothing, nothing
        )
    except ValueError:
        return None


def _calls(record: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield judge, run (from 1) and call, of either form of record."""
    for call in _list(record.get("judgements", record.get("runs"))):
        if isinstance(call, dict):
            run = call.get("run", call.get("run_index"))
            yield str(call.get("model") or ""), run if isinstance(run, int) and run > 0 else 1, call


def _has_score(record: Mapping[str, Any]) -> bool:
    """Tell whether any call scored a record; the statistics of one that none did say 0.0, which is no score."""
    return any(as_number(call.get("score")) is not None for _, _, call in _calls(record))


def _line(number: int, record: Mapping[str, Any], *, text: bool) -> Mapping[str, Any]:
    """Return a record with what was said of it: ``people`` is their score; without ``text`` nothing that was said."""
    calls = [
        {
            "who": f"{model}, run {run}" if model else f"Run {run}",
            "score": as_number(call.get("score")),
            "explanation": as_text(call.get("explanation")) if text else None,
            "error": (as_text(call.get("error")) or as_text(call.get("reason"))) if text else None,
        }
        for model, run, call in _calls(record)
    ]
    mean = as_number(as_table(record.get("statistics")).get("average")) if _has_score(record) else None
    consensus = as_number(record.get("consensus"))
    return {
        "number": number,
        "label": str(record.get("label", record.get("conversation_id")) or number) if text else "",
        "mean": mean if consensus is None else consensus,
        "people": as_number(record.get("human_score")),
        "calls": calls,
    }


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()

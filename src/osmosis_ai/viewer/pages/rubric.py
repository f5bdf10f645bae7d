"""The page of a judging session: the agreement of its judges, and what they said of each record."""

from __future__ import annotations

import sys
from typing import Any

from markupsafe import Markup

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.documents import ReadResult
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.queries import Words, query_string, word
from osmosis_ai.viewer.source import ItemPage, RunDetail

RECORDS_A_PAGE = 50
_UNREADABLE = "The file contains no agreement of the judges that this release can read."


def page(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return a judging session, with some of its records."""
    detail, here = view.source.run("rubric", run), view.run_href("rubric", run)
    given = word(words, "cursor") or "0"
    # What is no number lies behind every list.
    start = int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else sys.maxsize
    end = start + RECORDS_A_PAGE
    values = shown(detail, start, end)
    if start and start >= values["total"]:
        raise OsmosisError("this cursor is not of this list.")
    found = ItemPage(
        values["records"],
        next=str(end) if end < values["total"] else None,
        previous=str(max(start - RECORDS_A_PAGE, 0)) if start else None,
    )
    return RenderedPage(
        "rubric.html",
        {
            **values,
            "found": found,
            "address": lambda **more: here + query_string(more) + "#records",
            "crumbs": view.crumbs("rubric"),
            "left_out": 0,
        },
    )


def shown(detail: RunDetail, start: int, end: int | None, *, text: bool = True) -> dict[str, Any]:
    """Return what is shown of a judging session wherever it is shown: no address."""
    result = ReadResult(detail.summary_numbers)
    measured = _measured(result)
    return {
        "title": detail.summary.name,
        "run": detail.summary,
        "sentence": result.sentence,
        "problems": [*detail.problems, *([_UNREADABLE] if measured is None and result.document else [])],
        "facts": detail.facts,
        "rubric": detail.config_written,
        "measured": measured,
        "text": text,
        "start": start,
        "records": result.records[start:end],
        "total": len(result.records),
    }


def _measured(result: ReadResult) -> Markup | None:
    """Return what was measured of the judges; None where the file does not say so."""
    from osmosis_ai.rubric.judge_agreement import AgreementReport
    from osmosis_ai.rubric.report import measured

    try:
        agreement = AgreementReport.from_json(result.document.get("trust"))
        return measured(agreement, result.table(agreement))
    except (ValueError, ArithmeticError, LookupError):
        return None  # whatever its numbers are, they are nothing that can be drawn

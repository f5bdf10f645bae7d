"""One HTML page with all a session found: it holds everything it shows, and asks nobody for anything.

Texts of records, models and judges are data, whatever they say: the template escapes all of it, data for
the scripts is JSON in which no tag can begin, scripts write text and never HTML, and the page's own
policy lets no other script run and nothing be fetched.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import MissingExtraError
from osmosis_ai.files import write_atomic
from osmosis_ai.rubric.messages import Wording, percent
from osmosis_ai.rubric.report_records import (
    MAX_LISTED,
    Dispute,
    RecordPages,
    ReportJudgement,
    ReportRecord,
    collect_records,
)

if TYPE_CHECKING:
    from jinja2 import Environment

    from osmosis_ai.rubric.scores import ScoreTable
    from osmosis_ai.rubric.trust import TrustReport

__all__ = ["ReportJudgement", "ReportRecord", "write_report"]

_PAGE = Path(__file__).parent / "page"
_SHORT = 160


def write_report(
    path: Path,
    header: Mapping[str, str],
    table: ScoreTable,
    trust: TrustReport,
    records: Iterable[ReportRecord],
) -> None:
    """Write the report of a session as one HTML file that needs nothing else.

    Scores of up to :data:`~osmosis_ai.rubric.report_records.MAX_LISTED` records are listed; the texts
    of up to :data:`~osmosis_ai.rubric.report_records.MAX_DETAILED` of them, those on which scores
    differ most, can be opened, long ones cut. The page says where a list ends and how to go on.

    Args:
        path: the file, replaced in one step.
        header: what people should know of the session, in order: ``title`` names the page, ``results``
            the file that holds every record, every other entry is shown under its name.
        table: the scores.
        trust: what was measured on them.
        records: one for each row of ``table``, in its order; taken one at a time.

    Raises:
        MissingExtraError: without plotly.
        ValueError: when there are fewer or more records than rows.
        OSError: when the file cannot be written.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise MissingExtraError("report", error.name or "plotly") from None
    from osmosis_ai.rubric.report_charts import charts

    pages = collect_records(table, trust, records)
    facts = {name: value for name, value in header.items() if name not in ("title", "results")}
    page = (
        _environment(Wording(table.score_min, table.score_max, table.runs))
        .get_template("page.html")
        .render(
            title=header.get("title", "Judge report"),
            results=header.get("results"),
            facts=facts,
            short=_SHORT,
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            nonce=secrets.token_urlsafe(16),
            trust=trust,
            models=table.models,
            disputes=_disputes(pages),
            pages=pages,
            notes=_bounds(pages, header.get("results")),
            charts={name: _embedded(figure) for name, figure in charts(table, trust).items()},
            listing=_embedded(pages.listing),
            chunks=[_embedded(chunk) for chunk in pages.chunks],
            plotly_source=_script(get_plotlyjs()),
            people_levels=_categories(trust),
        )
    )
    # A text may hold half of a surrogate pair, which no file can.
    write_atomic(path, page.encode("utf-8", errors="replace"))


def _environment(wording: Wording) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = lambda name: Markup((_PAGE / name).read_text(encoding="utf-8"))
    environment.filters["number"] = wording.coefficient
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["points"] = wording.points
    environment.filters["signed"] = lambda value: wording.points(value, sign=True)
    environment.filters["percent"] = percent
    environment.filters["breakable"] = lambda name: Markup("/<wbr>").join(name.split("/"))
    return environment


def _embedded(value: Any) -> Any:
    """Return ``value`` as JSON that may stand in a script element: no tag, comment or line can begin in it."""
    from markupsafe import Markup

    encoded = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return Markup(encoded)


def _script(source: str) -> Any:
    """Return plotly's own source as it may stand in a script element."""
    from markupsafe import Markup

    return Markup(source.replace("</script", "<\\/script"))


def _categories(trust: TrustReport) -> str:
    """Return the categories that kappas were taken on."""
    calibrations = [trust.consensus_calibration, *(judge.calibration for judge in trust.judges)]
    found = next((each.levels for each in calibrations if each is not None and each.levels), None)
    return ", ".join(found) if found else "in which people scored"


def _disputes(pages: RecordPages) -> list[tuple[str, str, str, list[Dispute]]]:
    """Return the lists of disputed records: (anchor, heading, explanation, records)."""
    lists = [
        (
            "judges",
            "Between judges",
            "The two judges whose mean scores of a record lie farthest apart.",
            pages.disputed,
        ),
        (
            "runs",
            "Between runs of one judge",
            "The same judge, asked twice about the same record.",
            pages.unstable,
        ),
        (
            "people",
            "Between judge and people",
            "The judges' mean against the score given by people.",
            pages.far,
        ),
    ]
    return [found for found in lists if found[3]]


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

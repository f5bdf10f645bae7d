"""One HTML page with all a session found: it holds everything it shows, and asks nobody for anything.

Texts of records, models and judges are data, whatever they say: the template escapes all of it, data for
the script is JSON in which no tag can begin, the script writes text and never HTML, and the page's own
policy lets no other style or script in and nothing be fetched. Without scripts it is read all the same;
they add the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from osmosis_ai.files import write_atomic
from osmosis_ai.rubric.messages import Wording, percent
from osmosis_ai.rubric.report_charts import agreement_square, charts
from osmosis_ai.rubric.report_records import (
    MAX_LISTED,
    Dispute,
    RecordPages,
    ReportJudgement,
    ReportRecord,
    collect_records,
)
from osmosis_ai.ui.assets import KIT
from osmosis_ai.ui.pages import inline, one_file_policy, templates
from osmosis_ai.ui.text import data_for_scripts, visible

if TYPE_CHECKING:
    from jinja2 import Environment

    from osmosis_ai.rubric.scores import ScoreTable
    from osmosis_ai.rubric.trust import TrustReport

__all__ = ["ReportJudgement", "ReportRecord", "write_report"]

_PAGE = Path(__file__).parent / "page"
_SHORT = 160
_SHADES = 5


def write_report(
    path: Path,
    header: Mapping[str, str],
    table: ScoreTable,
    trust: TrustReport,
    records: Iterable[ReportRecord],
) -> None:
    """Write the report of a session as one HTML file that needs nothing else."""
    pages = collect_records(table, trust, records)
    style = inline(KIT / "tokens.css", KIT / "kit.css", KIT / "judging.css", _PAGE / "page.css")
    script = inline(_PAGE / "page.js")
    page = (
        _environment(Wording(table.score_min, table.score_max, table.runs))
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
            trust=trust,
            models=table.models,
            disputes=_disputes(pages),
            pages=pages,
            notes=_bounds(pages, header.get("results")),
            charts=charts(trust, table),
            square=agreement_square(trust),
            listing=data_for_scripts(_shown(pages.listing)),
            chunks=[data_for_scripts(_shown(chunk)) for chunk in pages.chunks],
            people_levels=_categories(trust),
        )
    )
    write_atomic(path, page.encode("utf-8"))


def measured(trust: TrustReport, table: ScoreTable | None = None) -> Markup:
    """Return what was measured of the judges of a session, as a piece of a page."""
    wording = Wording(trust.score_min, trust.score_max, trust.counts.runs)
    page = (
        _environment(wording)
        .get_template("measured.html")
        .render(
            trust=trust,
            models=[judge.model for judge in trust.judges],
            charts=charts(trust, table),
            square=agreement_square(trust),
        )
    )
    return Markup(page)


def _environment(wording: Wording) -> Environment:
    environment = templates(_PAGE)
    environment.globals["shade"] = lambda value: max(0, round(_SHADES * (value or 0.0)))
    environment.filters["number"] = wording.coefficient
    environment.filters["points"] = wording.points
    environment.filters["signed"] = lambda value: wording.points(value, sign=True)
    environment.filters["percent"] = percent
    return environment


def _shown(value: Any) -> Any:
    """Return data for the script with every text in it as it may be shown."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_shown(part) for part in value]
    return {name: _shown(part) for name, part in value.items()} if isinstance(value, dict) else value


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

"""A run's log, a page at a time, its end first."""

from __future__ import annotations

from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.queries import Words, query_string, word

LINES_A_PAGE = 200


def page(view: Viewing, words: Words, *, run: str, kind: RunKind = "eval") -> RenderedPage:
    """Return lines of a run's log."""
    cursor = word(words, "cursor")
    live = view.live(kind, run)
    found = view.read(view.source.log, kind, run, limit=LINES_A_PAGE, cursor=cursor)
    here = view.run_href(kind, run, "log")
    return RenderedPage(
        "log.html",
        {
            "title": f"Log of {run}",
            "crumbs": view.crumbs(kind, run),
            "here": here,
            "log": found.logs,
            "older": here + query_string({"cursor": found.next_cursor}) if found.next_cursor else None,
            "is_end": cursor is None,
        },
        parts={"log": "log_lines.html"},
        live=live,
    )

"""The samples of an evaluation in a table: flat or by row, filtered, and searched in previews and conversations."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import get_args

from osmosis_ai.errors import OsmosisError
from osmosis_ai.viewer import queries
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.conversation_search import search_conversations
from osmosis_ai.viewer.source import Outcome, SampleQuery

SAMPLES_A_PAGE = 100


def page(view: Viewing, words: queries.Words, *, run: str) -> RenderedPage:
    """Return samples of an evaluation; the page hears when the run ends, or is deleted."""
    query, grouped = queries.sample_query(words), queries.choice_of(words, "group", ("row",))
    in_conversations = queries.searches_conversations(words, query)
    cursor, source = queries.word(words, "cursor"), view.source
    search = search_conversations(source, run, query, cursor=cursor) if in_conversations else None
    found = search.page if search else source.samples(run, query, limit=SAMPLES_A_PAGE, cursor=cursor)
    if not found.items and found.progress is None:
        require_category(view, run, query)
    filters = queries.words_of_sample_query(query)
    here = view.run_href("eval", run, "samples")
    shown = filters | {"group": grouped or "", "in": "conversations" if in_conversations else ""}
    # A sample's neighbours come from the table, which does not know what conversations hold.
    near = queries.query_string(filters | {"q": ""} if in_conversations else filters)
    return RenderedPage(
        "samples.html",
        {
            "title": f"Attempts of {run}",
            "crumbs": view.crumbs("eval", run),
            "here": here,
            "found": found,
            "search": search,
            "query": query,
            "run": run,
            "near": near,
            "groups": [(row, list(those)) for row, those in groupby(found.items, key=attrgetter("row"))]
            if grouped and query.sort == "row"
            else None,
            "grouped": grouped,
            "in_conversations": in_conversations,
            "outcomes": get_args(Outcome),
            "address": lambda **more: here + queries.query_string(shown, **more),
            "filters": filters,
            "filtered": queries.is_filtered(query),
            "narrowed": queries.is_filtered(replace(query, text="", outcome=None)),
            "exported": queries.query_string(shown, group=""),
        },
        parts={"outcomes": "samples_outcomes.html"},
        # One that is not read to its end comes again by itself.
        live=view.live("eval", run) if found.progress is None else None,
    )


def require_category(view: Viewing, run: str, query: SampleQuery) -> None:
    """Refuse a category that nothing of a run has failed with."""
    if query.category is None:
        return
    known = sorted({each.category for each in view.source.run("eval", run).failures if each.category})
    if query.category not in known:
        there = f"what failed is {', '.join(known[:20])}" if known else "it has no failures"
        raise OsmosisError(f"nothing in this run failed with the category {query.category!r}: {there}.")

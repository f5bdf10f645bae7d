"""The samples of an evaluation in a table: flat or by row, filtered, and searched in previews and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import get_args

from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.conversation_search import search_conversations
from osmosis_ai.viewer.pages.runs import sort_link
from osmosis_ai.viewer.queries import (
    Words,
    cursor_of,
    groups_by_row,
    is_filtered,
    query_string,
    sample_query,
    searches_conversations,
    words_of_sample_query,
)
from osmosis_ai.viewer.source import Outcome, SampleEntry, SampleQuery, SampleSort

SAMPLES_A_PAGE = 100


@dataclass(frozen=True, slots=True)
class SampleLine:
    """A sample of the table; its link keeps the filter, so that the next one is the next inside it."""

    sample: SampleEntry
    href: str


def page(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return samples of an evaluation."""
    query, grouped = sample_query(words), groups_by_row(words)
    in_conversations = searches_conversations(words, query)
    if in_conversations:
        search = search_conversations(view.source, run, query, cursor=cursor_of(words))
        found = search.page
    else:
        search = None
        found = view.source.samples(run, query, limit=SAMPLES_A_PAGE, cursor=cursor_of(words))
    filters = words_of_sample_query(query)
    here = view.run_href("eval", run, "samples")
    shown = filters | {
        "group": "row" if grouped else "",
        "in": "conversations" if in_conversations else "",
    }
    # A sample's neighbours come from the table, which does not know what conversations hold.
    near = query_string(filters | {"q": ""} if in_conversations else filters)
    lines = [SampleLine(each, view.sample_href(run, each.row, each.attempt) + near) for each in found.items]
    return RenderedPage(
        "samples.html",
        {
            "title": f"Samples of {run}",
            "crumbs": view.crumbs("eval", run),
            "here": here,
            "found": found,
            "search": search,
            "query": query,
            "lines": lines,
            "groups": [(row, list(found)) for row, found in groupby(lines, key=lambda line: line.sample.row)]
            if grouped and query.sort == "row"
            else None,
            "grouped": grouped,
            "in_conversations": in_conversations,
            "can_search": view.can("conversations"),
            "outcomes": _outcomes(query, here, shown, found.counts),
            "ranges": _ranges(filters),
            "headings": {
                name: sort_link(query, here, shown, name, ("row", "reward")) for name in get_args(SampleSort)
            },
            "filtered": is_filtered(query),
            "narrowed": is_filtered(replace(query, text="", outcome=None)),
            "next": found.next and here + query_string(shown, cursor=found.next),
            "previous": found.previous and here + query_string(shown, cursor=found.previous),
            "exports": [(kind, f"{here}.{kind}{query_string(shown, group='')}") for kind in ("csv", "jsonl")],
        },
        parts={"samples": "samples_table.html"},
    )


def _outcomes(
    query: SampleQuery, here: str, shown: dict[str, str], counts: object
) -> Sequence[tuple[str, str, bool, int | None]]:
    """Return (word, link, whether it is chosen, how many) of every outcome, and of all."""
    known = counts if isinstance(counts, dict) else {}
    choices: Sequence[Outcome | None] = (None, *get_args(Outcome))
    return [
        (
            outcome or "all",
            here + query_string(shown | {"outcome": outcome or ""}),
            query.outcome == outcome,
            known.get(outcome or "unfiltered"),
        )
        for outcome in choices
    ]


def _ranges(filters: dict[str, str]) -> Sequence[tuple[str, str, str, str]]:
    """Return (label, word, least, most) of what can be limited."""
    labels = {"reward": "Reward", "tokens": "Tokens", "seconds": "Seconds", "cost": "Cost, USD"}
    return [
        (label, name, filters.get(f"min_{name}", ""), filters.get(f"max_{name}", ""))
        for name, label in labels.items()
    ]

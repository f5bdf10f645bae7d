"""Lists: runs, attempts, and the lines of a log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import get_args

from markupsafe import Markup

from osmosis_ai.errors import OsmosisError
from osmosis_ai.ui.charts import sparkline
from osmosis_ai.ui.numbers import number, percent
from osmosis_ai.viewer import queries
from osmosis_ai.viewer.access import LISTS, SECTIONS, RenderedPage, Viewing
from osmosis_ai.viewer.conversations import search_conversations
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.queries import Words, query_string, word
from osmosis_ai.viewer.source import SORTED_BY, Outcome, RunEntry, SampleEntry, SampleQuery

RUNS_A_PAGE = 50
PLATFORM_COMMANDS: dict[RunKind, Sequence[str]] = {
    "eval": ("osmosis eval submit configs/eval/NAME.toml",),
    "training": ("osmosis train submit configs/training/NAME.toml",),
}
LOCAL_COMMANDS: dict[RunKind, Sequence[str]] = {
    "eval": ("osmosis eval run configs/eval/NAME.toml", "osmosis demo"),
    "rubric": ("osmosis eval rubric -d DATA -r @RUBRIC.md --model MODEL",),
}
"""Commands that create the first run of an empty list."""


def runs(view: Viewing, words: queries.Words, *, kind: RunKind | None = None) -> RenderedPage:
    query = queries.run_query(words, kind=kind)
    found = view.source.runs(query, limit=RUNS_A_PAGE, cursor=queries.word(words, "cursor"))
    here = view.href(SECTIONS[kind]) if kind is not None else view.href()
    filters = queries.kept_words(words, queries.RUN_WORDS)
    return RenderedPage(
        "runs.html",
        {
            "title": LISTS[kind] if kind else "Runs",
            "kind": kind,
            "found": found,
            "runs": [(run, view.run_href(run.kind, run.name), _trend(run)) for run in found.items],
            "query": query,
            "since": queries.word(words, "since"),
            "until": queries.word(words, "until"),
            "statuses": queries.STATUSES,
            "here": here,
            "address": lambda **more: here + queries.query_string(filters, **more),
            "filtered": queries.is_filtered(filters),
            "narrowed": queries.is_filtered(filters, "q", "status") or query.archived,
            "commands": (LOCAL_COMMANDS if view.is_local else PLATFORM_COMMANDS).get(kind or "eval", ()),
            "compares": kind != "rubric" and bool(found.items),
            "compared": kind or "eval",
            "compare": view.href("compare"),
        },
    )


def _trend(run: RunEntry) -> Markup:
    if run.kind == "eval":
        return sparkline(run.trend, label="pass rates", number=percent)
    return sparkline(run.trend, label="rewards", number=number)


SAMPLES_A_PAGE = 100
_AMOUNTS = ("reward", "tokens", "duration", "cost")


def samples(view: Viewing, words: queries.Words, *, run: str) -> RenderedPage:
    """Return an evaluation's attempts; the page updates when the run ends or is deleted."""
    query, grouped = queries.sample_query(words), queries.choice_of(words, "group", ("row",))
    in_conversations = queries.searches_conversations(words, query)
    cursor, source = queries.word(words, "cursor"), view.source
    search = search_conversations(source, run, query, cursor=cursor) if in_conversations else None
    found = search.page if search else source.samples(run, query, limit=SAMPLES_A_PAGE, cursor=cursor)
    if not found.items and found.progress is None:
        require_category(view, run, query)
    filters = queries.kept_words(words, queries.SAMPLE_WORDS)
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
            "columns": [name for name in _AMOUNTS if query.sort == name or _varies(found.items, name)],
            "causes": sorted({*_causes(view, run), *([query.category] if query.category else [])}),
            "address": lambda **more: here + queries.query_string(shown, **more),
            "filters": filters,
            "filtered": queries.is_filtered(filters),
            "narrowed": queries.is_filtered(filters, "q", "outcome", "category"),
            "exported": queries.query_string(shown, group=""),
        },
        parts={"outcomes": "samples_outcomes.html"},
        # One that is not read to its end comes again by itself.
        is_live=found.progress is None,
    )


def _varies(samples: Sequence[SampleEntry], sort: str) -> bool:
    """Whether a column has different values; constant columns are hidden."""
    values = {getattr(each, SORTED_BY[sort] or "") for each in samples}
    return values != {None} if len(samples) == 1 else len(values) > 1


def _causes(view: Viewing, run: str) -> set[str]:
    return {each.category for each in view.source.run("eval", run).failures if each.category}


def require_category(view: Viewing, run: str, query: SampleQuery) -> None:
    """Raise an error for a code that no attempt failed with."""
    known = sorted(_causes(view, run)) if query.category is not None else []
    if query.category is not None and query.category not in known:
        there = f"its failures are {', '.join(known[:20])}" if known else "it has no failures"
        raise OsmosisError(f"no attempt of this run failed with the category {query.category!r}: {there}.")


LINES_A_PAGE = 200


def log(view: Viewing, words: Words, *, run: str, kind: RunKind = "eval") -> RenderedPage:
    cursor = word(words, "cursor")
    found = view.source.log(kind, run, limit=LINES_A_PAGE, cursor=cursor)
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
    )

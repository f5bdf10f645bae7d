"""The list of runs: what ran here, how it went, and which to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from osmosis_ai.ui.numbers import number, percent
from osmosis_ai.viewer import queries
from osmosis_ai.viewer.access import LISTS, SECTIONS, RenderedPage, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunEntry

RUNS_A_PAGE = 50
_SUBMIT = "osmosis eval submit configs/eval/NAME.toml"
_RUN = ("osmosis eval run configs/eval/NAME.toml", "osmosis demo")
PLATFORM_COMMANDS: dict[RunKind | None, Sequence[str]] = {
    None: (_SUBMIT,),
    "eval": (_SUBMIT,),
    "training": ("osmosis train submit configs/training/NAME.toml",),
}
LOCAL_COMMANDS: dict[RunKind | None, Sequence[str]] = {
    None: _RUN,
    "eval": _RUN,
    "rubric": ("osmosis eval rubric -d DATA -r @RUBRIC.md --model MODEL",),
}
"""Commands that create the first run of an empty list."""


def page(view: Viewing, words: queries.Words, *, kind: RunKind | None = None) -> RenderedPage:
    """Return runs of a kind, or of all."""
    query = queries.run_query(words, kind=kind)
    found = view.source.runs(query, limit=RUNS_A_PAGE, cursor=queries.word(words, "cursor"))
    here = view.href(SECTIONS[kind]) if kind is not None else view.href()
    filters = queries.words_of_run_query(query)
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
            "filtered": queries.is_filtered(query),
            "narrowed": queries.is_filtered(replace(query, text="", status=None)) or query.archived,
            "commands": (LOCAL_COMMANDS if view.is_local else PLATFORM_COMMANDS).get(kind, ()),
            "compares": view.can("compare") and kind != "rubric" and bool(found.items),
            "compared": kind or "eval",
            "compare": view.href("compare"),
        },
    )


def _trend(run: RunEntry) -> Markup:
    """Return how the last runs of its config came out, this one the last."""
    from osmosis_ai.ui.charts.curves import sparkline

    is_rate = run.kind == "eval"
    return sparkline(
        run.trend, label="pass rates" if is_rate else "rewards", number=percent if is_rate else number
    )

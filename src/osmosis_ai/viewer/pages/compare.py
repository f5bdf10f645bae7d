"""Runs side by side: the engine of ``eval compare`` and ``train compare``, with its numbers and its sentence first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from starlette.responses import RedirectResponse, Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.viewer.access import SECTIONS, RenderedPage, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.pages import compare_evaluations, compare_training
from osmosis_ai.viewer.queries import Words, choice_of, query_string, word
from osmosis_ai.viewer.source import SampleEntry

_MOST_RUNS = 10
_MOST_PLACES = 1_000


def page(view: Viewing, words: Words) -> RenderedPage:
    """Return what runs came to beside each other, the first of them as the baseline."""
    names = list(dict.fromkeys(map(_named, words.get("run", ()))))
    if len(names) > _MOST_RUNS:
        raise OsmosisError(f"at most {_MOST_RUNS} runs are compared at a time.")
    here = view.href("compare")
    turned = here + query_string({"run": [*names[1:], *names[:1]]})
    given: dict[str, Any] = {"title": "Compare", "names": names, "turned": turned, "again": here}
    if len(names) < 2:
        return RenderedPage("compare.html", {**given, "itself": len(words.get("run", ())) > 1})
    options = compare_evaluations.options_of(words)
    kind = _kind(view, names, words)
    try:
        if kind == "training":
            return RenderedPage("compare_training.html", {**given, **compare_training.found(view, names)})
        given |= compare_evaluations.choices(words)
        found = compare_evaluations.found(view, names, options)
        return RenderedPage("compare_evaluations.html", {**given, **found})
    except OsmosisError as error:
        _kind(view, names, words)  # says which of them was deleted meanwhile
        # A name is written as it is.
        refused = error.message if error.message.startswith(tuple(names)) else error.sentence
        given |= {"refused": refused, "mended_by": compare_evaluations.allowance_for(error)}
        # Of what the address names there is none; else it is the runs that may not be compared.
        return RenderedPage("compare.html", given, 400 if {"metric", "column"} & {*error.details} else 200)


def _named(run: str) -> str:
    """Return the name of a run that may be written as its page's address ends: ``evals/base``."""
    section, _, name = run.partition("/")
    return name if name and section in SECTIONS.values() else run


def row(view: Viewing, words: Words) -> Response:
    """Lead to the two conversations about a row, side by side; where only one run has it, to that one."""
    names, digest = list(words.get("run", ()))[:2], word(words, "row") or ""
    found = zip(names, view.source.samples_of_row(digest, names, limit=_MOST_PLACES), strict=True)
    there = [(name, min(samples, key=_telling)) for name, samples in found if samples]
    if not there:
        raise NotFoundError("neither run has this row, or which rows they have was not recorded.")
    address = view.sample_href(there[0][0], there[0][1].row, there[0][1].attempt)
    if len(there) > 1:
        name, sample = there[1]
        address += query_string({"with": f"{name}/{sample.row}.{sample.attempt}"})
    return RedirectResponse(address, status_code=303)


def _telling(sample: SampleEntry) -> tuple[bool, int]:
    """Return by what attempts are sorted for who reads one: failed ones tell why, and the first is the first."""
    return sample.passed is not False, sample.attempt


def _kind(view: Viewing, names: Sequence[str], words: Words) -> RunKind:
    """Return of which kind all the runs are."""
    kinds: Sequence[RunKind] = ("eval", "training")
    wanted = [asked] if (asked := choice_of(words, "kind", kinds)) else kinds
    there = view.source.kinds(names)
    for kind in wanted:
        if all(kind in there[name] for name in names):
            return kind
    missing = next((name for name in names if not {*wanted} & {*there[name]}), None)
    if missing is None:
        raise OsmosisError("an evaluation and a training run cannot be compared.")
    nearest: list[list[str]] = []
    for kind in wanted:
        try:
            view.source.run(kind, missing)
        except NotFoundError as error:
            nearest.append([f"{SECTIONS[kind]}/{near}" for near in error.details.get("nearest", ())])
    of_each = [near for best in zip_longest(*nearest) for near in best if near is not None]
    raise NotFoundError(f"there is no run '{missing[:200]}' to compare.", details={"nearest": of_each[:3]})

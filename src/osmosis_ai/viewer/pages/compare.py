"""Runs side by side: the engine of ``eval compare`` and ``train compare``, with its numbers and its sentence first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from starlette.responses import RedirectResponse, Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.run_places import RunKind
from osmosis_ai.viewer.access import SECTIONS, RenderedPage, Viewing
from osmosis_ai.viewer.pages import compare_evaluations, compare_training
from osmosis_ai.viewer.queries import Words, query_string, word
from osmosis_ai.viewer.source import RunDetail, SampleEntry

_MOST_RUNS = 10
_MOST_PLACES = 1_000


def page(view: Viewing, words: Words) -> RenderedPage:
    """Return what runs came to beside each other, the first of them as the baseline.

    Raises:
        OsmosisError: VALIDATION, they are too many or of two kinds; NOT_FOUND, one is not there.
    """
    given_names = words.get("run", ())
    names = list(dict.fromkeys(given_names))
    if len(names) > _MOST_RUNS:
        raise OsmosisError(f"at most {_MOST_RUNS} runs are compared at a time.")
    here = view.href("compare")
    turned = here + query_string({"run": [*names[1:], *names[:1]]})
    given = {"title": "Compare", "names": names, "turned": turned, "again": here}
    if len(names) < 2:
        return RenderedPage("compare.html", {**given, "itself": len(given_names) > 1})
    # Of the others that is asked where it is shown: a platform takes six statements to tell all of a run.
    last = _found(view, names[-1], word(words, "kind"))
    if last.summary.kind == "training":
        runs = [*_others(view, names, words, last), last]
        return RenderedPage("compare_training.html", {**given, **compare_training.found(view, names, runs)})
    # As `eval compare` has it: the file beside the last run's config says between what rewards lie.
    options = compare_evaluations.options_of(words, last.decided.reward_range if last.decided else None)
    choices = compare_evaluations.choices(words)
    try:
        found = compare_evaluations.found(view, names, options)
    except NotFoundError:
        _others(view, names, words, last)
        raise
    except OsmosisError as error:
        told = {"refused": error.message, "mended_by": compare_evaluations.allowance_for(error)}
        return RenderedPage("compare.html", {**given, **choices, **told})
    return RenderedPage("compare_evaluations.html", {**given, **choices, **found})


def row(view: Viewing, words: Words) -> Response:
    """Lead to the two conversations about a row, side by side; where only one run has it, to that one.

    Raises:
        NotFoundError: no run has it.
    """
    names, digest = list(words.get("run", ()))[:2], word(words, "row") or ""
    places: dict[str, SampleEntry] = {}
    for run, sample in view.source.elsewhere(digest, limit=_MOST_PLACES):
        if run.name in names and (run.name not in places or _tells_more(sample, places[run.name])):
            places[run.name] = sample
    there = [(name, places[name]) for name in names if name in places]
    if not there:
        raise NotFoundError("neither run has this row, or which rows they have was not recorded.")
    address = view.sample_href(there[0][0], there[0][1].row, there[0][1].attempt)
    if len(there) > 1:
        name, sample = there[1]
        address += query_string({"with": f"{name}/{sample.row}.{sample.attempt}"})
    return RedirectResponse(address, status_code=303)


def _tells_more(one: SampleEntry, other: SampleEntry) -> bool:
    """Whether an attempt is rather read than another one: failed ones tell why, and the first is the first."""
    return (one.passed is not False, one.attempt) < (other.passed is not False, other.attempt)


def _others(view: Viewing, names: Sequence[str], words: Words, last: RunDetail) -> list[RunDetail]:
    others = [_found(view, name, word(words, "kind")) for name in names[:-1]]
    if any(each.summary.kind != last.summary.kind for each in others):
        raise OsmosisError("an evaluation and a training run can not be compared.")
    return others


def _found(view: Viewing, name: str, given: str | None) -> RunDetail:
    kinds: Mapping[str | None, Sequence[RunKind]] = {"training": ("training",), "eval": ("eval",)}
    nearest: list[list[str]] = []
    for kind in kinds.get(given, ("eval", "training")):
        try:
            return view.source.run(kind, name)
        except NotFoundError as error:
            nearest.append([f"{SECTIONS[kind]}/{near}" for near in error.details.get("nearest", ())])
    of_each = [near for best in zip_longest(*nearest) for near in best if near is not None]
    raise NotFoundError(f"there is no run '{name[:200]}' to compare.", details={"nearest": of_each[:3]})

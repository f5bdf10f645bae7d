"""Pages as one file, to be sent and opened from a disk: those of the viewer, in a shell that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any

from osmosis_ai.ui.assets import style_files
from osmosis_ai.ui.pages import inline, one_file_policy
from osmosis_ai.viewer.pages import compare_evaluations, rubric, training
from osmosis_ai.viewer.rendering import TEMPLATES, environment
from osmosis_ai.viewer.source import ItemPage, RunDetail

if TYPE_CHECKING:
    from osmosis_ai.decisions.compare import RunComparison
    from osmosis_ai.decisions.samples import RunSamples
    from osmosis_ai.training.runs.curves import TrainingCurves

MOST_RECORDS = 2_000
"""Records of a judging session, without ``everything``."""
_OF_THIS_MACHINE = ("Directory", "File")
"""Facts that mean nothing where the file is read, and tell of where it was made."""
_PATHS = ("Data", "Rubric from")
"""Facts of which the file's name is enough."""
_ONLY_READ = {"actions": None}


def facts_to_send(facts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return facts of a run without what is of this machine alone."""
    return [
        (label, PurePath(value).name if label in _PATHS else value)
        for label, value in facts
        if label not in _OF_THIS_MACHINE
    ]


def detail_to_send(detail: RunDetail, *, text: bool) -> RunDetail:
    """Return what a file tells of a run: nothing to type, and without ``text`` nothing that anybody wrote."""
    detail = replace(detail, commands=(), facts=facts_to_send(detail.facts))
    if text:
        return detail
    summary = replace(detail.summary, error=None)
    return replace(detail, config_written=None, config_effective={}, problems=detail.context, summary=summary)


def write_comparison_report(
    file: IO[bytes], comparison: RunComparison, runs: Sequence[RunSamples], *, text: bool
) -> None:
    """Write a comparison of ``runs``, the baseline first; values of a dataset's columns are ``text``."""
    if not text:
        candidates = tuple(replace(candidate, slices=()) for candidate in comparison.candidates)
        comparison = replace(comparison, candidates=candidates)
    names = [run.name for run in runs]
    title = f"{' and '.join(names[1:])} against {names[0]}"
    shown = compare_evaluations.shown(comparison, runs)
    write_page(file, "compare_evaluations.html", {**shown, "title": title, "names": names, "turned": None})


def write_training_report(file: IO[bytes], detail: RunDetail, curves: TrainingCurves, *, text: bool) -> None:
    """Write a training run."""
    if not text:
        curves = replace(curves, marks=[mark for mark in curves.marks if mark.kind != "warning"])
    shown = training.shown(detail_to_send(detail, text=text), curves)
    write_page(file, "training.html", {**shown, "here": None, "log": None, "log_href": None})


def write_judging_report(
    file: IO[bytes],
    detail: RunDetail,
    *,
    text: bool,
    everything: bool = False,
    scores: rubric.JudgeScores | None = None,
    left_out: str = "",
) -> None:
    """Write the result of a judging session; ``left_out`` says which records its document does not contain."""
    most = None if everything else MOST_RECORDS
    shown = rubric.shown(detail_to_send(detail, text=text), 0, most, text=text, scores=scores)
    if more := shown["total"] - len(shown["records"]):
        left_out = f"; {more:,} are left out: --all has them"
    write_page(file, "rubric.html", {**shown, "found": ItemPage(shown["records"]), "left_out": left_out})


def write_page(file: IO[bytes], template: str, values: Mapping[str, Any]) -> None:
    """Write a page, in pieces while it is made, with its style and the policy that lets that in and nothing else."""
    style = inline(*style_files())
    policy = one_file_policy(style)
    page = environment(TEMPLATES / "one_file").get_template(template)
    page.stream({"style": style, "policy": policy, "view": _ONLY_READ, **values}).dump(
        file, "utf-8", "replace"
    )

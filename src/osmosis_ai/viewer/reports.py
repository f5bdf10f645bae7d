"""Reports: a page in a single file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import IO, Any

from markupsafe import Markup

from osmosis_ai.decisions.compare import RunComparison
from osmosis_ai.decisions.samples import RunSamples
from osmosis_ai.training.runs.curves import TrainingCurves
from osmosis_ai.ui.pages import KIT, ShellView, one_file_policy
from osmosis_ai.viewer.access import TEMPLATES, Viewing, environment
from osmosis_ai.viewer.pages import compare, runs
from osmosis_ai.viewer.pages.conversation import viewed
from osmosis_ai.viewer.source import ItemPage, RunDetail, RunSource, SampleEntry, SampleQuery, pieces

MOST_RECORDS = 2_000
_OF_THIS_MACHINE = ("Directory", "File")
_PATHS = ("Data", "Rubric from")


def detail_to_send(detail: RunDetail, *, text: bool) -> RunDetail:
    """Return a run's details without commands and, unless ``text``, without texts."""
    facts = [
        (label, PurePath(value).name if label in _PATHS else value)
        for label, value in detail.facts
        if label not in _OF_THIS_MACHINE
    ]
    detail = replace(detail, commands=(), previous=None, facts=facts)
    if text:
        return detail
    summary = replace(detail.summary, error=None)
    return replace(detail, config_written=None, config_effective={}, problems=detail.context, summary=summary)


def write_comparison_report(
    file: IO[bytes], comparison: RunComparison, runs: Sequence[RunSamples], *, text: bool
) -> None:
    """Write a comparison, the baseline first; values of dataset columns count as ``text``."""
    if not text:
        candidates = tuple(replace(candidate, slices=()) for candidate in comparison.candidates)
        comparison = replace(comparison, candidates=candidates)
    names = [run.name for run in runs]
    title = f"{' and '.join(names[1:])} against {names[0]}"
    shown = compare.shown(comparison, runs)
    write_page(file, "compare_evaluations.html", {**shown, "title": title, "names": names, "turned": None})


def write_training_report(file: IO[bytes], detail: RunDetail, curves: TrainingCurves, *, text: bool) -> None:
    if not text:
        curves = replace(curves, marks=[mark for mark in curves.marks if mark.kind != "warning"])
    shown = runs.shown_training(detail_to_send(detail, text=text), curves)
    write_page(file, "training.html", {**shown, "here": None, "log": None, "log_href": None})


def write_judging_report(
    file: IO[bytes],
    detail: RunDetail,
    *,
    text: bool,
    everything: bool = False,
    scores: runs.JudgeScores | None = None,
    left_out: str = "",
) -> None:
    """Write a judging session; ``left_out`` describes the records its document lacks."""
    most = None if everything else MOST_RECORDS
    shown = runs.shown_judging(detail_to_send(detail, text=text), 0, most, text=text, scores=scores)
    records = shown["found"].items
    if more := shown["total"] - len(records):
        left_out = f"; {more:,} are left out: --all has them"
    write_page(file, "rubric.html", {**shown, "found": ItemPage(records), "left_out": left_out})


def write_page(file: IO[bytes], template: str, values: Mapping[str, Any]) -> None:
    style = Markup((KIT / "viewer.css").read_text("utf-8"))
    policy = one_file_policy(style)
    page = environment(TEMPLATES / "one_file").get_template(template)
    page.stream({"style": style, "policy": policy, "view": {"actions": None}, **values}).dump(
        file, "utf-8", "replace"
    )


_AT_ONCE = 200
MOST_LISTED = 20_000
_WORST_FIRST = (
    SampleQuery(outcome="unscored"),
    SampleQuery(outcome="flaky", sort="reward"),
    SampleQuery(outcome="below", sort="reward"),
    SampleQuery(outcome="passed", sort="reward"),
)


_PARTS = frozenset({"standing", "numbers", "failures"})


@dataclass(frozen=True, slots=True)
class RunReportOptions:
    most_bytes: int = 10 * 1024 * 1024
    everything: bool = False
    text: bool = True
    is_limited: bool = False


@dataclass(slots=True)
class ReportContent:
    conversations: int = 0
    conversations_left_out: int = 0
    samples: int = 0
    samples_left_out: int = 0
    places: set[tuple[int, int]] = field(default_factory=set)


def write_run_report(
    file: IO[bytes], source: RunSource, run: str, options: RunReportOptions
) -> ReportContent:
    view, content = Viewing(source, ShellView(), parts=_PARTS), ReportContent()
    shown = runs.evaluation(view, {}, run=run).values
    detail = detail_to_send(shown["detail"], text=options.text)
    values = {
        **shown,
        "view": view,
        **runs.shown_run(detail),
        "text": options.text,
        "content": content,
        "conversations": _conversations(view, run, options, content) if options.text else (),
        "samples": _listed(source, run, options, content),
        "some_are_kept": any(each.input for each in source.samples(run, SampleQuery(), limit=_AT_ONCE).items),
        "failures": [each if options.text else replace(each, error=None) for each in shown["failures"]],
        # Links lead to places in the file.
        "example_href": lambda failure: "#{}.{}".format(*failure.example),
        "failures_href": lambda _: "#samples",
        "row_href": lambda row: f"#row-{row.row_index}",
        "tiles": [tile._replace(href="#samples" if tile.href else "") for tile in shown["tiles"]],
        "mixed_href": "",
        "log_href": None,
    }
    write_page(file, "report.html", values)
    return content


def _samples(source: RunSource, run: str, query: SampleQuery) -> Iterator[SampleEntry]:
    for piece in pieces(lambda cursor: source.samples(run, query, limit=_AT_ONCE, cursor=cursor)):
        yield from piece.items


def _listed(
    source: RunSource, run: str, options: RunReportOptions, content: ReportContent
) -> Iterator[SampleEntry]:
    for sample in _samples(source, run, SampleQuery()):
        if content.samples >= MOST_LISTED and not options.everything:
            content.samples_left_out += 1
        else:
            content.samples += 1
            yield sample


def _conversations(
    view: Viewing, run: str, options: RunReportOptions, content: ReportContent
) -> Iterator[Markup]:
    """Yield conversations, failures and low rewards first, and count those that do not fit."""
    written, seen = 0, set[tuple[int, int]]()
    most = math.inf if options.everything else options.most_bytes
    template = environment().get_template("report_conversation.html")
    # A run may still be written: what comes meanwhile has a line in the table.
    for query in _WORST_FIRST:
        for sample in _samples(view.source, run, query):
            place = (sample.row, sample.attempt)
            if place in seen:
                continue
            seen.add(place)
            size = 0
            if written < most:
                one = viewed(view, run, *place, anchor=f"{sample.row}.{sample.attempt}")
                page = template.render(one=one, as_markdown=False)
                size = len(page.encode("utf-8", "replace"))
            if not size or written + size > most:
                content.conversations_left_out += 1
                continue
            written += size
            content.conversations += one.stored.content is not None
            content.conversations_left_out += one.stored.content is None and not one.stored.missing
            content.places.add(place)
            yield Markup(page)

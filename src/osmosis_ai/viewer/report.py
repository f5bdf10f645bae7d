"""An evaluation as one file, to be sent and opened from a disk: its page, its conversations, its samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

from markupsafe import Markup

from osmosis_ai.ui.shell import ShellView
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.one_file import detail_to_send, facts_to_send, write_page
from osmosis_ai.viewer.pages import evaluation
from osmosis_ai.viewer.pages.conversation import viewed
from osmosis_ai.viewer.rendering import environment
from osmosis_ai.viewer.source import RunSource, SampleEntry, SampleQuery, pieces

_AT_ONCE = 200
MOST_LISTED = 20_000
"""Samples of the table, without ``everything``."""
_WORST_FIRST = (
    SampleQuery(outcome="unscored"),
    SampleQuery(outcome="flaky", sort="reward"),
    SampleQuery(outcome="failed", sort="reward"),
    SampleQuery(outcome="passed", sort="reward"),
)


_PARTS = frozenset({"standing", "numbers", "failures"})
"""Of the run's page."""


@dataclass(frozen=True, slots=True)
class RunReportOptions:
    """What a report holds."""

    most_bytes: int = 10 * 1024 * 1024
    everything: bool = False
    text: bool = True
    is_limited: bool = False


@dataclass(slots=True)
class ReportContent:
    """What a report came to hold."""

    conversations: int = 0
    conversations_left_out: int = 0
    samples: int = 0
    samples_left_out: int = 0
    places: set[tuple[int, int]] = field(default_factory=set)


def write_run_report(
    file: IO[bytes], source: RunSource, run: str, options: RunReportOptions
) -> ReportContent:
    """Write the report of an evaluation, and return what it came to hold."""
    view, content = Viewing(source, ShellView(), parts=_PARTS), ReportContent()
    tells = options.text and view.can("conversations")
    values = {
        **_in_file(evaluation.page(view, {}, run=run).values, options),
        "view": view,
        "text": options.text,
        "content": content,
        "conversations": _conversations(view, run, options, content) if tells else (),
        "samples": _listed(source, run, options, content),
        "some_are_kept": any(each.input for each in source.samples(run, SampleQuery(), limit=_AT_ONCE).items),
    }
    write_page(file, "report.html", values)
    return content


def _in_file(values: Any, options: RunReportOptions) -> dict[str, Any]:
    """Return what the run's page shows, its links leading to places of the file."""
    detail = detail_to_send(values["detail"], text=options.text)
    return {
        **values,
        "detail": detail,
        "run": detail.summary,
        "config": values["config"] if options.text else [],
        "facts": facts_to_send(values["facts"]),
        "failures": [each if options.text else replace(each, error=None) for each in values["failures"]],
        "example_href": lambda failure: "#{}.{}".format(*failure.example),
        "failures_href": lambda _: "#samples",
        "row_href": lambda row: f"#row-{row.row_index}",
        "samples_href": "#samples",
        "tiles": [tile._replace(href="#samples" if tile.href else "") for tile in values["tiles"]],
        "mixed_href": "",
        "before": None,
        "log_href": None,
    }


def _samples(source: RunSource, run: str, query: SampleQuery) -> Iterator[SampleEntry]:
    for piece in pieces(lambda cursor: source.samples(run, query, limit=_AT_ONCE, cursor=cursor)):
        yield from piece.items


def _listed(
    source: RunSource, run: str, options: RunReportOptions, content: ReportContent
) -> Iterator[SampleEntry]:
    """Yield the samples that have a line in the table, and count the others."""
    for sample in _samples(source, run, SampleQuery()):
        if content.samples >= MOST_LISTED and not options.everything:
            content.samples_left_out += 1
        else:
            content.samples += 1
            yield sample


def _conversations(
    view: Viewing, run: str, options: RunReportOptions, content: ReportContent
) -> Iterator[Markup]:
    """Yield conversations, those that failed first and the worst of them, and count those that find no room."""
    written, seen = 0, set[tuple[int, int]]()
    template = environment().get_template("report_conversation.html")
    # A run may still be written: what comes meanwhile has a line in the table.
    for query in _WORST_FIRST:
        for sample in _samples(view.source, run, query):
            place = (sample.row, sample.attempt)
            if place in seen:
                continue
            seen.add(place)
            if written >= options.most_bytes and not options.everything:
                content.conversations_left_out += 1
                continue
            one = viewed(view, run, *place, anchor=f"{sample.row}.{sample.attempt}")
            page = template.render(one=one, as_markdown=False)
            size = len(page.encode("utf-8", "replace"))
            if written + size > options.most_bytes and not options.everything:
                content.conversations_left_out += 1
                continue
            written += size
            content.conversations += one.stored.content is not None
            content.conversations_left_out += one.stored.content is None and not one.stored.missing
            content.places.add(place)
            yield Markup(page)

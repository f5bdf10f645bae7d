"""What a pull request shows of a decision: rendered by a Markdown library, hostile text stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from osmosis_ai.cli.output.reports import MOST_CHARACTERS, DecisionDocument, escaped, markdown_of
from osmosis_ai.cli.output.results import Column, Styled, Table, Text

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</summary></details><script>alert(1)</script>",
    "a|b \\| c \\\\| d",
    "`code` ``more`` *bold* __init__ ~~gone~~ $x$ [link](http://evil.example) ![image](//evil.example)",
    "@octocat please see #12, GH-12, owner/repo#3, !4, https://evil.example, www.evil.example, mailto:a@evil.example",
    "first\n\n# heading\n/close\n- item\n1. item\n    code\n\n<!-- comment",
    "/close",
    "- [ ] item",
    "1. one",
    "&lt;b&gt; &amp; &#60;",
    "-->",
    "---",
]


class Seen(HTMLParser):
    """Tags and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def rendered(markdown: str) -> Seen:
    seen = Seen()
    seen.feed(MarkdownIt("gfm-like", {"html": True}).render(markdown))
    return seen


def document(text: str, *, rows: int = 1) -> DecisionDocument:
    table = Table(
        (Column("Metric"), Column(text, right=True)),
        [(text, Styled(text, "bad"))] * rows,
        title=text,
        note=text,
    )
    return DecisionDocument(
        title=text,
        marker=text,
        verdict=text,
        notes=[text],
        blocks=[table, Text(text, title=text)],
        details=[table],
    )


TAGS = {
    "h3",
    "h4",
    "p",
    "strong",
    "blockquote",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_neither_markup_nor_a_link(text: str) -> None:
    markdown = markdown_of(document(text))
    seen = rendered(markdown)
    assert set(seen.tags) == TAGS
    assert seen.tags.count("table") == 2 and seen.tags.count("td") == 4
    # What a reader sees in a cell is the text, on one line.
    shown = "".join(seen.words).replace("\u200b", "")
    assert " ".join(text.replace("\n", " ").split()) in " ".join(shown.split())
    # A forge takes a line that begins with a slash for a command.
    assert not [line for line in markdown.splitlines() if line.startswith("/")]


@given(st.text(max_size=80))
def test_no_text_becomes_markup(text: str) -> None:
    assert set(rendered(markdown_of(document(f"x{text}"))).tags) == TAGS


@pytest.mark.parametrize(
    "reference", ["@octocat", "#12", "GH-12", "a/b#3", "!4", "~bug", "a@evil.example", "https://evil.example"]
)
def test_a_forge_finds_no_reference_in_the_rendered_text(reference: str) -> None:
    shown = "".join(rendered(f"| {escaped(reference)} |\n| --- |\n").words)
    assert reference not in shown and reference in shown.replace("\u200b", "")


def test_what_nobody_would_see_is_spelled_out() -> None:
    assert escaped("abc\u202ecba\x1b[31m\u200b\ud800\U000e0041") == (
        "abc&#92;u202ecba&#92;x1b&#91;31m&#92;u200b&#92;ud800&#92;U000e0041"
    )


def test_metrics_and_numbers_are_legible_in_the_source() -> None:
    assert escaped("pass_rate: 0.62 (0.51 – 0.73), 6.2 % of 4") == "pass_rate: 0.62 (0.51 – 0.73), 6.2 % of 4"


def test_the_marker_stays_inside_its_comment() -> None:
    first = markdown_of(document("x --> <b>--")).splitlines()[0]
    assert re.fullmatch(r"<!-- osmosis:[^<>]* -->", first) and first.count("--") == 2


def test_what_does_not_fit_into_a_comment_is_left_out_and_counted() -> None:
    markdown = markdown_of(document("row <of> @many", rows=2_000))
    assert len(markdown) < MOST_CHARACTERS
    seen = rendered(markdown)
    assert set(seen.tags) <= TAGS | {"code"}
    said = re.search(r"Left out, to fit into a comment: ([\d,]+) rows, .*`--json` gives all of it", markdown)
    assert said and seen.tags.count("tr") + int(said[1].replace(",", "")) >= 2_000
    # The longest texts alone do not burst it either.
    assert len(markdown_of(document("@" * 90_000, rows=50))) < MOST_CHARACTERS


def test_everything_that_fits_is_there_and_nothing_is_said_of_cutting() -> None:
    markdown = markdown_of(document("fine", rows=3))
    assert markdown.count("| fine | fine |") == 6 and "Left out" not in markdown

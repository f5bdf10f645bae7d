"""Output in three modes, confirmations, and the files of `--markdown` and `--junit`."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from osmosis_ai import __version__
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.progress import LineProgress
from osmosis_ai.cli.output.prompts import ask_yes_no
from osmosis_ai.cli.output.reports import (
    MOST_CHARACTERS,
    STEP_SUMMARY,
    DecisionDocument,
    DecisionFiles,
    JunitCase,
    escaped,
    junit_of,
    markdown_of,
)
from osmosis_ai.cli.output.results import Column, Styled, Table, Text
from osmosis_ai.errors import OsmosisError
from tests.cli.conftest import Cli
from tests.cli.terminal import terminal


def test_a_list_is_one_line_with_its_pagination_and_extras_that_cannot_replace_it(cli: Cli) -> None:
    outcome = cli("fleet", "list", "--json")
    assert outcome == (
        0,
        '{"schema_version":1,"items":[{"name":"Argo [red]","status":"running","tons":12.5},'
        '{"name":"Tab\\there","status":"failed","tons":null}],"total_count":7,"has_more":true,"next_offset":2,'
        '"git":{"identity":"a/b"}}\n',
        "",
    )


def test_a_partial_operation_is_printed_and_exits_with_one(cli: Cli) -> None:
    outcome = cli("fleet", "launch", "--status", "partial", "--json")
    assert outcome.status == 1
    assert json.loads(outcome.out)["status"] == "partial"
    assert outcome.err == ""


def test_text_that_is_no_utf8_survives_escaped(cli: Cli) -> None:
    assert (
        cli("fleet", "say", "caf\udce9", "--json").out
        == '{"schema_version":1,"message":"caf\\udce9","loud":false}\n'
    )


@pytest.mark.parametrize("spelling", [("--json", "fleet", "list"), ("fleet", "--json", "list")])
def test_json_may_stand_anywhere_on_the_line(cli: Cli, spelling: tuple[str, ...]) -> None:
    assert cli(*spelling) == cli("fleet", "list", "--json")


def test_after_two_dashes_json_is_an_ordinary_argument(cli: Cli) -> None:
    assert cli("fleet", "say", "--", "--json").out == "--json\n"


def test_not_a_number_is_refused(cli: Cli) -> None:
    outcome = cli("fleet", "nan", "--json")
    assert outcome.status == 1
    assert outcome.out == ""
    assert json.loads(outcome.err)["error"] == {
        "code": "INTERNAL",
        "message": "An unexpected internal error occurred.",
        "details": {"exception_type": "ValueError"},
    }


def test_progress_and_plans_are_silent_and_a_warning_is_one_line(cli: Cli) -> None:
    outcome = cli("fleet", "sail", "--json")
    assert outcome.out == '{"schema_version":1,"message":"Arrived."}\n'
    assert outcome.err == (
        f'{{"schema_version":1,"cli_version":"{__version__}","warning":{{"code":"FOG","message":"Fog ahead."}}}}\n'
    )


def test_a_list_is_one_row_a_line_joined_by_tabs_without_header_or_footer(cli: Cli) -> None:
    outcome = cli("fleet", "list", "--plain")
    assert outcome == (0, "Argo [red]\t[running]\t12.5\nTab here\t[failed]\t–\n", "")


def test_control_characters_in_plain_output_are_spelled_out(cli: Cli) -> None:
    assert cli("fleet", "say", "a\x1b[31mb", "--plain").out == "a\\x1b[31mb\n"


def test_control_characters_in_data_are_spelled_out(cli: Cli) -> None:
    assert cli("fleet", "say", "a\x1b[31mb[bold]c").out == "a\\x1b[31mb[bold]c\n"


def test_no_color_wins(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("fleet", "list").out
    assert "\x1b" not in cli("fleet", "missing").err


@pytest.mark.parametrize(
    "seconds, shown",
    [
        (None, "–"),
        (0.34, "340 ms"),
        (0.9996, "1.0s"),
        (59.94, "59.9s"),
        (59.96, "1m 0s"),
        (754, "12m 34s"),
        (3599.6, "1h 0m"),
        (90000, "1d 1h"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_numbers() -> None:
    assert formats.count(1234567) == "1,234,567"
    assert formats.percent(0.41349) == "41.3 %"
    assert [formats.money(usd) for usd in (0, 0.000042, 0.0123, 0.5, 1234.5)] == [
        "$0.00",
        "$0.000042",
        "$0.0123",
        "$0.50",
        "$1,234.50",
    ]
    assert {formats.count(None), formats.percent(None), formats.money(None)} == {"–"}


def test_a_job_of_github_obeys_no_line_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "::error::a\nb\n  ::add-mask::c\n##[group]d\ne::f"
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert formats.literal(hostile) == hostile
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    shown = formats.literal(hostile).splitlines()
    assert not any(line.lstrip().startswith("::") or "##[" in line for line in shown)
    assert [line.replace("\u200b", "") for line in shown] == hostile.splitlines()
    assert shown[1] == "b" and shown[4] == "e::f"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_with_each_tenth_and_when_it_was_quiet_for_half_a_minute() -> None:
    clock, said = Clock(), list[str]()
    progress = LineProgress(said.append, "Evaluating", total=400, unit="samples", clock=clock)
    for done in (1, 39, 40, 41, 79, 160):
        progress.update(done)
    assert said == ["Evaluating: 40/400 samples (10%)", "Evaluating: 160/400 samples (40%)"]
    clock.now = 29.0
    progress.update(161)
    clock.now = 31.0
    progress.update(162, note="reward 0.4")
    assert said[2:] == ["Evaluating: 162/400 samples (40%) reward 0.4"]


def test_a_line_is_one_whatever_it_names() -> None:
    said = list[str]()
    LineProgress(said.append, "Fetching a\nb", total=10, unit="rows").update(10, note="waits\nfor \x1b[2J")
    assert said == ["Fetching a b: 10/10 rows (100%) waits for \\x1b[2J"]


def test_json_tells_what_would_have_been_asked(cli: Cli) -> None:
    outcome = cli("fleet", "sink", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    assert json.loads(outcome.err)["error"] == {
        "code": "INTERACTIVE_REQUIRED",
        "message": "Use --yes to confirm in non-interactive mode.",
        "details": {
            "prompt": "Sink the Argo?",
            "summary": {"Ship": "Argo"},
            "notes": ["It is old."],
            "warnings": ["It is full."],
        },
    }


def test_rich_without_a_terminal_does_not_ask(cli: Cli) -> None:
    said = "Confirmation required: Sink the Argo?\nError: Use --yes to confirm in non-interactive mode.\n"
    assert cli("fleet", "sink") == (1, "", said)


@pytest.mark.parametrize(
    "keys, default, answer",
    [
        ("y", False, True),
        ("Y", False, True),
        ("n", True, False),
        ("\r", True, True),
        ("\n", False, False),
        ("\x1b", True, False),
        ("\x04", True, False),
        (["x", "\x1b[A", "y"], False, True),
        (["y\r"], False, True),
        (["n\n"], True, False),
        (["\r\n"], True, True),
    ],
)
def test_one_key_answers_and_escape_means_no(
    monkeypatch: pytest.MonkeyPatch, keys: str | list[str], default: bool, answer: bool
) -> None:
    typed = iter(keys)
    monkeypatch.setattr(typer, "getchar", lambda: next(typed))
    assert ask_yes_no(sys.stderr, "Sure?", default=default) is answer


def test_ctrl_c_at_the_question_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer, "getchar", interrupt)
    assert ask_yes_no(sys.stderr, "Sure?", default=True) is False


DOCUMENT = DecisionDocument(title="osmosis eval gate", marker="eval.gate:tiny", verdict="pass: it is good.")
CASES = [
    JunitCase("pass_rate >= 0.8", "pass", "at least 0.83"),
    JunitCase("reward >= 1", "fail", "at most 0.9"),
    JunitCase("unscored <= 0.1", "unclear", "about 140 more rows"),
]


def test_hostile_text_is_well_formed_xml() -> None:
    text = "</testcase><evil a=\"'>&amp;]]>\x00\x1b[31m\ud800\ufffe\U0001f600"
    root = ElementTree.fromstring(junit_of(text, [JunitCase(text, "fail", text)]))
    assert [element.tag for element in root.iter()] == ["testsuites", "testsuite", "testcase", "failure"]
    assert next(root.iter("failure")).get("message") == "</testcase><evil a=\"'>&amp;]]>[31m\U0001f600"


def test_files_are_written_and_a_steps_summary_is_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv(STEP_SUMMARY, str(summary))
    files = DecisionFiles(markdown=tmp_path / "new" / "comment.md", junit=tmp_path / "report.xml").check()
    files.write(DOCUMENT, CASES)
    comment = (tmp_path / "new" / "comment.md").read_text("utf-8")
    assert comment == markdown_of(DOCUMENT)
    assert summary.read_text("utf-8") == f"before\n{comment}\n"
    assert (tmp_path / "report.xml").read_bytes() == junit_of("osmosis eval gate", CASES)


def test_a_summary_that_cannot_be_written_is_only_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STEP_SUMMARY, str(tmp_path))
    DecisionFiles(markdown=tmp_path / "comment.md").write(DOCUMENT)
    assert (tmp_path / "comment.md").exists()
    assert "GITHUB_STEP_SUMMARY) cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["markdown", "junit"])
def test_a_file_that_cannot_be_written_is_known_before_the_work(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OsmosisError, match=f"cannot write `--{option} .*`: it is a directory"):
        DecisionFiles(**{option: tmp_path}).check()
    with pytest.raises(OsmosisError, match=f"cannot write `--{option} .*`: (Not a directory|File exists)"):
        DecisionFiles(**{option: tmp_path / "file" / "x"}).check()


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


@pytest.mark.e2e
@pytest.mark.parametrize(
    "key, said",
    [(b"\x1b", "Cancelled."), (b"\x03", "Cancelled."), (b"\x04", "Cancelled."), (b"y", "Sunk.")],
)
def test_the_question_is_asked_and_answered_by_one_key(key: bytes, said: str) -> None:
    with terminal("fleet", "sink") as screen:
        screen.wait_for("Sink the Argo? [y/N] ")
        screen.wait_for(said, typing=key)
        assert screen.end() == 0


@pytest.mark.e2e
def test_progress_is_a_bar_with_warnings_above_and_the_result_below() -> None:
    with terminal("fleet", "sail") as screen:
        screen.wait_for("Arrived.")
        assert screen.end() == 0
    assert "Raising the anchor" in screen.shown
    assert "20/20 miles" in screen.shown
    assert screen.shown.index("Fog ahead.") < screen.shown.index("20/20 miles")

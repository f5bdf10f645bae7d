"""Output in three modes, errors, confirmations, and the files of `--markdown` and `--junit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from osmosis_ai import __version__
from osmosis_ai.cli.output import formats, progress
from osmosis_ai.cli.output.formats import sparkline
from osmosis_ai.cli.output.progress import LineProgress
from osmosis_ai.cli.output.reports import (
    MOST_CHARACTERS,
    STEP_SUMMARY,
    DecisionDocument,
    DecisionFiles,
    JunitCase,
    junit_of,
    markdown_of,
)
from osmosis_ai.cli.output.results import Column, Styled, Table, Text
from tests.cli.conftest import Cli
from tests.cli.maze import Maze
from tests.cli.terminal import terminal


def test_json_documents(cli: Cli) -> None:
    listed = cli("fleet", "list", "--json").json
    assert (len(listed["items"]), listed["git"]) == (2, {"identity": "a/b"})
    launched = cli("fleet", "launch", "--json").json
    assert (launched["status"], launched["wind"]) == ("success", "fair")
    said = '{"schema_version":1,"status":"success","operation":"fleet.say","message":"%s","loud":false}\n'
    assert cli("fleet", "say", "caf\udce9", "--json").out == said % "caf\\udce9"
    assert cli("fleet", "say", "--", "--json").out == "--json\n"
    assert cli("fleet", "nan", "--json").error == internal_error("ValueError")
    assert cli("fleet", "sail", "--json") == (
        0,
        '{"schema_version":1,"status":"success","operation":"fleet.sail","message":"Arrived."}\n',
        f'{{"schema_version":1,"cli_version":"{__version__}","warning":{{"code":"FOG","message":"Fog ahead."}}}}\n',
    )


def internal_error(exception: str) -> dict[str, Any]:
    message = "An unexpected internal error occurred."
    return {"code": "INTERNAL", "message": message, "details": {"exception_type": exception}}


@pytest.mark.parametrize("spelling", [("--json", "fleet", "list"), ("fleet", "--json", "list")])
def test_json_option_position(cli: Cli, spelling: tuple[str, ...]) -> None:
    assert cli(*spelling) == cli("fleet", "list", "--json")


def test_plain(cli: Cli) -> None:
    outcome = cli("fleet", "list", "--plain")
    assert outcome == (0, "Argo [red]\t[running]\t12.5\nTab here\t[failed]\t–\n", "")

    assert cli("fleet", "say", "a\x1b[31mb[bold]c").out == "a\\x1b[31mb[bold]c\n"


def test_colours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(formats, "is_terminal", lambda _: True)
        assert formats.has_colour(sys.stdout)
        patch.setenv("TERM", "dumb")
        assert not formats.has_colour(sys.stdout)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("fleet", "list").out
    assert "\x1b" not in cli("fleet", "missing").err


def test_github_workflow_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "::error::a\nb\n  ::add-mask::c\n##[group]d\ne::f"
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert formats.literal(hostile) == hostile
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    shown = formats.literal(hostile).splitlines()
    assert not any(line.lstrip().startswith("::") or "##[" in line for line in shown)
    assert [line.replace("\u200b", "") for line in shown] == hostile.splitlines()
    assert shown[1] == "b" and shown[4] == "e::f"


def test_progress_line() -> None:
    said = list[str]()
    LineProgress(said.append, "Fetching a\nb", total=10, unit="rows").update(10, note="waits\nfor \x1b[2J")
    assert said == ["Fetching a b: 10/10 rows (100%) waits for \\x1b[2J"]


def test_progress_lines_are_rare_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    said, now = list[str](), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = LineProgress(said.append, "a", total=100, unit="steps")
    for second in range(0, 121, 5):
        now[0] = float(second)
        lines.update(1 if second < 100 else 2)
    assert said == ["a: 1/100 steps (1%)"] * 2 + ["a: 2/100 steps (2%)"]


def test_confirmation_needs_a_terminal(cli: Cli) -> None:
    assert cli("fleet", "sink", "--json").error == {
        "code": "INTERACTIVE_REQUIRED",
        "message": "Use --yes to confirm in non-interactive mode.",
        "details": {
            "prompt": "Sink the Argo?",
            "summary": {"Ship": "Argo"},
            "notes": ["It is old."],
            "warnings": ["It is full."],
        },
    }
    refusal = "Confirmation required: Sink the Argo?\nError: Use --yes to confirm in non-interactive mode.\n"
    assert cli("fleet", "sink") == (1, "", refusal)


DOCUMENT = DecisionDocument(title="osmosis eval gate", marker="eval.gate:tiny", verdict="pass: it is good.")
CASES = [
    JunitCase("pass_rate >= 0.8", "pass", "at least 0.83"),
    JunitCase("reward >= 1", "fail", "at most 0.9"),
    JunitCase("unscored <= 0.1", "unclear", "about 140 more rows"),
]


def test_junit_escapes_hostile_text() -> None:
    text = "</testcase><evil a=\"'>&amp;]]>\x00\x1b[31m\ud800\ufffe\U0001f600"
    root = ElementTree.fromstring(junit_of(text, [JunitCase(text, "fail", text)]))
    assert [element.tag for element in root.iter()] == ["testsuites", "testsuite", "testcase", "failure"]
    assert next(root.iter("failure")).get("message") == "</testcase><evil a=\"'>&amp;]]>[31m\U0001f600"


def test_unwritable_step_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STEP_SUMMARY, str(tmp_path))
    DecisionFiles(markdown=tmp_path / "comment.md").write(DOCUMENT)
    assert (tmp_path / "comment.md").exists()
    assert "GITHUB_STEP_SUMMARY) cannot be written: Is a directory" in capsys.readouterr().err


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
    *("h3", "h4", "p", "strong", "blockquote", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_escapes_hostile_text(text: str) -> None:
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
def test_markdown_escapes_any_text(text: str) -> None:
    assert set(rendered(markdown_of(document(f"x{text}"))).tags) == TAGS


def test_long_markdown_is_cut() -> None:
    markdown = markdown_of(document("row <of> @many", rows=2_000))
    assert len(markdown) < MOST_CHARACTERS
    seen = rendered(markdown)
    assert set(seen.tags) <= TAGS | {"code"}
    said = re.search(r"Omitted, to fit into a comment: ([\d,]+) rows, .*`--json` has everything", markdown)
    assert said and seen.tags.count("tr") + int(said[1].replace(",", "")) >= 2_000
    # The longest texts alone do not burst it either.
    assert len(markdown_of(document("@" * 90_000, rows=50))) < MOST_CHARACTERS


@pytest.mark.e2e
@pytest.mark.parametrize(
    "key, answer", [*((key, "Cancelled.") for key in (b"\x1b", b"\x03", b"\x04", b"\r")), (b"y", "Sunk.")]
)
def test_confirmation_keys(key: bytes, answer: str) -> None:
    with terminal("fleet", "sink") as screen:
        screen.wait_for("Sink the Argo? [y/N] ")
        screen.wait_for(answer, typing=key)
        assert screen.end() == 0


@pytest.mark.parametrize("mode", [(), ("--plain",)])
def test_error_and_hint(cli: Cli, mode: tuple[str, ...]) -> None:
    assert cli("fleet", "missing", *mode) == (
        1,
        "",
        "Error: No ship named 'Argo'.\nLook in the harbour.\nhint: list them with `osmosis fleet list`\n",
    )


def test_secrets_are_redacted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, value in enumerate(['"code":"NOT_FOUND"', '"schema_version":1,"c', "list them"]):
        monkeypatch.setenv(f"CANARY_{number}_TOKEN", value)
    error = cli("fleet", "missing", "--json").error
    assert (error["code"], error["hint"]) == ("NOT_FOUND", "[REDACTED] with `osmosis fleet list`")

    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    monkeypatch.setenv("LONGER_TOKEN", 'sk-1234567890-"quoted"')
    monkeypatch.setenv("OSMOSIS_DEBUG", "1")
    err = cli("fleet", "crash", "--text", 'a sk-1234567890-"quoted" b sk-1234567890 c').err
    assert "sk-1234567890" not in err
    assert "a [REDACTED] b [REDACTED] c" in err


def test_internal_error(cli: Cli) -> None:
    hint = "hint: this is a bug in Osmosis; OSMOSIS_DEBUG=1 prints a traceback\n"
    assert cli("fleet", "crash") == (1, "", f"Error: KeyError: 'boom'\n{hint}")
    assert cli("fleet", "crash", "--json").error == internal_error("KeyError")


def test_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_DEBUG", "1")
    assert "Traceback (most recent call last)" in cli("fleet", "crash").err
    first, *rest = cli("fleet", "crash", "--json").err.splitlines()
    assert json.loads(first)["error"]["code"] == "INTERNAL"
    assert rest[0] == "Traceback (most recent call last):"
    assert "Traceback" not in cli("fleet", "missing").err


def test_ctrl_c(cli: Cli) -> None:
    assert cli("fleet", "interrupt") == (130, "", "Interrupted.\n")
    assert cli("fleet", "interrupt", "--json") == (130, "", "")


def run_process(*arguments: str, stdout: str) -> tuple[int, bytes]:
    """Run a command whose output a shell redirects; return its status and stderr."""
    command = [sys.executable, "-m", "osmosis_ai", *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {stdout}', "sh", *command], stderr=subprocess.PIPE, timeout=300
    )
    return done.returncode, done.stderr


@pytest.mark.e2e
def test_unwritable_stdout() -> None:
    full = (1, b"Error: cannot write the result: No space left on device\n")
    assert run_process("--version", stdout=">/dev/full") == full
    assert run_process("--version", stdout=">&-") == (0, b"")


@pytest.mark.e2e
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["dataset", "--help"]])
def test_broken_pipe(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "osmosis_ai", *arguments]
    with open(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=300)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "info", "~nobody-here/run"),
        ("view", "~nobody-here/run"),
        ("test", "-m", "m:a", "-d", "~nobody-here/data.jsonl"),
    ],
)
def test_home_of_unknown_user(cli: Cli, command: tuple[str, ...]) -> None:
    outcome = cli(*command)
    assert (outcome.status, outcome.out) == (1, "")
    assert "~nobody-here" in outcome.err and "bug in Osmosis" not in outcome.err


COMMANDS = {
    "rollout server list": ("get", "/rollout-servers", "served agents"),
    "train resume copper": ("post", "/training-runs/copper/resume", "resuming training runs"),
    "model download keen-owl-2-step-40": ("get", "/models/keen-owl-2-step-40/download", "downloading models"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_route(maze: Maze, command: str) -> None:
    method, path, what = COMMANDS[command]
    getattr(maze, method)(path).respond(status_code=404, html="<html>This page does not exist.</html>")
    error = maze.osmosis(*command.split(), "--json").error
    assert error["message"].startswith(f"This platform does not support {what}: https://")
    assert "osmosis platform start" in error["hint"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [([1, 2, 3, 4], "▁▃▆█"), ([0.5, 0.5], "▁▁"), ([1.7e308, -1.7e308, 0], "█▁▅"), ([], "")],
)
def test_sparkline(values: list[float], shown: str) -> None:
    assert sparkline(values, width=8) == shown

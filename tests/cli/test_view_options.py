"""What `osmosis view`, and every command with a report, makes of its options before it looks at anything."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    "words", [("--max-mb", "2"), ("--max-mb", "10"), ("--all",), ("--no-text", "--force")]
)
def test_what_is_of_a_report_needs_one(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("view", *words)
    assert (result.status, result.out) == (2, "")
    assert all(word in result.err for word in words if word.startswith("--")) and "--report" in result.err


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "compare", "one", "other", "--no-text"),
        ("eval", "compare", "one", "other", "--force"),
        ("train", "info", "run", "--no-text", "--force"),
        ("eval", "rubric", "-d", "a.jsonl", "-r", "tone", "--model", "openai/gpt-5-mini", "--no-text"),
    ],
)
def test_no_command_takes_what_is_of_a_report_without_one(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words)
    assert (result.status, result.out) == (2, "")
    assert f"{words[-1]} needs --report FILE.html" in result.err

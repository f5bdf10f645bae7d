"""`osmosis eval rubric` with bad input: one line, before anybody is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.rubric_judging import GOOD, configure, refused, write
from tests.cli.test_root import modules_after
from tests.rubric.judge_server import JudgeServer


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([GOOD, '{"solution_str": '], "Invalid JSON on line 2 of 'data.jsonl': "),
        ([GOOD, '"text"'], "Expected JSON object on line 2 of 'data.jsonl', found a string."),
        (
            [GOOD, {"id": "x"}],
            "Line 2 of 'data.jsonl' must include 'messages' (list) or 'solution_str' (string).",
        ),
        ([], "No JSON records found in 'data.jsonl'."),
        ([GOOD, {"solution_str": "x" * 10_000_000}], "Line 2 of 'data.jsonl' is longer than 8 MiB"),
        ([{**GOOD, "score_min": 3}], "Line 1 of 'data.jsonl': 'score_max' (1) must be greater"),
        ([{**GOOD, "human_score": 3}], "Line 1 of 'data.jsonl': 'human_score' 3 is outside the scale"),
    ],
)
def test_bad_data_is_one_line_before_any_call(
    cli: Cli, judge: JudgeServer, lines: list[Any], problem: str
) -> None:
    write(*lines)
    assert refused(cli, judge).startswith(problem)


def test_binary_data_is_one_line(cli: Cli, judge: JudgeServer) -> None:
    Path("data.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\x00\xff" * 5000)
    assert "Line 1 of 'data.jsonl' is not UTF-8 text" in refused(cli, judge)


def test_data_that_is_missing_or_a_directory_is_one_line(cli: Cli, judge: JudgeServer) -> None:
    assert refused(cli, judge) == "Data path 'data.jsonl' does not exist."
    Path("data.jsonl").mkdir()
    assert "is a directory" in refused(cli, judge)
    Path("data.jsonl").rmdir()
    Path("data.jsonl").symlink_to("/dev/null")
    assert "is no regular file" in refused(cli, judge)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-n", "0"], "--number must be at least 1."),
        (["-n", "10001"], "--number must be at most 10000."),
        (["-r", " "], "Rubric text must not be empty."),
        (["-r", "@absent.txt"], "Rubric file 'absent.txt' does not exist."),
        (["-r", "@empty.txt"], "Rubric file 'empty.txt' is empty."),
        (["-r", "@."], "Rubric file '.' is a directory."),
        (
            ["--score-min", "1", "--score-max", "0"],
            "`score_max` (0.0) must be greater than `score_min` (1.0).",
        ),
        (["--score-max", "nan"], "`score_min` and `score_max` must be finite"),
        (["--timeout", "0"], "--timeout must be greater than 0 seconds."),
        (["--timeout", "-1"], "`timeout` must be a finite number of seconds"),
        (["--api-base", "ftp://x"], "`api_base` must be an http(s) address"),
        (["--max-tokens", "0"], "`--max-tokens` must be a positive number"),
        (["--baseline", "absent.json"], "Baseline path 'absent.json' does not exist."),
        (["--baseline", "empty.txt"], "Failed to parse baseline JSON 'empty.txt'"),
        (
            ["--baseline", "data.jsonl"],
            "Baseline JSON 'data.jsonl' must include an 'overall_statistics' object",
        ),
        (["--baseline", "."], "Baseline path '.' is a directory"),
        (["--report", "."], "Report path '.' is a directory"),
        (["--report", "-"], "a report goes into a file, and `-` is none."),
        (["-o", "data.jsonl/out.json"], "cannot create the directory"),
        (["--config", "absent.yaml"], "Rubric config 'absent.yaml' does not exist."),
        (["--model", "openai/judge"], "`openai/judge` is named twice."),
        (["--swap"], "--swap compares calls with each other."),
        (["--swap", "-n", "2"], "Line 1 of 'data.jsonl' has nothing but the text that is judged"),
    ],
)
def test_bad_arguments_are_one_line_before_any_call(
    cli: Cli, judge: JudgeServer, arguments: list[str], problem: str
) -> None:
    write(GOOD)
    Path("empty.txt").write_text(" \n")
    assert refused(cli, judge, *arguments).startswith(problem)


@pytest.mark.parametrize(
    "places",
    [["-o", "data.jsonl"], ["--report", "data.jsonl", "--force"], ["-o", "same", "--report", "same"]],
)
def test_nothing_that_is_read_is_overwritten(cli: Cli, judge: JudgeServer, places: list[str]) -> None:
    write(GOOD)
    before = Path("data.jsonl").read_bytes()
    assert "would be overwritten" in refused(cli, judge, *places)
    assert Path("data.jsonl").read_bytes() == before


def test_an_unknown_provider_is_one_line_with_a_suggestion(cli: Cli, judge: JudgeServer) -> None:
    write(GOOD)
    assert (
        refused(cli, judge, model="opnai/gpt-5")
        == "`opnai/gpt-5` names no known model; did you mean `openai/gpt-5`?"
    )
    assert "names no known provider" in refused(cli, judge, model="qzx/model")


def test_a_missing_key_comes_with_the_line_that_sets_it(
    cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(GOOD)
    assert 'export ANTHROPIC_API_KEY="..."' in refused(cli, judge, model="anthropic/claude-sonnet-4-5")


def test_nobody_to_judge_is_a_usage_error(cli: Cli, judge: JudgeServer) -> None:
    write(GOOD)
    assert "'--model'" in refused(cli, judge, model="", status=2)


def test_wrong_yaml_is_one_line(cli: Cli, judge: JudgeServer) -> None:
    write(GOOD)
    Path("c.yaml").write_text("rubrics: [")
    assert "Invalid YAML in 'c.yaml' on line 1" in refused(cli, judge, "-r", "x", "-c", "c.yaml")
    configure(extra_info={})
    assert "must not include 'extra_info'" in refused(cli, judge, "-r", "clarity")
    configure()
    assert "Rubric 'x' not found in" in refused(cli, judge, "-r", "x")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["eval", "rubric", "-d", "absent.jsonl", "-r", "x", "--model", "openai/j"], 1),
        (["eval", "rubric", "-d", "bad.jsonl", "-r", "x", "--model", "openai/j"], 1),
        (["eval", "rubric", "-d", "good.jsonl", "-r", "x", "--model", "anthropic/j"], 1),
        (["eval", "rubric", "-d", "good.jsonl", "-r", "x"], 2),
        (["eval-rubric", "-d", "good.jsonl", "-r", "x", "-n", "0"], 1),
    ],
)
def test_bad_input_is_answered_without_loading_what_asks_judges(arguments: list[str], status: int) -> None:
    write("{", name="bad.jsonl")
    write(GOOD, name="good.jsonl")
    found, modules = modules_after(*arguments)
    assert found == status
    assert (
        not {"litellm", "numpy", "scipy", "aiohttp", "httpx", "pyarrow", "rich", "yaml", "jinja2"} & modules
    )

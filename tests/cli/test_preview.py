"""`osmosis preview`: rubrics and records as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_examples(cli: Cli) -> None:
    outcome = cli("preview", "--path", str(EXAMPLES / "rubric_configs.yaml"))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("Loaded 2 rubric config(s) from ")
    assert len(cli("preview", "-p", str(EXAMPLES / "sample_data.jsonl")).out.splitlines()) <= 45
    assert "Rubric config #1 (rubrics[0])" in outcome.out and "rubric: |" in outcome.out

    outcome = cli("preview", "-p", str(EXAMPLES / "sample_data.jsonl"), "--plain")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("Loaded 10 JSONL record(s) from ")
    assert "JSONL record #2\n{\n" in outcome.out
    document = cli("preview", "-p", str(EXAMPLES / "sample_data.jsonl"), "--json").json
    assert (document["resource"]["count"], document["resource"]["kind"]) == (10, "records")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("absent.yaml", None, "Path 'absent.yaml' does not exist."),
        ("a.txt", "x", "Unsupported file extension '.txt'."),
        ("a.jsonl", "[1]\n", "Expected JSON object on line 1 of 'a.jsonl'"),
        ("a.yaml", "default_extra_info: {}", "must not include 'default_extra_info'"),
        ("a.yaml", "- {id: x, rubric: a}\n- {id: x, rubric: b}", "Duplicate rubric id 'x'"),
    ],
)
def test_invalid_files(cli: Cli, name: str, content: str | None, problem: str) -> None:
    if content is not None:
        Path(name).write_text(content)
    outcome = cli("preview", "-p", name)
    assert (outcome.status, outcome.out) == (1, "") and problem in outcome.err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", '{"id": 1}\n', "Line 1 of 'a.jsonl' must include 'messages' (list) or 'solution_str'"),
        ("a.yaml", "{id: a, rubric: A, scor_max: 5}", "Unknown key 'scor_max' in 'a.yaml'"),
        ("a.yaml", "{rubric: A}", "needs an 'id'"),
    ],
)
def test_warnings(cli: Cli, name: str, content: str, problem: str) -> None:
    Path(name).write_text(content)
    outcome = cli("preview", "-p", name, "--plain")
    assert (outcome.status, outcome.out.partition(" ")[0]) == (0, "Loaded")
    assert (
        outcome.err.startswith("warning: 'osmosis eval rubric' rejects this file: ")
        and problem in outcome.err
    )


def test_odd_files(cli: Cli) -> None:
    Path("a.yml").write_text("note: nothing here\nnumber: .nan\n")
    assert cli("preview", "-p", "a.yml").out.startswith("Loaded 0 rubric config(s) from a.yml")

    Path("a.yml").write_text("&a\nid: x\nrubric: text\nwhen: 2026-01-02\nself: *a\n")
    for mode in ("--json", "--plain"):
        assert cli("preview", "-p", "a.yml", mode).status == 0


def test_hidden_keys_and_alias_bombs(cli: Cli) -> None:
    Path("a.yml").write_text("{id: a, rubric: A, model_info: {provider: openai, api_key: sk-canary-91}}")
    for mode in ("--json", "--plain"):
        outcome = cli("preview", "-p", "a.yml", mode)
        assert outcome.status == 0 and "sk-canary" not in outcome.out and "<hidden>" in outcome.out
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    Path("a.yml").write_text("\n".join(["a0: &a0 [x]", *levels, "r: {id: a, rubric: A, more: *a29}"]))
    assert "unfolds to more than 200,000 values" in cli("preview", "-p", "a.yml").err

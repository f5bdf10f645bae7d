"""What `osmosis eval -m` says of what is wrong before anything starts: one line, the right status, nothing left."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.agent_loops.classic_project import AGENT, Project
from tests.cli.conftest import Cli

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project as the current directory, whose modules are forgotten afterwards."""
    project = Project(tmp_path / "project", NOWHERE)
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield project
    for name in set(sys.modules) - before:
        if name in ("server", "rewards", "broken"):
            del sys.modules[name]


def refusal(cli: Cli, *words: str) -> str:
    """Run a command that is refused; return its one line, without the hints."""
    found = cli(*words)
    assert (found.status, found.out) == (1, ""), found
    (line,) = [line for line in found.err.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in found.err
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--n 0", "--n must be >= 1."),
        ("--k 3 --n 2", "--k must be <= --n (2): pass@3 needs 3 runs of a row."),
        ("--pass-threshold nan", "--pass-threshold must be a finite number."),
        ("--max-total-tokens 0", "'--max-total-tokens' must be a positive number, not 0."),
    ],
)
def test_number_out_of_range(
    cli: Cli, options: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", "-m", "none:agent", "-d", "none.jsonl", "--model", "m", "--eval-fn", "none:fn"]
    found = cli(*words, *options.split())
    assert found == (1, "", f"Error: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "key"), [("gpt-5-mini", "OPENAI_API_KEY"), ("claude-sonnet-4-5", "ANTHROPIC_API_KEY")]
)
def test_missing_key_of_a_bare_model_name(cli: Cli, project: Project, model: str, key: str) -> None:
    words = ("eval", "-m", "server:agent_loop", "-d", "data.jsonl", "--eval-fn", "rewards:exact")
    assert key in refusal(cli, *words, "--model", model)


ROW = {"system_prompt": "Be brief.", "user_prompt": "3?", "ground_truth": "3"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1], "Row 1: Expected object, found an array."),
        ({"user_prompt": "u"}, "Row 1: Missing required columns: system_prompt (found: user_prompt)."),
        ({}, "Row 1: Missing required columns: user_prompt, system_prompt (found: none)."),
        ({**ROW, "user_prompt": None}, "Row 1: 'user_prompt' cannot be null."),
        ({**ROW, "system_prompt": " \n"}, "Row 1: 'system_prompt' cannot be empty."),
        ({**ROW, "user_prompt": 3}, "Row 1: 'user_prompt' must be a string, found a number."),
        ({**ROW, "ground_truth": [4]}, "Row 1: 'ground_truth' must be a string, found an array."),
    ],
)
def test_invalid_row(cli: Cli, project: Project, row: object, said: str) -> None:
    (project.root / "data.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(row)}\n")
    assert said in refusal(cli, *project.words())


def test_mixed_command_forms(cli: Cli, project: Project) -> None:
    for words, said in (
        (("run", "x.toml", "-m", "a:b"), "'osmosis eval run' has no -m."),
        (("-m", "a:b", "run", "x.toml"), "'osmosis eval -m' has no subcommand 'run'."),
        (("-d", "data.jsonl", "--model", "m"), "'osmosis eval' without a subcommand needs -m."),
    ):
        found = cli("eval", *words)
        assert (found.status, found.out) == (2, "")
        assert f"Error: {said} Evaluate an agent loop with `osmosis eval -m MODULE:AGENT" in found.err
        assert "a config file with `osmosis eval run CONFIG`" in found.err
        assert cli("eval", *words, "--json").error["message"].startswith(said)
    found = cli(*project.words("further"))
    assert found.status == 2 and "'osmosis eval -m' takes no argument 'further'" in found.err
    assert cli("eval", "-m", "server:agent_loop").err.startswith("Error: Missing option '--dataset' / '-d'.")
    shown = cli("eval", "-m", "--help")
    assert shown.status == 0 and "--pass-threshold" in shown.out
    assert cli("eval").out == cli("eval", "--help").out


def test_invalid_module_dataset_or_function(cli: Cli, project: Project) -> None:
    (project.root / "broken.py").write_text("import json\nraise RuntimeError('not today')\n")

    def said(
        *, module: str = "server:agent_loop", data: str = "data.jsonl", fn: str = "rewards:exact"
    ) -> str:
        address = ("--model", "m", "--base-url", NOWHERE)
        return refusal(cli, "eval", "-m", module, "-d", data, *address, "--eval-fn", fn)

    # The agent comes before the dataset, and that before the eval functions.
    assert "'nowhere'" in said(module="nowhere:agent", data="none.jsonl", fn="none:fn")
    assert "none.jsonl" in said(data="none.jsonl", fn="none:fn")
    assert "'none'" in said(fn="none:fn")

    assert "write module:attribute" in said(module="server")
    assert "RuntimeError: not today (broken.py:2, in <module>)" in said(module="broken:agent")
    assert "no attribute 'agent'" in said(module="server:agent")
    assert "no RolloutAgentLoop" in said(module="rewards:value")
    assert "no attribute 'missing'" in said(fn="rewards:missing")
    assert "must be 'solution_str'" in said(fn="rewards:wrong_first")
    assert "must be a function" in said(fn="rewards:value")
    twice = project.words("--eval-fn", "rewards:exact")
    assert refusal(cli, *twice) == "Duplicate eval function path: 'rewards:exact' is given more than once."
    assert project.runs == []


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.csv", b"x", "", "Unsupported file format"),
        ("a.jsonl", b"", "", "No rows to evaluate: a.jsonl has 0 rows."),
        ("a.jsonl", b'{"system_prompt": "s", "user_prompt": "u"}\n', "--offset 1", "has 1 row, and --offset is 1."),
        ("a.jsonl", b'{"system_prompt": "s", "user_prompt": "\xff"}\n', "", "line 1: not UTF-8"),
        ("a.jsonl", b'{"system_prompt": "s", "user_prompt": "u"}\n{nope\n', "", "line 2: not valid JSON"),
        ("a.jsonl", b'{"system_prompt": "s", "user_prompt": "u"}\n{"user_prompt": "u"}\n', "", "Row 1: Missing"),
    ],
)  # fmt: skip
def test_weakness_11_invalid_dataset(
    cli: Cli, project: Project, name: str, content: bytes, options: str, said: str
) -> None:
    (project.root / name).write_bytes(content)
    found = refusal(cli, *project.words("-d", name, *options.split()))
    assert said in found
    assert project.runs == []


def test_invalid_model_or_results_file(cli: Cli, project: Project) -> None:
    classic = ("eval", "-m", "server:agent_loop", "-d", "data.jsonl", "--eval-fn", "rewards:exact")

    def refused(model: str, address: str = "", *options: str) -> str:
        where = ("--base-url", address) if address else ()
        return refusal(cli, *classic, "--model", model, *where, *options)

    assert "OPENAI_API_KEY is not set (required by openai/gpt-5-mini)" in refused("openai/gpt-5-mini")
    assert "Unknown built-in model: osmosis/tinny" in refused("osmosis/tinny")
    trained = cli(*classic, "--model", "osmosis/tiny:calm-fern-1-step-40")
    assert trained.status == 1 and "hint: a trained model answers at its platform" in trained.err
    assert "not an http(s) address" in refused("m", "localhost:8000")
    for address in (
        "http://sk-secret@models.invalid/v1",
        "http://u:sk-secret@models.invalid/v1",
        "https://models.invalid/v1?key=sk-secret",
        "https://models.invalid/v1#sk-secret",
        "ftp://sk-secret@models.invalid",
        "http://[::1?sk-secret",
    ):
        # A key in an invalid address is not printed, and no run is created that would store it.
        found = refused("m", address)
        assert "--base-url must not contain" in found and "sk-secret" not in found
    assert "is not an http(s) address: http" in refused("m", "http://x:99999")
    assert "\x1b" not in refused("m", "http://x/\x1b[2J")
    assert "the price of 'm' is unknown" in refused("m", "https://models.invalid/v1", "--max-cost", "1")

    (project.root / "file").write_text("")
    for path in (".", "file/results.json"):
        assert f"Results file cannot be written: '{path}'" in refusal(cli, *project.words("-o", path))
    assert project.runs == []


def test_invalid_tools(cli: Cli, project: Project) -> None:
    written = 0

    def tools(body: str) -> None:
        sys.modules.pop("server", None)
        agent = AGENT.replace("        return []\n", f"        {body}\n", 1)
        assert agent != AGENT
        # Of another size each time, or what was compiled of the last one would be taken for it.
        nonlocal written
        written += 1
        (project.root / "server.py").write_text(agent + "#" * 100 * written)

    for body, said in {
        "return None": "get_tools of 'echo' returned None; it must return a list",
        "return [{}]": "tools[0]",
        "raise KeyError('no such tool')": "get_tools of 'echo' failed: KeyError: 'no such tool' (server.py:",
        "raise SystemExit(3)": "get_tools of 'echo' failed: SystemExit: 3 (server.py:",
    }.items():
        tools(body)
        assert said in refusal(cli, *project.words())
    assert project.runs == []

    # Wrong for some rows only: the others are worth a run, which gets as far as the model here.
    tools("return [] if request.messages[-1]['content'] == 'two' else None")
    assert "127.0.0.1:9" in cli(*project.words()).err


def test_isolate_is_rejected(cli: Cli, project: Project) -> None:
    for words in (("eval", "-m", "server:agent_loop", "--isolate"), project.words("--isolate")):
        found = cli(*words)
        assert (found.status, found.out) == (2, "")
        assert found.err.startswith("Error: 'osmosis eval -m' runs an agent loop without a sandbox")
        assert "'osmosis eval run CONFIG --isolate'" in found.err

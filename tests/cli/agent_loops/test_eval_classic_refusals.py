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
def test_a_range_error_is_one_line_before_any_file_is_touched(
    cli: Cli, options: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", "-m", "none:agent", "-d", "none.jsonl", "--model", "m", "--eval-fn", "none:fn"]
    found = cli(*words, *options.split())
    assert found == (1, "", f"Error: {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_neither_form_or_both_says_which_two_there_are(cli: Cli, project: Project) -> None:
    for words, said in (
        (("run", "x.toml", "-m", "a:b"), "'osmosis eval run' has no -m."),
        (("-m", "a:b", "run", "x.toml"), "'osmosis eval -m' has no subcommand 'run'."),
        (("-d", "data.jsonl", "--model", "m"), "'osmosis eval' without a subcommand needs -m."),
    ):
        found = cli("eval", *words)
        assert (found.status, found.out) == (2, "")
        assert f"Error: {said} An agent loop is evaluated by `osmosis eval -m MODULE:AGENT" in found.err
        assert "a config file by `osmosis eval run CONFIG`" in found.err
        assert json.loads(cli("eval", *words, "--json").err)["error"]["message"].startswith(said)
    found = cli(*project.words("further"))
    assert found.status == 2 and "'osmosis eval -m' takes no argument 'further'" in found.err
    assert cli("eval", "-m", "server:agent_loop").err.startswith("Error: Missing option '--dataset' / '-d'.")
    shown = cli("eval", "-m", "--help")
    assert shown.status == 0 and "--pass-threshold" in shown.out
    assert cli("eval").out == cli("eval", "--help").out


def test_parts_are_checked_in_order_and_what_is_wrong_is_named(cli: Cli, project: Project) -> None:
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
def test_weakness_11_a_dataset_that_cannot_be_used_is_refused_with_the_place(
    cli: Cli, project: Project, name: str, content: bytes, options: str, said: str
) -> None:
    (project.root / name).write_bytes(content)
    found = refusal(cli, *project.words("-d", name, *options.split()))
    assert said in found
    assert project.runs == []


def test_models_and_results_files_that_cannot_work_are_found_before_the_run(
    cli: Cli, project: Project
) -> None:
    classic = ("eval", "-m", "server:agent_loop", "-d", "data.jsonl", "--eval-fn", "rewards:exact")
    assert "needs a key, and `OPENAI_API_KEY` is not set" in refusal(
        cli, *classic, "--model", "openai/gpt-5-mini"
    )
    assert "no built-in model `osmosis/tinny`" in refusal(cli, *classic, "--model", "osmosis/tinny")
    trained = cli(*classic, "--model", "osmosis/tiny:calm-fern-1-step-40")
    assert trained.status == 1 and "hint: a trained model answers at its platform" in trained.err
    assert "not an http(s) address" in refusal(cli, *classic, "--model", "m", "--base-url", "localhost:8000")
    for address in (
        "http://sk-secret@models.invalid/v1",
        "http://u:sk-secret@models.invalid/v1",
        "https://models.invalid/v1?key=sk-secret",
        "https://models.invalid/v1#sk-secret",
        "ftp://sk-secret@models.invalid",
        "http://[::1?sk-secret",
    ):
        # Whatever is wrong with it, a key in it is not said, and the run that would keep it is not made.
        found = refusal(cli, *classic, "--model", "m", "--base-url", address)
        assert "holds more than an address" in found and "sk-secret" not in found
    assert "is not an http(s) address" in refusal(
        cli, *classic, "--model", "m", "--base-url", "http://x:99999"
    )
    assert "\x1b" not in refusal(cli, *classic, "--model", "m", "--base-url", "http://x/\x1b[2J")
    assert "the price of `m`" in refusal(
        cli, *classic, "--model", "m", "--base-url", "https://models.invalid/v1", "--max-cost", "1"
    )

    (project.root / "file").write_text("")
    for path in (".", "file/results.json"):
        assert f"Results file cannot be written: '{path}'" in refusal(cli, *project.words("-o", path))
    assert project.runs == []


def test_an_agent_without_usable_tools_for_any_row_is_refused_before_the_first(
    cli: Cli, project: Project
) -> None:
    written = 0

    def tools(body: str) -> None:
        sys.modules.pop("server", None)
        agent = AGENT.replace("        return []\n", f"        {body}\n", 1)
        assert agent != AGENT
        # Of another size each time, or what was compiled of the last one would be taken for it.
        nonlocal written
        written += 1
        (project.root / "server.py").write_text(agent + "#" * 100 * written)

    for body, said in (
        ("return None", "get_tools of 'echo' returned None; it must return a list"),
        ("return [{}]", "tools[0]"),
        (
            "raise KeyError('no such tool')",
            "get_tools of 'echo' failed: KeyError: 'no such tool' (server.py:",
        ),
        ("raise SystemExit(3)", "get_tools of 'echo' failed: SystemExit: 3 (server.py:"),
    ):
        tools(body)
        assert said in refusal(cli, *project.words())
    assert project.runs == []

    # Wrong for some rows only: the others are worth a run, which gets as far as the model here.
    tools("return [] if request.messages[-1]['content'] == 'two' else None")
    assert "127.0.0.1:9" in cli(*project.words()).err


def test_a_sandbox_is_refused_with_what_gives_one(cli: Cli, project: Project) -> None:
    for words in (("eval", "-m", "server:agent_loop", "--isolate"), project.words("--isolate")):
        found = cli(*words)
        assert (found.status, found.out) == (2, "")
        assert found.err.startswith("Error: 'osmosis eval -m' runs an agent loop without a sandbox")
        assert "'osmosis eval run CONFIG --isolate'" in found.err

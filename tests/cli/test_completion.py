"""The shells' protocol: the words typed so far in, one candidate a line out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from osmosis_ai.cli import name_completion
from osmosis_ai.cli.main import main
from tests.cli.conftest import Cli
from tests.cli.maze import Maze, open_maze
from tests.evaluation.recorded_runs import write_run


@pytest.fixture
def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    def ask(instruction: str, *words: str) -> object:
        monkeypatch.setenv("_OSMOSIS_COMPLETE", instruction)
        return cli(*words)

    return ask  # type: ignore[return-value]


def words_of(outcome: object) -> list[str]:
    status, out, err = outcome  # type: ignore[misc]
    assert (status, err) == (0, "")
    return out.splitlines()


def test_where_a_value_is_due_nothing_is_answered_and_the_shell_offers_files(complete: Cli) -> None:
    assert words_of(complete("complete_bash", "fleet", "info", "")) == []
    assert words_of(complete("complete_bash", "--env-file", "")) == []
    assert words_of(complete("complete_bash", "fleet", "say", "--", "--j")) == []


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_through_its_own_function(tmp_path: Path) -> None:
    program = tmp_path / "osmosis"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m osmosis_ai "$@"\n')
    program.chmod(0o755)
    typed = """
        eval "$(_OSMOSIS_COMPLETE=source_bash osmosis)"
        COMP_WORDS=(osmosis dataset va); COMP_CWORD=2; _osmosis_completion osmosis; echo "${COMPREPLY[*]}"
        COMP_WORDS=(osmosis ""); COMP_CWORD=1; _osmosis_completion osmosis; echo "${#COMPREPLY[@]}"
        complete -p osmosis_ai
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", typed],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    completed, count, registered = done.stdout.splitlines()
    assert completed == "validate"
    assert int(count) >= 5
    assert registered == "complete -o default -F _osmosis_completion osmosis_ai"


RUN = {"id": "er_1", "status": "running", "created_at": "2026-10-02T07:00:00Z"}
LISTS = {
    "/eval-runs": {"eval_runs": [{**RUN, "name": "amber-otter-42"}, {**RUN, "name": "quiet-fern-7"}]},
    "/training-runs": {"training_runs": [{**RUN, "name": "copper-finch"}, {**RUN, "name": None}]},
    "/datasets": {"datasets": [{"id": "ds_1", "file_name": "maze-walks"}]},
    "/rollout-servers": {
        "rollout_servers": [
            {**RUN, "name": "calculator", "host": "10.1.2.3", "port": 9000, "status": "healthy"}
        ]
    },
    "/models/lora": {"models": [{"id": "lo_1", "model_name": "copper-finch-step-40"}]},
}


@pytest.fixture
def maze(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Maze]:
    with open_maze(tmp_path, monkeypatch, capsys) as opened:  # type: ignore[arg-type]
        # A busy machine may take its time, but where time is what is tested.
        monkeypatch.setattr(name_completion, "LIMIT_S", 60.0)
        for path, reply in LISTS.items():
            opened.get(path).respond(json=reply)
        yield opened


def tab(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> list[str]:
    monkeypatch.setenv("_OSMOSIS_COMPLETE", "complete_bash")
    capsys.readouterr()
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


@pytest.mark.parametrize(
    "words, path, meant",
    [
        (("eval", "info", "amber-oter-42"), "/eval-runs/amber-oter-42", "amber-otter-42"),
        (("eval", "stop", "quiet-fern", "--yes"), "/eval-runs/quiet-fern/stop", "quiet-fern-7"),
        (("train", "info", "coper-finch"), "/training-runs/coper-finch", "copper-finch"),
        (("dataset", "info", "maze-walk"), "/datasets/maze-walk", "maze-walks"),
        (("model", "info", "copper-finch-step-4"), "/models/copper-finch-step-4", "copper-finch-step-40"),
    ],
)
def test_a_name_that_is_not_there_gets_the_one_that_was_meant(
    maze: Maze, words: tuple[str, ...], path: str, meant: str
) -> None:
    for method in (maze.get, maze.post):
        method(path).respond(404, json={"error": "There is none of that name.", "code": "NOT_FOUND"})
    error = maze.osmosis(*words, "--json").error
    assert (error["code"], error["hint"]) == ("NOT_FOUND", f"did you mean {meant}?")
    assert f"hint: did you mean {meant}?" in maze.osmosis(*words).err


def test_a_suggestion_that_can_not_be_had_changes_nothing(maze: Maze) -> None:
    maze.get("/datasets/maze").respond(404, json={"error": "There is no dataset maze."})
    for reply in (httpx.Response(500), httpx.Response(200, json={}), httpx.ReadTimeout("slow")):
        maze.get("/datasets").mock(side_effect=[reply])
        outcome = maze.osmosis("dataset", "info", "maze")
        assert (outcome.status, outcome.err.splitlines()[-1]) == (1, "Error: There is no dataset maze.")


@pytest.mark.parametrize(
    "words, fitting",
    [
        (("eval", "stop", ""), ["amber-otter-42", "quiet-fern-7"]),
        (("eval", "info", ""), ["good", "amber-otter-42", "quiet-fern-7"]),
        (("train", "stop", "c"), ["copper-finch"]),
        (("dataset", "info", "m"), ["maze-walks"]),
        (("model", "deploy", ""), ["copper-finch-step-40"]),
        (("rollout", "server", "probe", "calc"), ["calculator"]),
        (("eval", "upload", "g"), ["good"]),
    ],
)
def test_tab_completes_names(
    maze: Maze,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    fitting: list[str],
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    assert tab(maze, monkeypatch, capsys, *words) == fitting


def test_tab_is_silent_about_what_goes_wrong_and_asks_nobody_without_a_login(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replies = [httpx.Response(500), httpx.Response(401), httpx.Response(200, text="<html>")]
    listing = maze.get("/datasets").mock(side_effect=replies)
    for asked in range(1, len(replies) + 1):
        assert tab(maze, monkeypatch, capsys, "dataset", "info", "") == []
        assert listing.call_count == asked

    for name in ("OSMOSIS_TOKEN", "OSMOSIS_TOKEN_PLATFORM_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    assert tab(maze, monkeypatch, capsys, "dataset", "info", "") == []
    assert maze.router.calls.call_count == len(replies)


def test_tab_does_not_wait_for_a_platform_that_is_slow(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(name_completion, "LIMIT_S", 0.05)
    asked, answered = threading.Event(), threading.Event()

    def slow(_: httpx.Request) -> httpx.Response:
        asked.wait(60)
        answered.set()
        return httpx.Response(200, json=LISTS["/datasets"])

    maze.get("/datasets").mock(side_effect=slow)
    assert tab(maze, monkeypatch, capsys, "dataset", "info", "") == []
    assert not answered.is_set()
    # The thread that was not waited for must not ask in the next test.
    asked.set()
    assert answered.wait(60)

"""Shell completion of commands, and of names on the platform and this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from osmosis_ai.cli import completion
from tests.cli.maze import Maze
from tests.evaluation.recorded_runs import write_run


def complete(maze: Maze, *words: str) -> list[str]:
    """Return the candidates for the last of these words."""
    maze.patch.setenv("_OSMOSIS_COMPLETE", "complete_bash")
    maze.patch.setenv("COMP_WORDS", " ".join(("osmosis", *words)))
    maze.patch.setenv("COMP_CWORD", str(len(words)))
    outcome = maze.osmosis()
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out.split()


@pytest.mark.parametrize(
    "words", [("dataset", "validate", ""), ("--env-file", ""), ("eval", "info", "--", "--j")]
)
def test_values_complete_to_files(maze: Maze, words: tuple[str, ...]) -> None:
    """Without candidates the shell offers files."""
    assert complete(maze, *words) == []


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_function(tmp_path: Path) -> None:
    program = tmp_path / "osmosis"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m osmosis_ai "$@"\n')
    program.chmod(0o755)
    typed = """
        eval "$(_OSMOSIS_COMPLETE=source_bash osmosis)"
        COMP_WORDS=(osmosis dataset va); COMP_CWORD=2; _osmosis_completion osmosis; echo "${COMPREPLY[*]}"
        COMP_WORDS=(osmosis --json dataset ""); COMP_CWORD=3; _osmosis_completion osmosis; echo "${#COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", typed],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    completed, count = done.stdout.splitlines()
    assert completed == "validate"
    assert int(count) == 9


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
def maze(maze: Maze) -> Maze:
    # A busy machine may be slow, except where time is what is tested.
    maze.patch.setattr(completion, "LIMIT_S", 60.0)
    for path, reply in LISTS.items():
        maze.get(path).respond(json=reply)
    return maze


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
def test_did_you_mean(maze: Maze, words: tuple[str, ...], path: str, meant: str) -> None:
    for method in (maze.get, maze.post):
        method(path).respond(404, json={"error": "There is none of that name.", "code": "NOT_FOUND"})
    error = maze.osmosis(*words, "--json").error
    assert (error["code"], error["hint"]) == ("NOT_FOUND", f"did you mean {meant}?")
    assert f"hint: did you mean {meant}?" in maze.osmosis(*words).err


def test_suggestion_request_fails(maze: Maze) -> None:
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
def test_tab_completes_names(maze: Maze, words: tuple[str, ...], fitting: list[str]) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    assert complete(maze, *words) == fitting


def test_tab_ignores_errors_and_missing_login(maze: Maze) -> None:
    replies = [httpx.Response(500), httpx.Response(401), httpx.Response(200, text="<html>")]
    listing = maze.get("/datasets").mock(side_effect=replies)
    for requests in range(1, len(replies) + 1):
        assert complete(maze, "dataset", "info", "") == []
        assert listing.call_count == requests

    maze.patch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    assert complete(maze, "dataset", "info", "") == []
    assert maze.router.calls.call_count == len(replies)


def test_tab_does_not_wait_for_a_slow_platform(maze: Maze) -> None:
    maze.patch.setattr(completion, "LIMIT_S", 0.05)
    asked, answered = threading.Event(), threading.Event()

    def slow(_: httpx.Request) -> httpx.Response:
        asked.wait(60)
        answered.set()
        return httpx.Response(200, json=LISTS["/datasets"])

    maze.get("/datasets").mock(side_effect=slow)
    assert complete(maze, "dataset", "info", "") == []
    assert not answered.is_set()
    # The thread that was not waited for must not ask in the next test.
    asked.set()
    assert answered.wait(60)

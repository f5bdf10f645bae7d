"""What `osmosis eval submit` finds out before it submits: about code, commit and secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.eval_submits import CANARY, commit, make_ready, pin, store_secrets, submit, write_entrypoint
from tests.cli.maze import Maze, sent
from tests.logins import files_holding
from tests.workspace.builders import git


@pytest.fixture
def maze(maze: Maze, monkeypatch: pytest.MonkeyPatch, warm_children_without_torch: None) -> Maze:
    return make_ready(maze, monkeypatch)


# The entrypoint

AGENT_LOOP = """
from osmosis_ai.rollout import RolloutAgentLoop


class Agent(RolloutAgentLoop):
    name = "agent"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return ctx.complete([])


def correct(solution_str, ground_truth, extra_info):
    return 1.0


agent_loop = Agent
eval_fns = [correct]

if __name__ == "__main__":
    raise AssertionError("it serves by itself")
"""


@pytest.mark.parametrize(
    "text, place, said",
    [
        ("def broken(:\n", "main.py, line 1", "SyntaxError"),
        ("x = 1\nraise RuntimeError('no GPU')\n", "main.py, line 2", "RuntimeError: no GPU"),
        ("import sys\nsys.exit(3)\n", "main.py, line 2", "SystemExit: 3"),
        ("import os\nos._exit(5)\n", "main.py", "it ended with exit status 5"),
        ("agent_loop = 3\n", "main.py", "is of type int, no RolloutAgentLoop"),
        (
            AGENT_LOOP.replace("def correct(solution_str,", "def correct(text,"),
            "main.py",
            "the first parameter of eval function 'correct'",
        ),
    ],
)
def test_code_that_cannot_run_anywhere_is_not_submitted(maze: Maze, text: str, place: str, said: str) -> None:
    write_entrypoint(maze, text)
    error = submit(maze, "--yes", "--json").error
    assert error["code"] == "VALIDATION"
    assert error["message"].startswith(
        "`osmosis eval submit` preflight failed for `rollouts/multiply/main.py`."
    )
    assert f"rollouts/multiply/{place}" in error["message"] and said in error["message"]
    assert not maze.router.calls


def test_siblings_are_importable_and_secrets_have_a_stand_in_while_the_code_is_imported(maze: Maze) -> None:
    (maze.workspace.rollouts_dir / "multiply" / "tools.py").write_text("from . import more\nX = 1\n")
    (maze.workspace.rollouts_dir / "multiply" / "more.py").write_text("")
    write_entrypoint(
        maze,
        "import os\nimport more\nfrom .tools import X\n"
        "os.environ['SEARCH_KEY'], os.environ['LOG_LEVEL']\nassert 'OSMOSIS_TOKEN' not in os.environ\n"
        "assert __name__ != '__main__'\n",
    )
    assert submit(maze, "--yes", "--json").status == 0


def test_an_agent_loop_is_submitted(maze: Maze) -> None:
    write_entrypoint(maze, AGENT_LOOP)
    assert submit(maze, "--yes", "--json").status == 0


def test_a_package_that_is_not_installed_here_is_left_to_the_platform(maze: Maze) -> None:
    write_entrypoint(maze, "import no_such_package_at_all\n")
    outcome = submit(maze, "--yes", "--json")
    assert outcome.status == 0
    assert "no_such_package_at_all" in json.loads(outcome.err.splitlines()[0])["warning"]["message"]
    project = maze.workspace.rollouts_dir / "multiply" / "pyproject.toml"
    project.write_text('[project]\nname = "multiply"\ndependencies = ["no-such-package-at-all>=9"]\n')
    write_entrypoint(maze, "raise RuntimeError('is not even imported')\n")
    assert "`no-such-package-at-all` is not installed" in submit(maze, "--yes", "--plain").err


def test_an_import_that_never_ends_is_left_to_the_platform_but_no_check_says_yes_to_it(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai.services import rollout_preflight

    monkeypatch.setitem(rollout_preflight.import_entrypoint.__kwdefaults__, "timeout_s", 0.5)
    write_entrypoint(maze, "import threading\nthreading.Event().wait()\n")
    outcome = submit(maze, "--yes", "--plain")
    assert (outcome.status, "still importing after 0.5 s" in outcome.err) == (0, True)
    error = submit(maze, "--check", "--json").error
    assert "`rollouts/multiply/main.py` was still importing after 0.5 s." in error["message"]


# The commit


def install_gh(maze: Maze, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a GitHub CLI on PATH that writes down what it was asked."""
    directory = maze.workspace.root.parent / "bin"
    directory.mkdir(exist_ok=True)
    asked = directory / "asked"
    (directory / "gh").write_text(f'#!/bin/sh\necho "$@" > {asked}\n{script}\n')
    (directory / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return asked


ABSENT = "echo 'gh: No commit found for SHA (HTTP 422)' >&2; exit 1"


def test_a_commit_that_github_has_is_submitted(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(maze, "4be1c0f")
    asked = install_gh(maze, monkeypatch, "exit 0")
    outcome = submit(maze, "--yes", "--json")
    assert (outcome.status, "4be1c0f" in outcome.err) == (0, False)
    assert asked.read_text() == "api --silent repos/fern/maze/commits/4be1c0f\n"
    assert sent(maze.post("/eval-runs"))["experiment_config"]["commit_sha"] == "4be1c0f"
    assert outcome.json["resource"]["config"]["commit_sha"] == "4be1c0f"


def test_a_commit_that_github_does_not_have_is_not(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    install_gh(maze, monkeypatch, ABSENT)
    pin(maze, commit(maze))
    assert "but not pushed to fern/maze" in submit(maze, "--yes", "--json").error["message"]
    pin(maze, "4be1c0f")
    assert "neither in this clone nor in fern/maze" in submit(maze, "--yes", "--json").error["message"]
    assert not maze.post("/eval-runs").called


@pytest.mark.parametrize("script", ["echo 'HTTP 404' >&2; exit 1", "exit 4", None])
def test_a_commit_github_says_nothing_of_is_left_to_the_platform(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    if script is not None:
        install_gh(maze, monkeypatch, script)
    pin(maze, "4be1c0f")
    outcome = submit(maze, "--yes", "--plain")
    assert (outcome.status, "commit 4be1c0f is not in this clone" in outcome.err) == (0, True)


def test_github_is_not_asked_about_commits_elsewhere(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    git(maze.workspace.root, "remote", "set-url", "origin", "https://gitlab.example/fern/maze.git")
    asked = install_gh(maze, monkeypatch, ABSENT)
    pin(maze, commit(maze))
    assert submit(maze, "--yes", "--json").status == 0
    assert not asked.exists()


@pytest.mark.parametrize("sha", ["main", "xyz1234", "4be1c", "4" * 41])
def test_what_is_no_sha_is_refused_here(maze: Maze, sha: str) -> None:
    pin(maze, sha)
    error = submit(maze, "--yes", "--json").error
    assert (error["code"], "commit_sha" in error["message"]) == ("VALIDATION", True)
    assert not maze.router.calls


# Secrets


def test_all_secrets_that_are_nowhere_are_named_at_once_with_what_stores_them(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", CANARY)
    store_secrets(maze, ("OTHER", "workspace"), ("OPENAI_API_KEY", "team"))
    error = submit(maze, "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["missing"] == ["OPENAI_API_KEY", "SEARCH_KEY"]
    assert error["details"]["flags"] == ["--secrets-file"]
    assert "\n  osmosis secret set OPENAI_API_KEY\n" in error["message"]
    assert error["message"].endswith("\n  osmosis secret set SEARCH_KEY --env SEARCH_KEY")
    assert CANARY not in json.dumps(error)
    assert not maze.post("/eval-runs").called


def test_values_travel_only_from_a_secrets_file_and_are_shown_nowhere(maze: Maze, tmp_path: Path) -> None:
    store_secrets(maze, ("OPENAI_API_KEY", "workspace"))
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"export SEARCH_KEY='{CANARY}'\nUNASKED={CANARY}2\n")
    for mode in (["--json"], ["--plain"], []):
        outcome = submit(maze, "--yes", "--secrets-file", str(secrets), *mode)
        assert outcome.status == 0, outcome.err
        assert CANARY not in outcome.out + outcome.err
        assert "UNASKED" in outcome.err
        assert sent(maze.post("/eval-runs"))["secrets"] == {
            "required": ["OPENAI_API_KEY", "SEARCH_KEY"],
            "provided": {"SEARCH_KEY": CANARY},
        }
    assert files_holding(CANARY, tmp_path) == ["secrets.env"]


def test_a_platform_that_echoes_a_value_is_not_quoted(maze: Maze, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"OPENAI_API_KEY={CANARY}\nSEARCH_KEY={CANARY}-longer\n")
    maze.post("/eval-runs").respond(400, json={"error": f"bad secret {CANARY}-longer", "value": CANARY})
    for mode in ("--json", "--plain"):
        outcome = submit(maze, "--yes", "--secrets-file", str(secrets), mode)
        assert (outcome.status, CANARY in outcome.err, "-longer" in outcome.err) == (1, False, False)
        assert "bad secret [REDACTED]" in outcome.err


def test_a_platform_that_cannot_list_secrets_checks_them_itself(maze: Maze, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"SEARCH_KEY={CANARY}\n")
    maze.get("/environment-secrets").respond(500, json={"error": "broken"})
    outcome = submit(maze, "--yes", "--secrets-file", str(secrets), "--plain")
    assert (outcome.status, "the stored secrets could not be listed (broken)" in outcome.err) == (0, True)
    # What was supplied for this run still travels.
    assert sent(maze.post("/eval-runs"))["secrets"]["provided"] == {"SEARCH_KEY": CANARY}


def test_secrets_the_platform_finds_missing_come_with_what_stores_them(maze: Maze) -> None:
    maze.post("/eval-runs").respond(
        404,
        json={
            "error": "Secret(s) not found: OPENAI_API_KEY, SEARCH_KEY",
            "platform_url": "https://osmosis.fern.example/fern-lab/secrets",
        },
    )
    outcome = submit(maze, "--yes", "--plain")
    assert "  osmosis secret set OPENAI_API_KEY\n  osmosis secret set SEARCH_KEY\n" in outcome.err
    assert "https://osmosis.fern.example/fern-lab/secrets" in outcome.err
    error = submit(maze, "--yes", "--json").error
    assert (error["code"], error["details"]["missing"]) == ("NOT_FOUND", ["OPENAI_API_KEY", "SEARCH_KEY"])


def test_a_secrets_file_that_is_wrong_is_told_by_line_alone(maze: Maze, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"GOOD=1\n{CANARY}\n")
    error = submit(maze, "--yes", "--secrets-file", str(secrets), "--json").error
    assert "Line 2" in error["message"] and CANARY not in json.dumps(error)
    missing = submit(maze, "--yes", "--secrets-file", "none.env", "--json").error
    assert (missing["code"], missing["message"]) == ("VALIDATION", "Secrets file not found: none.env")

"""`osmosis eval submit` against a platform written by hand: what is sent, what is said, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import DETAIL, OWN
from tests.cli.eval_submits import (
    CANARY,
    SUBMITTED,
    TEXT,
    commit,
    configure,
    make_ready,
    pin,
    store_secrets,
    submit,
    write_entrypoint,
)
from tests.cli.maze import Maze, sent
from tests.logins import files_holding, save_login, use_platform
from tests.workspace.builders import git


@pytest.fixture
def maze(maze: Maze, monkeypatch: pytest.MonkeyPatch, warm_children_without_torch: None) -> Maze:
    return make_ready(maze, monkeypatch)


# What is sent


def test_what_is_written_in_the_config_is_sent_with_the_names_of_its_secrets(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An exported variable is nobody's business but the shell's.
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    outcome = submit(maze, "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert sent(maze.post("/eval-runs")) == {
        "experiment_config": {
            "rollout": "multiply",
            "entrypoint": "main.py",
            "model_path": "openai/gpt-5-mini",
            "dataset": "maze-walks",
        },
        "evaluation_config": {"limit": 10},
        "env_config": {"LOG_LEVEL": "INFO"},
        "secrets": {"required": ["OPENAI_API_KEY", "SEARCH_KEY"]},
    }


def test_a_config_without_optional_parts_sends_none(maze: Maze) -> None:
    configure(maze, TEXT.partition("[evaluation]")[0] + "[secrets]\nrequired = []\n")
    assert submit(maze, "--yes", "--json").status == 0
    assert set(sent(maze.post("/eval-runs"))) == {"experiment_config"}
    assert not maze.get("/environment-secrets").called


# What is agreed to


def test_scripts_that_cannot_be_asked_get_all_they_would_agree_to(maze: Maze) -> None:
    (maze.workspace.root / "new.txt").write_text("not committed")
    outcome = submit(maze, "--json")
    assert (outcome.status, maze.post("/eval-runs").called) == (1, False)
    error = outcome.error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["summary"]["secret.SEARCH_KEY"] == "Personal (overrides workspace)"
    assert "Uncommitted changes" in "\n".join(error["details"]["warnings"])


def test_enter_submits(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.cli.output.formats.is_terminal", lambda _: True)
    monkeypatch.setattr("typer.getchar", lambda: "\r")
    assert submit(maze).status == 0 and maze.post("/eval-runs").called


# Refusals


def test_a_platform_that_refuses_or_is_silent_is_quoted(maze: Maze) -> None:
    route = maze.post("/eval-runs")
    route.side_effect = httpx.ReadTimeout("slow")
    outcome = submit(maze, "--yes", "--plain")
    assert (outcome.status, route.call_count) == (1, 1)
    assert "the request may have succeeded" in outcome.err

    refusal = {"error": "there is no dataset 'maze-walks'", "dry_run": True}
    maze.post("/eval-runs/check").respond(404, json=refusal)
    error = submit(maze, "--yes", "--json").error
    assert error["message"] == "there is no dataset 'maze-walks'"
    assert "osmosis eval list" not in (error.get("hint") or "")


# --check


def test_check_does_everything_but_submit(maze: Maze, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"SEARCH_KEY={CANARY}\n")
    outcome = submit(maze, "--check", "--secrets-file", str(secrets), "--json")
    assert (outcome.status, maze.post("/eval-runs").called) == (0, False)
    envelope = outcome.json
    assert envelope["operation"] == "eval.check"
    resource = envelope["resource"]
    assert resource["payload"]["secrets"] == {
        "required": ["OPENAI_API_KEY", "SEARCH_KEY"],
        "provided": ["SEARCH_KEY"],
    }
    assert resource["payload"]["evaluation_config"] == {"limit": 10}
    assert resource["secrets"] == {"OPENAI_API_KEY": "workspace", "SEARCH_KEY": "run"}
    assert resource["dataset"]["status"] == "uploaded"
    assert CANARY not in outcome.out + outcome.err
    assert submit(maze, "--check", "--plain").status == 0


# --watch


def test_watch_exits_with_1_when_the_run_fails(maze: Maze) -> None:
    failed = {**DETAIL, "eval_run": {**OWN, "status": "failed", "error": "The model was rejected."}}
    maze.get("/eval-runs/er_8").respond(json=failed)
    maze.get("/eval-runs/er_8/metrics").respond(json={})
    outcome = submit(maze, "--yes", "--watch", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert outcome.json["resource"]["error"] == "The model was rejected."
    assert "osmosis eval logs amber-otter-42" in submit(maze, "--yes", "--watch", "--plain").out


# The entrypoint


@pytest.mark.parametrize(
    "text, place, said",
    [
        ("def broken(:\n", "main.py, line 1", "SyntaxError"),
        ("import os\nos._exit(5)\n", "main.py", "it ended with exit status 5"),
        ("agent_loop = 3\n", "main.py", "is of type int, no RolloutAgentLoop"),
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


def test_a_commit_is_submitted_only_if_github_has_it(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    install_gh(maze, monkeypatch, ABSENT)
    pin(maze, commit(maze))
    assert "but not pushed to fern/maze" in submit(maze, "--yes", "--json").error["message"]
    pin(maze, "4be1c0f")
    assert "neither in this clone nor in fern/maze" in submit(maze, "--yes", "--json").error["message"]
    assert not maze.post("/eval-runs").called

    pin(maze, "4be1c0f")
    asked = install_gh(maze, monkeypatch, "exit 0")
    outcome = submit(maze, "--yes", "--json")
    assert (outcome.status, "4be1c0f" in outcome.err) == (0, False)
    assert asked.read_text() == "api --silent repos/fern/maze/commits/4be1c0f\n"
    assert sent(maze.post("/eval-runs"))["experiment_config"]["commit_sha"] == "4be1c0f"
    assert outcome.json["resource"]["config"]["commit_sha"] == "4be1c0f"


@pytest.mark.parametrize("sha", ["main", "4be1c", "4" * 41])
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


def test_a_secrets_file_that_is_wrong_is_told_by_line_alone(maze: Maze, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"GOOD=1\n{CANARY}\n")
    error = submit(maze, "--yes", "--secrets-file", str(secrets), "--json").error
    assert "Line 2" in error["message"] and CANARY not in json.dumps(error)
    missing = submit(maze, "--yes", "--secrets-file", "none.env", "--json").error
    assert (missing["code"], missing["message"]) == ("VALIDATION", "Secrets file not found: none.env")


HOSTED = "https://platform.osmosis.ai"
ALL = ["config", "import", "secrets", "dataset", "model", "commit", "rollout", "limits"]
ONLY_THE_PLATFORM = ["model", "commit", "rollout", "limits"]


def agrees(maze: Maze, sha: str, *, local: bool = False) -> None:
    """Let the platform be one that can be asked, and agree."""
    verdict = {
        "dry_run": True,
        "commit_sha": sha,
        "repository": {"identity": "fern/maze", "local": local},
        "dataset": {"id": "ds_31", "name": "maze-walks"},
        "sampled_rows": 10,
        "total_dataset_rows": 200,
    }
    maze.post("/eval-runs/check").respond(json=verdict)


def head(maze: Maze) -> str:
    return git(maze.workspace.root, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "reply", [{"status_code": 404, "html": "<h1>404</h1>"}, {"status_code": 200, "json": {"ok": True}}]
)
def test_of_a_platform_that_cannot_be_asked_it_says_what_was_checked_and_what_was_not(
    maze: Maze, reply: dict[str, Any]
) -> None:
    maze.post("/eval-runs/check").respond(**reply)
    envelope = submit(maze, "--check", "--json").json
    assert "can be submitted" not in envelope["message"]
    assert envelope["resource"]["unchecked"] == ONLY_THE_PLATFORM
    assert envelope["resource"]["checked"] == [check for check in ALL if check not in ONLY_THE_PLATFORM]


@pytest.mark.parametrize("way", [("--check",), ("--yes",)])
@pytest.mark.parametrize(
    "status, body, said, code",
    [
        (404, {"error": "no dataset 'x'", "code": "DATASET_NOT_FOUND"}, "no dataset 'x'", "NOT_FOUND"),
        (
            502,
            {"error": "could not fetch the code", "code": "REPOSITORY_NOT_FETCHED"},
            "fetch",
            "PLATFORM_ERROR",
        ),
    ],
)
def test_what_the_platform_would_refuse_is_neither_checked_nor_submitted(
    maze: Maze, way: tuple[str, ...], status: int, body: dict[str, Any], said: str, code: str
) -> None:
    maze.post("/eval-runs/check").respond(status, json={**body, "dry_run": True})
    error = submit(maze, *way, "--json").error
    assert (error["code"], said in error["message"]) == (code, True)
    assert not maze.post("/eval-runs").called


def test_values_of_secrets_travel_with_no_question(maze: Maze, tmp_path: Path) -> None:
    agrees(maze, head(maze))
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"SEARCH_KEY={CANARY}\n")
    assert submit(maze, "--yes", "--secrets-file", str(secrets), "--json").status == 0
    asked, submitted = sent(maze.post("/eval-runs/check")), sent(maze.post("/eval-runs"))
    assert CANARY not in str(asked) and set(asked["secrets"]["provided"]) == {"SEARCH_KEY"}
    assert submitted["secrets"]["provided"] == {"SEARCH_KEY": CANARY}
    secrets.write_text(f"SEARCH_KEY={CANARY * 5000}\n")
    error = submit(maze, "--check", "--secrets-file", str(secrets), "--json").error
    assert error["message"] == "The value of SEARCH_KEY in the secrets file must not be longer than 64 KiB."


# What is pushed


def warnings(maze: Maze) -> str:
    return "\n".join(submit(maze, "--json").error["details"].get("warnings", []))


def test_the_commit_checked_out_here_needs_no_push_when_it_is_what_would_run(maze: Maze) -> None:
    # The branch has no upstream: the platform reads the repository from somewhere else.
    agrees(maze, head(maze), local=True)
    assert warnings(maze) == ""
    notes = submit(maze, "--json").error["details"]["notes"]
    assert any(f"now {head(maze)[:8]}" in note for note in notes)


def test_the_hosted_service_gets_no_request_that_it_does_not_know(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_login(HOSTED)
    use_platform(monkeypatch, HOSTED)
    api = f"{HOSTED}/api/cli"
    names = ("OPENAI_API_KEY", "SEARCH_KEY")
    stored = [{"id": name, "name": name, "scope": "workspace"} for name in names]
    listed = maze.router.get(url__startswith=f"{api}/environment-secrets")
    listed.respond(json={"environment_secrets": stored, "next_offset": None})
    maze.router.post(f"{api}/eval-runs").respond(json=SUBMITTED)
    asked = maze.router.post(f"{api}/eval-runs/check").respond(404)
    envelope = submit(maze, "--yes", "--json").json
    assert envelope["resource"]["name"] == SUBMITTED["name"]
    assert not asked.called


def test_an_agent_that_is_served_elsewhere_needs_no_directory(maze: Maze) -> None:
    served = TEXT.replace('"multiply"', '"calculator"').replace('"main.py"', '"server://calculator"')
    configure(maze, served)
    agrees(maze, commit(maze))
    envelope = submit(maze, "--check", "--json").json
    assert envelope["resource"]["unchecked"] == ["import"]
    assert "is served elsewhere" in " ".join(envelope["resource"]["warnings"])
    asked = sent(maze.post("/eval-runs/check"))
    assert asked["experiment_config"]["entrypoint"] == "server://calculator"
    for nothing in ("server://", "server:// x", "server://<name>"):
        configure(maze, served.replace("server://calculator", nothing))
        refused = submit(maze, "--check")
        assert refused.status == 1 and "must name a served agent" in refused.err

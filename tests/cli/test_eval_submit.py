"""`osmosis eval submit` against a platform written by hand: what is sent, what is said, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import DETAIL, ESTIMATES, METRICS, OWN
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
from tests.cli.maze import Maze, replies, sent
from tests.logins import REFUSALS
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
    assert outcome.json == {
        "schema_version": 1,
        "status": "success",
        "operation": "eval.submit",
        "message": "Evaluation run submitted: amber-otter-42",
        "resource": {
            "id": "er_8",
            "name": "amber-otter-42",
            "status": "pending",
            "model_name": "openai/gpt-5-mini",
            "dataset_name": "maze-walks",
            "created_at": "2026-10-02T07:00:00.000Z",
            **maze.resource,
            "config": {
                "rollout": "multiply",
                "entrypoint": "main.py",
                "model": "openai/gpt-5-mini",
                "dataset": "maze-walks",
                "branch": None,
                "commit_sha": None,
            },
        },
        "next_steps_structured": [{"action": "eval_info", "name": "amber-otter-42"}, {"action": "eval_list"}],
    }


def test_a_config_without_optional_parts_sends_none(maze: Maze) -> None:
    configure(maze, TEXT.partition("[evaluation]")[0] + "[secrets]\nrequired = []\n")
    assert submit(maze, "--yes", "--json").status == 0
    assert set(sent(maze.post("/eval-runs"))) == {"experiment_config"}
    assert not maze.get("/environment-secrets").called


def test_advanced_settings_pass_through_as_written(maze: Maze) -> None:
    configure(maze, TEXT + '\n[advanced]\nodd = {deep = [1, "two"]}\n')
    assert submit(maze, "--yes", "--json").status == 0
    assert sent(maze.post("/eval-runs"))["advanced_config"] == {"odd": {"deep": [1, "two"]}}


def test_a_relative_config_is_found_from_any_directory_of_the_workspace(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(maze.workspace.data_dir)
    assert submit(maze, "--yes", "--json").status == 0


def test_logs_show_what_was_submitted_and_where_it_can_be_seen(maze: Maze) -> None:
    maze.post("/eval-runs").respond(json={**SUBMITTED, "platform_url": OWN["platform_url"]})
    outcome = submit(maze, "--yes", "--plain")
    assert outcome.out.splitlines() == [
        "Evaluation run submitted: amber-otter-42",
        "Status: pending",
        "Rollout: multiply",
        "Model: openai/gpt-5-mini",
        "Dataset: maze-walks",
        f"View: {OWN['platform_url']}",
        "Follow: osmosis eval watch amber-otter-42",
    ]
    assert "Submitting evaluation run\n" in outcome.err
    envelope = submit(maze, "--yes", "--json").json
    assert envelope["resource"]["url"] == OWN["platform_url"]
    assert envelope["next_steps_structured"][-1] == {"action": "open_url", "url": OWN["platform_url"]}


def test_people_see_tables_of_what_they_agree_to(maze: Maze) -> None:
    rich = submit(maze, "--yes").err
    for shown in (
        *("Evaluation Run", "Env Vars (1)", "LOG_LEVEL", "Secrets (2)"),
        *("Workspace", "Personal (overrides workspace)", "Before you submit", "Checked out here: main @ "),
    ):
        assert shown in rich


# What is agreed to


def test_scripts_that_cannot_be_asked_get_all_they_would_agree_to(maze: Maze) -> None:
    (maze.workspace.root / "new.txt").write_text("not committed")
    outcome = submit(maze, "--json")
    assert (outcome.status, maze.post("/eval-runs").called) == (1, False)
    error = outcome.error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["prompt"] == "Submit this evaluation run?"
    assert list(error["details"]["summary"].items()) == [
        ("Rollout", "multiply"),
        ("Entrypoint", "main.py"),
        ("Model", "openai/gpt-5-mini"),
        ("Dataset", "maze-walks"),
        ("Rows", "the first 10, or all where there are fewer"),
        ("env.LOG_LEVEL", "INFO"),
        ("secret.OPENAI_API_KEY", "Workspace"),
        ("secret.SEARCH_KEY", "Personal (overrides workspace)"),
    ]
    assert len(error["details"]["notes"]) == 3
    warnings = "\n".join(error["details"]["warnings"])
    assert (
        "Uncommitted changes" in warnings
        and "no upstream" in warnings
        and "neither `commit_sha` nor" in warnings
    )


def test_an_uncommitted_config_is_no_reason_to_warn(maze: Maze) -> None:
    commit(maze)
    configure(maze, TEXT.replace("limit = 10", "limit = 5"))
    (maze.workspace.eval_configs_dir / "new.toml").write_text(TEXT)
    warned = submit(maze, "--json").error["details"]["warnings"]
    assert "Uncommitted changes" not in "\n".join(warned)


def test_commits_that_are_not_pushed_are_counted(maze: Maze, tmp_path: Path) -> None:
    root = maze.workspace.root
    git(root, "init", "--quiet", "--bare", str(tmp_path / "bare"))
    git(root, "push", "--quiet", str(tmp_path / "bare"), "main")
    git(root, "config", "branch.main.remote", "origin")
    git(root, "config", "branch.main.merge", "refs/heads/main")
    git(root, "update-ref", "refs/remotes/origin/main", "HEAD")
    pushed = git(root, "rev-parse", "HEAD")
    commit(maze)
    commit(maze)
    assert "2 commits are not pushed" in submit(maze, "--yes", "--plain").err
    # A commit that a remote branch holds is as good as pushed; the newer one is not.
    pin(maze, pushed)
    assert "not be pushed yet" not in submit(maze, "--yes", "--plain").err
    pin(maze, git(root, "rev-parse", "HEAD"))
    assert "on no remote branch that this clone knows of" in submit(maze, "--yes", "--plain").err


# Refusals


@pytest.mark.parametrize(
    "status, body, code",
    [
        (404, {"error": "there is no dataset 'maze-walks' in this workspace."}, "NOT_FOUND"),
        (409, {"error": "the dataset 'maze-walks' is still being checked."}, "CONFLICT"),
        (400, {"error": "the dataset 'maze-walks' was refused."}, "VALIDATION"),
        (404, {"error": "commit 4be1c0f is not in fern/maze."}, "NOT_FOUND"),
        (
            400,
            {
                "error": "rejected",
                "issues": [
                    {"key": "evaluation.limt", "message": "unknown", "key_correction": "evaluation.limit"}
                ],
            },
            "VALIDATION",
        ),
        (404, {"error": "x", "code": "GIT_REPOSITORY_NOT_CONNECTED"}, "NOT_FOUND"),
        (403, {"error": "x", "code": "GIT_REPOSITORY_ACCESS_DENIED"}, "PLATFORM_ERROR"),
        (403, {"error": "no plan", "code": "SUBSCRIPTION_REQUIRED"}, "SUBSCRIPTION_REQUIRED"),
        (413, {"error": "too large"}, "PLATFORM_ERROR"),
    ],
)
def test_what_the_platform_refuses_is_said_in_its_words(
    maze: Maze, status: int, body: dict[str, Any], code: str
) -> None:
    route = maze.post("/eval-runs").respond(status, json=body)
    error = submit(maze, "--yes", "--json").error
    assert (error["code"], route.call_count) == (code, 1)
    if "code" not in body:
        assert error["message"].startswith(body["error"])
    if "issues" in body:
        assert "evaluation.limt: unknown (did you mean 'evaluation.limit'?)" in error["message"]


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_is_not_well_is_told_by_its_code_and_asked_once(
    maze: Maze, reply: dict[str, Any], code: str
) -> None:
    route = maze.post("/eval-runs").respond(**reply)
    outcome = submit(maze, "--yes", "--json")
    assert (outcome.status, outcome.error["code"], route.call_count) == (1, code, 1)


@pytest.mark.parametrize(
    "reply, code",
    [refusal for refusal in REFUSALS if refusal.values[1] in ("AUTH_REQUIRED", "UPGRADE_REQUIRED")],
)
def test_who_may_not_list_secrets_may_not_submit(maze: Maze, reply: dict[str, Any], code: str) -> None:
    maze.get("/environment-secrets").respond(**reply)
    assert submit(maze, "--yes", "--json").error["code"] == code
    assert not maze.post("/eval-runs").called


def test_when_no_answer_comes_the_run_may_exist_all_the_same(maze: Maze) -> None:
    route = maze.post("/eval-runs")
    route.side_effect = httpx.ReadTimeout("slow")
    outcome = submit(maze, "--yes", "--plain")
    assert (outcome.status, route.call_count) == (1, 1)
    assert "the run may exist all the same" in outcome.err


def test_the_first_things_wrong_are_found_before_the_platform_is_asked(maze: Maze) -> None:
    configure(maze, TEXT.replace("limit = 10", 'limit = "ten"').replace("LOG_LEVEL", "log-level"))
    message = submit(maze, "--yes", "--json").error["message"]
    assert "evaluation.limit" in message and "log-level" in message
    configure(maze, TEXT.replace('"multiply"', '"multiplly"'))
    assert "did you mean 'multiply'" in submit(maze, "--yes", "--json").error["message"]
    assert maze.osmosis("eval", "submit", "data/x.toml", "--json").error["code"] == "VALIDATION"
    assert not maze.router.calls


def test_without_a_login_or_an_origin_it_says_so(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.is.logged.in.example")
    assert submit(maze, "--yes", "--json").error["code"] == "AUTH_REQUIRED"
    git(maze.workspace.root, "remote", "remove", "origin")
    assert "`origin`" in submit(maze, "--yes", "--json").error["message"]


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


@pytest.mark.parametrize(
    "reply, code",
    [
        ({"status_code": 404, "json": {"error": "there is no dataset 'maze-walks'"}}, "NOT_FOUND"),
        ({"json": {"id": "ds_31", "status": "processing"}}, "VALIDATION"),
        ({"json": {"id": "ds_31", "status": "error"}}, "VALIDATION"),
    ],
)
def test_check_fails_when_the_dataset_is_not_ready(maze: Maze, reply: dict[str, Any], code: str) -> None:
    maze.get("/datasets/maze-walks").respond(**reply)
    outcome = submit(maze, "--check", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, code)


def test_check_fails_on_everything_a_submit_fails_on(maze: Maze) -> None:
    store_secrets(maze)
    assert submit(maze, "--check", "--json").error["details"]["missing"] == ["OPENAI_API_KEY", "SEARCH_KEY"]
    write_entrypoint(maze, "def broken(:\n")
    assert "preflight failed" in submit(maze, "--check", "--json").error["message"]
    assert submit(maze, "--check", "--watch", "--json").error["code"] == "VALIDATION"


# --watch


def test_watch_follows_the_run_to_its_results(maze: Maze) -> None:
    running = {**DETAIL, "eval_run": {**OWN, "status": "running"}}
    finished = {**DETAIL, "eval_run": {**OWN, "status": "finished"}}
    looks = [running, running, finished, finished]
    maze.get("/eval-runs/er_8").side_effect = replies(*looks, *looks)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    outcome = submit(maze, "--yes", "--watch", "--plain")
    assert outcome.status == 0, outcome.err
    assert "Evaluation run submitted: amber-otter-42" in outcome.err
    assert outcome.out.startswith("Evaluation run finished: amber-otter-42\n")
    assert "Pass rate (reward >= 1.0, scored samples only)\t50.0 %" in outcome.out
    envelope = submit(maze, "--yes", "--watch", "--json").json
    assert (envelope["operation"], envelope["resource"]["status"]) == ("eval.submit", "finished")
    assert envelope["resource"]["metrics"]["estimates"] == ESTIMATES
    assert envelope["resource"]["metrics"]["pass_rate"] == 0.5


def test_watch_exits_with_1_when_the_run_fails(maze: Maze) -> None:
    failed = {**DETAIL, "eval_run": {**OWN, "status": "failed", "error": "The model was rejected."}}
    maze.get("/eval-runs/er_8").respond(json=failed)
    maze.get("/eval-runs/er_8/metrics").respond(json={})
    outcome = submit(maze, "--yes", "--watch", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert outcome.json["resource"]["error"] == "The model was rejected."
    assert "osmosis eval logs amber-otter-42" in submit(maze, "--yes", "--watch", "--plain").out

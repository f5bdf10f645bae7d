"""`eval resubmit` and `train resubmit` against replies written by hand: of our platform, and of the hosted service."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import CONFIG, DETAIL, OWN
from tests.cli.maze import Maze, sent
from tests.cli.train_replies import DETAIL as TRAINING

SHA, NEW = "4be1c0ffee4be1c0ffee", "5ca1ab1e5ca1ab1e5ca1"
SUBMITTED = {"id": "er_9", "name": "copper-finch", "status": "pending", "created_at": "2026-10-02T08:00:00Z"}
EXPERIMENT = {
    "rollout": "maze",
    "entrypoint": "main.py",
    "model_path": "osmosis/tiny",
    "dataset": "maze-walks",
}
SECRETS = {"environment_secrets": [{"id": "s", "name": "SEARCH_KEY", "scope": "workspace"}]}
OURS: dict[str, Any] = {
    **DETAIL,
    "resolved_secret_scopes": {"SEARCH_KEY": "user"},
    "request": {
        "experiment_config": {**EXPERIMENT, "branch": "main"},
        "evaluation_config": {"n": 2},
        "advanced_config": {"engine": {"x": 1}},
        "secrets": {"required": ["SEARCH_KEY"]},
    },
    "dataset_sha256": "aa" * 32,
    "platform_version": "0.3.12",
}
VERDICT = {
    "dry_run": True,
    "commit_sha": NEW,
    "resolved_secret_scopes": {"SEARCH_KEY": "workspace"},
    "dataset_sha256": "aa" * 32,
    "platform_version": "0.3.13",
}
# As the hosted service: without what only our platform says.
HOSTED: dict[str, Any] = {**DETAIL, "resolved_secret_scopes": None, "branch": "main"}


def there(maze: Maze, detail: dict[str, Any]) -> None:
    maze.get("/eval-runs/amber").respond(json=detail)
    maze.get("/environment-secrets").respond(json=SECRETS)


def test_our_platform_gets_what_was_submitted_word_for_word_and_says_what_changed(maze: Maze) -> None:
    there(maze, OURS)
    maze.post("/eval-runs/check").respond(json=VERDICT)
    route = maze.post("/eval-runs").respond(json=SUBMITTED)
    error = maze.osmosis("eval", "resubmit", "amber", "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED" and not route.called
    assert error["details"]["prompt"] == 'Submit evaluation run "amber-otter-42" again?'
    assert error["details"]["summary"] == {
        "Commit": "was 4be1c0ffee4b, now 5ca1ab1e5ca1",
        "Dataset": "aaaaaaaaaaaa (unchanged)",
        "Model": "osmosis/tiny (unchanged)",
        "Secret SEARCH_KEY": "was user, now workspace",
        "Platform version": "was 0.3.12, now 0.3.13",
    }
    done = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").json
    assert (done["operation"], done["status"]) == ("eval.resubmit", "success")
    resource = done["resource"]
    assert (resource["name"], resource["resubmit_of"]) == (
        "copper-finch",
        {"id": "er_8", "name": OWN["name"]},
    )
    assert {change["what"]: change["changed"] for change in resource["changes"]} == {
        "commit": True,
        "dataset": False,
        "model": False,
        "secret SEARCH_KEY": True,
        "platform version": True,
    }
    assert sent(route) == OURS["request"]
    shown = maze.osmosis("eval", "resubmit", "amber", "-y")
    assert "4be1c0ffee4b" in shown.err and "5ca1ab1e5ca1" in shown.err
    plain = maze.osmosis("eval", "resubmit", "amber", "-y", "--plain").out
    assert plain.startswith("Evaluation run submitted: copper-finch, of the config of amber-otter-42\n")


@pytest.mark.parametrize(
    ("updated", "changed"), [("2026-10-01T00:00:00Z", False), ("2026-10-03T00:00:00Z", True), (None, None)]
)
def test_of_any_other_platform_the_config_is_what_its_detail_says(
    updated: str | None, changed: bool | None, maze: Maze
) -> None:
    there(maze, HOSTED)
    maze.post("/eval-runs/check").respond(404, html="<h1>404</h1>")
    maze.get("/datasets/maze-walks").respond(
        json={"id": "ds_31", "file_name": "maze-walks", "updated_at": updated}
    )
    route = maze.post("/eval-runs").respond(json=SUBMITTED)
    outcome = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert sent(route) == {
        "experiment_config": {**EXPERIMENT, "branch": "main"},
        "evaluation_config": {"limit": CONFIG["limit"], "n": CONFIG["n"]},
        "env_config": {"LOG_LEVEL": "INFO"},
    }
    assert "whether the commit was pinned" in outcome.err
    changes = {change["what"]: change["changed"] for change in outcome.json["resource"]["changes"]}
    assert changes == {"commit": None, "dataset": changed, "model": False, "platform version": None}


def test_a_training_run_is_put_together_section_by_section(maze: Maze) -> None:
    detail = {
        **TRAINING,
        "config": {"training": {"lr": 1e-6, "seed": None}, "sampling": {}, "other": 3},
        "resolved_secret_scopes": {"SEARCH_KEY": "workspace"},
    }
    maze.get("/training-runs/copper").respond(json=detail)
    maze.get("/environment-secrets").respond(json=SECRETS)
    maze.post("/training-runs/check").respond(404)
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31"})
    route = maze.post("/training-runs").respond(json=SUBMITTED)
    outcome = maze.osmosis("train", "resubmit", "copper", "--yes", "--json")
    assert (outcome.status, outcome.json["operation"]) == (0, "train.resubmit"), outcome.err
    body = sent(route)
    assert body["training_config"] == {"lr": 1e-6} and "other_config" not in body
    assert body["secrets"] == {"required": ["SEARCH_KEY"]}


@pytest.mark.parametrize(
    ("detail", "code", "said"),
    [
        (
            {**OURS, "eval_run": {**OWN, "imported": {"local_run_id": "a"}}},
            "CONFLICT",
            "was imported",
        ),
        ({"eval_run": OWN}, "VALIDATION", "does not say how the run 'amber-otter-42' was configured"),
        ({**HOSTED, "config": {}}, "VALIDATION", "experiment_config.model_path"),
        ({**HOSTED, "entrypoint": "/etc/passwd"}, "VALIDATION", "experiment_config.entrypoint"),
        ({**OURS, "resolved_secret_scopes": {"GIVEN": "run"}}, "INTERACTIVE_REQUIRED", "GIVEN"),
        (HOSTED, "NOT_FOUND", "the dataset 'maze-walks' of this run is not there any more"),
    ],
)
def test_what_cannot_be_submitted_again_is_said(
    detail: dict[str, Any], code: str, said: str, maze: Maze
) -> None:
    there(maze, detail)
    maze.post("/eval-runs/check").respond(404)
    maze.get("/datasets/maze-walks").respond(404, json={"error": "there is none"})
    route = maze.post("/eval-runs")
    error = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").error
    assert error["code"] == code and said in error["message"]
    assert not route.called


def test_what_the_platform_has_against_it_and_a_lost_answer_are_said(maze: Maze) -> None:
    there(maze, OURS)
    refusal = {"error": "there is no dataset 'maze-walks'", "code": "DATASET_NOT_FOUND", "dry_run": True}
    maze.post("/eval-runs/check").respond(404, json=refusal)
    error = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").error
    assert error["code"] == "NOT_FOUND" and "there is no dataset 'maze-walks'" in error["message"]
    maze.post("/eval-runs/check").respond(json=VERDICT)
    maze.post("/eval-runs").mock(side_effect=httpx.ReadTimeout("late"))
    error = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").error
    assert "the run may exist all the same" in error["hint"]
    maze.get("/eval-runs/gone").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "resubmit", "gone", "--yes", "--json").error["code"] == "NOT_FOUND"

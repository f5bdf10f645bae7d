"""`delete`, `resubmit` and `retry` against replies written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import CONFIG, DETAIL, ESTIMATES, METRICS, OWN, run
from tests.cli.maze import Maze, sent
from tests.cli.train_replies import DETAIL as TRAINING
from tests.cli.train_replies import offer

DELETION = {"X-Osmosis-Capabilities": "deletion"}
DATASET: dict[str, Any] = {"id": "ds_31", "file_name": "maze walks", "row_count": 1200, "file_size": 1536}
NAMED = {
    ("dataset", "maze walks"): ("/datasets/ds_31", "ds_31", 'dataset "maze walks"'),
    ("eval", "amber-otter-42"): (f"/eval-runs/{OWN['id']}", OWN["id"], 'evaluation run "amber-otter-42"'),
}


def offer_deletion(maze: Maze, headers: dict[str, str] = DELETION, status: str = "finished") -> None:
    """Let the platform have a dataset and a run."""
    maze.get("/datasets/maze%20walks").respond(json=DATASET, headers=headers)
    maze.get("/eval-runs/amber-otter-42").respond(json=run(status), headers=headers)


@pytest.mark.parametrize(("group", "name"), NAMED)
def test_deleting_asks_first_and_the_answer_is_no_where_nobody_can_be_asked(
    group: str, name: str, maze: Maze
) -> None:
    offer_deletion(maze)
    path, id, what = NAMED[group, name]
    route = maze.delete(path).respond(json={})
    refused = maze.osmosis(group, "delete", name, "--json")
    assert (refused.status, refused.error["code"]) == (1, "INTERACTIVE_REQUIRED")
    assert refused.error["details"]["prompt"] == f"Delete {what}? This cannot be undone."
    assert not route.called
    done = maze.osmosis(group, "delete", name, "--yes", "--json")
    assert (done.status, done.json["resource"]) == (0, {"id": id, "name": name, **maze.resource})
    assert route.call_count == 1 and route.calls[0].request.content == b""


def test_a_training_run_goes_with_its_adapters_which_are_counted_before(maze: Maze) -> None:
    offer(maze, "finished")
    maze.get("/training-runs/copper").respond(
        json={"training_run": {"id": "tr_8", "name": "copper", "status": "crashed"}}, headers=DELETION
    )
    maze.get("/training-runs/tr_8/checkpoints").respond(json={"checkpoints": [{"id": "a"}, {"id": "b"}]})
    route = maze.delete("/training-runs/tr_8").respond(204)
    details = maze.osmosis("train", "delete", "copper", "--json").error["details"]
    assert details["prompt"].startswith('Delete training run "copper" with the 2 adapters that it has made?')
    assert details["summary"] == {"Run": "copper", "Status": "crashed", "Adapters": "2"}
    assert maze.osmosis("train", "delete", "copper", "--yes", "--json").json["operation"] == "train.delete"
    assert route.called


def test_a_run_that_goes_on_is_to_be_stopped_first_and_nobody_is_asked(maze: Maze) -> None:
    offer_deletion(maze, status="running")
    error = maze.osmosis("eval", "delete", "amber-otter-42", "--json").error
    assert error["code"] == "CONFLICT" and "only a run that has ended can be deleted" in error["message"]
    assert "osmosis eval stop amber-otter-42" in error["hint"]


@pytest.mark.parametrize("headers", [{}, {"X-Osmosis-Capabilities": "quickstart"}])
@pytest.mark.parametrize(("group", "name"), NAMED)
def test_a_platform_that_deletes_nothing_is_told_in_a_sentence(
    group: str, name: str, headers: dict[str, str], maze: Maze
) -> None:
    offer_deletion(maze, headers)
    error = maze.osmosis(group, "delete", name, "--yes", "--json").error
    assert "does not support deleting datasets and runs" in error["message"]


def test_what_the_platform_refuses_is_said_as_it_says_it_and_a_lost_answer_leaves_doubt(maze: Maze) -> None:
    offer_deletion(maze)
    route = maze.delete("/datasets/ds_31").respond(
        409, json={"error": "the run 'x' uses it", "code": "CONFLICT"}
    )
    error = maze.osmosis("dataset", "delete", "maze walks", "--yes", "--json").error
    assert error["code"] == "CONFLICT" and "the run 'x' uses it" in error["message"]
    route.mock(side_effect=httpx.ReadTimeout("late"))
    error = maze.osmosis("dataset", "delete", "maze walks", "--yes", "--json").error
    assert "it may be deleted all the same: look with `osmosis dataset list`" in error["hint"]
    for word in ("dataset", "eval", "train"):
        maze.get("/datasets/gone").respond(404, json={"error": "there is none"})
        maze.get("/eval-runs/gone").respond(404, json={"error": "there is none"})
        maze.get("/training-runs/gone").respond(404, json={"error": "there is none"})
        assert maze.osmosis(word, "delete", "gone", "--yes", "--json").error["code"] == "NOT_FOUND"


NEW = "5ca1ab1e5ca1ab1e5ca1"
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


def offer_run(maze: Maze, detail: dict[str, Any]) -> None:
    maze.get("/eval-runs/amber").respond(json=detail)
    maze.get("/environment-secrets").respond(json=SECRETS)


def test_our_platform_gets_what_was_submitted_word_for_word_and_says_what_changed(maze: Maze) -> None:
    offer_run(maze, OURS)
    maze.post("/eval-runs/check").respond(json=VERDICT)
    route = maze.post("/eval-runs").respond(json=SUBMITTED)
    error = maze.osmosis("eval", "resubmit", "amber", "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED" and not route.called
    done = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").json
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


@pytest.mark.parametrize(
    ("updated", "changed"), [("2026-10-01T00:00:00Z", False), ("2026-10-03T00:00:00Z", True), (None, None)]
)
def test_of_any_other_platform_the_config_is_what_its_detail_says(
    updated: str | None, changed: bool | None, maze: Maze
) -> None:
    offer_run(maze, HOSTED)
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
    assert "a pinned commit and [advanced] are omitted" in outcome.err
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
        ({**OURS, "eval_run": {**OWN, "imported": {"local_run_id": "a"}}}, "CONFLICT", "was imported"),
        ({"eval_run": OWN}, "VALIDATION", "does not say how the run 'amber-otter-42' was configured"),
        ({**HOSTED, "config": {}}, "VALIDATION", "experiment_config.model_path"),
        ({**HOSTED, "entrypoint": "/etc/passwd"}, "VALIDATION", "experiment_config.entrypoint"),
        ({**OURS, "resolved_secret_scopes": {"GIVEN": "run"}}, "INTERACTIVE_REQUIRED", "GIVEN"),
        (HOSTED, "NOT_FOUND", "the dataset 'maze-walks' of this run no longer exists"),
    ],
)
def test_what_cannot_be_submitted_again_is_said(
    detail: dict[str, Any], code: str, said: str, maze: Maze
) -> None:
    offer_run(maze, detail)
    maze.post("/eval-runs/check").respond(404)
    maze.get("/datasets/maze-walks").respond(404, json={"error": "there is none"})
    route = maze.post("/eval-runs")
    error = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").error
    assert error["code"] == code and said in error["message"]
    assert not route.called


def test_what_the_platform_has_against_it_and_a_lost_answer_are_said(maze: Maze) -> None:
    offer_run(maze, OURS)
    refusal = {"error": "there is no dataset 'maze-walks'", "code": "DATASET_NOT_FOUND", "dry_run": True}
    maze.post("/eval-runs/check").respond(404, json=refusal)
    error = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").error
    assert error["code"] == "NOT_FOUND" and "there is no dataset 'maze-walks'" in error["message"]
    maze.post("/eval-runs/check").respond(json=VERDICT)
    maze.post("/eval-runs").mock(side_effect=httpx.ReadTimeout("late"))
    error = maze.osmosis("eval", "resubmit", "amber", "--yes", "--json").error
    assert "the request may have succeeded" in error["hint"]
    maze.get("/eval-runs/gone").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "resubmit", "gone", "--yes", "--json").error["code"] == "NOT_FOUND"


RETRIES = {"X-Osmosis-Capabilities": "eval-retries"}
REOPENED = {**OWN, "status": "pending"}
CHECK: dict[str, Any] = {
    "eval_run": {"id": "er_8", "name": "amber-otter-42"},
    "samples": 5,
    "planned": 10,
    "failed": {"provider": 2, "agent": 1},
    "no_reward": 1,
    "missing": 1,
    "commit_sha": "4be1c0ffee4be1c0ffee",
    "resolved_secret_scopes": {"SEARCH_KEY": "run"},
}


def offer_retry(maze: Maze, headers: dict[str, str] = RETRIES) -> None:
    maze.get("/eval-runs/amber").respond(json=run("finished"), headers=headers)


def test_a_retry_says_what_it_makes_again_and_asks(maze: Maze) -> None:
    offer_retry(maze)
    asked = maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    route = maze.post("/eval-runs/er_8/retry").respond(json=REOPENED)
    error = maze.osmosis("eval", "retry", "amber", "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED" and not route.called
    done = maze.osmosis("eval", "retry", "amber", "--yes", "--json").json
    assert done["message"] == "Evaluation run reopened: amber-otter-42, 5 attempts will run again"
    resource = done["resource"]
    assert (resource["id"], resource["samples"], resource["planned"]) == ("er_8", 5, 10)
    assert sent(route) == sent(asked) == {}


def test_a_watched_retry_follows_the_run_itself(maze: Maze) -> None:
    offer_retry(maze)
    maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    maze.post("/eval-runs/er_8/retry").respond(json=REOPENED)
    maze.get("/eval-runs/er_8").respond(json=run("finished", **RETRIED))
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    done = maze.osmosis("eval", "retry", "amber", "--yes", "--watch", "--json").json
    assert done["message"] == "Evaluation run finished: amber-otter-42"
    assert (done["resource"]["status"], done["resource"]["samples"]) == ("finished", 5)


def test_a_run_that_is_open_is_not_retried(maze: Maze) -> None:
    offer_retry(maze)
    refusal = {"error": "the run 'amber-otter-42' is pending", "code": "CONFLICT"}
    maze.post("/eval-runs/er_8/retry/check").respond(409, json=refusal)
    error = maze.osmosis("eval", "retry", "amber", "--yes", "--json").error
    assert error["code"] == "CONFLICT" and "the run 'amber-otter-42' is pending" in error["message"]


def test_values_of_secrets_travel_with_the_retry_and_with_nothing_else(maze: Maze, tmp_path: Path) -> None:
    offer_retry(maze)
    asked = maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    route = maze.post("/eval-runs/er_8/retry").respond(json=REOPENED)
    secrets = tmp_path / "secrets.env"
    secrets.write_text("SEARCH_KEY=sk-canary-search\nUNUSED=sk-canary-unused\n")
    done = maze.osmosis("eval", "retry", "amber", "--secrets-file", str(secrets), "--yes", "--json")
    assert done.status == 0 and "sk-canary" not in done.out + done.err
    assert sent(route) == {"secrets": {"provided": {"SEARCH_KEY": "sk-canary-search"}}}
    assert "sk-canary" not in str(sent(asked))


def test_a_retry_may_have_a_budget_of_its_own(maze: Maze) -> None:
    offer_retry(maze)
    asked = maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    route = maze.post("/eval-runs/er_8/retry").respond(json=REOPENED)
    limits = ("--max-cost", "2.5", "--max-tokens", "9000")
    assert maze.osmosis("eval", "retry", "amber", *limits, "--yes", "--json").status == 0
    assert sent(route) == sent(asked) == {"max_cost": 2.5, "max_tokens": 9000}
    wrong = maze.osmosis("eval", "retry", "amber", "--max-cost", "0", "--yes", "--json")
    assert (wrong.status, wrong.error["message"]) == (2, "'--max-cost' must be a positive number, not 0.0.")


def test_a_platform_without_retries_says_so_and_a_lost_answer_leaves_doubt(maze: Maze) -> None:
    offer_retry(maze, headers={})
    error = maze.osmosis("eval", "retry", "amber", "--yes", "--json").error
    assert "does not support retrying evaluations" in error["message"]
    maze.get("/eval-runs/gone").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "retry", "gone", "--yes", "--json").error["code"] == "NOT_FOUND"
    maze.get("/eval-runs/amber").respond(json=run("finished"), headers=RETRIES)
    maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    maze.post("/eval-runs/er_8/retry").mock(side_effect=httpx.ReadTimeout("late"))
    error = maze.osmosis("eval", "retry", "amber", "--yes", "--json").error
    assert "the request may have succeeded: check with `osmosis eval info amber-otter-42`" in error["hint"]


RETRIED = {"revision": 2, "retried_at": "2026-10-03T09:00:00.000Z"}


def test_the_revision_of_a_retried_run_is_shown_by_info_list_and_gate(maze: Maze) -> None:
    detail = run("finished", **RETRIED)
    maze.get("/eval-runs/amber").respond(json=detail)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    assert "Retried: 2 times, last 2026-10-03" in maze.osmosis("eval", "info", "amber", "--plain").out
    own = maze.osmosis("eval", "info", "amber", "--json").json["data"]["eval_run"]
    assert {key: own[key] for key in RETRIED} == RETRIED
    maze.get("/eval-runs").respond(json={"eval_runs": [{**detail["eval_run"], "results": None}]})
    (listed,) = maze.osmosis("eval", "list", "--json").json["items"]
    assert {key: listed[key] for key in RETRIED} == RETRIED
    judged = maze.osmosis("eval", "gate", "amber", "--max", "unscored=0.9", "--json").json
    assert judged["resource"]["run"]["revision"] == 2
    assert judged["message"].startswith("pass: amber-otter-42 (revision 2) meets every rule")


def test_a_gate_of_a_reopened_run_is_unclear_until_it_has_ended(maze: Maze) -> None:
    maze.get("/eval-runs/amber").respond(json=run("pending", **RETRIED))
    outcome = maze.osmosis("eval", "gate", "amber", "--max", "unscored=0.9", "--json")
    assert outcome.status == 3
    assert "the run is pending, not finished" in outcome.json["resource"]["rules"][0]["reason"]

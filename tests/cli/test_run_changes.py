"""`delete`, `resubmit` and `retry` of datasets and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from tests.cli.eval_replies import CONFIG, DETAIL, ESTIMATES, EXECUTION, METRICS, OWN, run
from tests.cli.maze import Maze, sent
from tests.cli.outcome import Outcome
from tests.cli.train_replies import DETAIL as TRAINING

NOT_FOUND = {"error": "there is none"}
LOST = httpx.ReadTimeout("late")

DELETION = {"X-Osmosis-Capabilities": "something-newer,deletion , eval-imports"}
DATASET: dict[str, Any] = {"id": "ds_31", "file_name": "maze walks", "row_count": 1200, "file_size": 1536}
DELETABLE = {
    ("dataset", "maze walks"): ("/datasets/ds_31", "dataset 'maze walks'"),
    ("eval", "amber-otter-42"): ("/eval-runs/er_8", 'evaluation run "amber-otter-42"'),
}


def offer_deletion(maze: Maze, headers: dict[str, str] = DELETION, status: str = "finished") -> None:
    """Let the platform have a dataset and a run."""
    maze.get("/datasets/maze%20walks").respond(json=DATASET, headers=headers)
    maze.get("/eval-runs/amber-otter-42").respond(json=run(status), headers=headers)


def delete(maze: Maze, group: str, name: str, *options: str) -> Outcome:
    return maze.osmosis(group, "delete", name, "--json", *options)


@pytest.mark.parametrize(("group", "name"), DELETABLE)
def test_delete_asks_first(group: str, name: str, maze: Maze) -> None:
    offer_deletion(maze)
    path, what = DELETABLE[group, name]
    route = maze.delete(path).respond(json={})
    error = delete(maze, group, name).error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["prompt"] == f"Delete {what}? This cannot be undone."
    assert not route.called
    done = delete(maze, group, name, "--yes")
    assert (done.status, done.resource) == (0, {"id": path.split("/")[-1], "name": name, **maze.resource})
    assert route.call_count == 1 and route.calls[0].request.content == b""


def test_delete_training_run(maze: Maze) -> None:
    crashed = {"training_run": {"id": "tr_8", "name": "copper", "status": "crashed"}}
    maze.get("/training-runs/copper").respond(json=crashed, headers=DELETION)
    maze.get("/training-runs/tr_8/checkpoints").respond(json={"checkpoints": [{"id": "a"}, {"id": "b"}]})
    route = maze.delete("/training-runs/tr_8").respond(204)
    details = delete(maze, "train", "copper").error["details"]
    assert details["prompt"].startswith('Delete training run "copper" with its 2 adapters?')
    assert details["summary"] == {"Run": "copper", "Status": "crashed", "Adapters": "2"}
    assert delete(maze, "train", "copper", "--yes").json["operation"] == "train.delete"
    assert route.called


def test_delete_running_run(maze: Maze) -> None:
    offer_deletion(maze, status="running")
    error = delete(maze, "eval", "amber-otter-42").error
    assert error["code"] == "CONFLICT" and "only a run that has ended can be deleted" in error["message"]
    assert "osmosis eval stop amber-otter-42" in error["hint"]


@pytest.mark.parametrize("headers", [{}, {"X-Osmosis-Capabilities": "quickstart"}], ids=["hosted", "other"])
@pytest.mark.parametrize(("group", "name"), DELETABLE)
def test_delete_unsupported(group: str, name: str, headers: dict[str, str], maze: Maze) -> None:
    offer_deletion(maze, headers)
    error = delete(maze, group, name, "--yes").error
    assert "does not support deleting datasets and runs" in error["message"]


def test_delete_refused_or_lost(maze: Maze) -> None:
    offer_deletion(maze)
    refusal = {"error": "the run 'x' uses it", "code": "CONFLICT"}
    route = maze.delete("/datasets/ds_31").respond(409, json=refusal)
    error = delete(maze, "dataset", "maze walks", "--yes").error
    assert error["code"] == "CONFLICT" and "the run 'x' uses it" in error["message"]
    route.mock(side_effect=LOST)
    error = delete(maze, "dataset", "maze walks", "--yes").error
    assert "check whether it is deleted with: osmosis dataset list" in error["hint"]


NEW = "5ca1ab1e5ca1ab1e5ca1"
SUBMITTED = {"id": "er_9", "name": "copper-finch", "status": "pending", "created_at": "2026-10-02T08:00:00Z"}
EXPERIMENT = {
    "rollout": "maze",
    "entrypoint": "main.py",
    "model_path": "osmosis/tiny",
    "dataset": "maze-walks",
}
OURS: dict[str, Any] = {
    **DETAIL,
    "resolved_secret_scopes": {"SEARCH_KEY": "user"},
    "request": {
        "experiment_config": {**EXPERIMENT, "branch": "main"},
        "evaluation_config": {"n": 2},
        "advanced_config": {"engine": {"x": 1}, "execution": {"pool": "gpu"}},
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
# The hosted service reports none of what only our platform reports.
HOSTED: dict[str, Any] = {**DETAIL, "resolved_secret_scopes": None, "branch": "main"}


def resubmittable(maze: Maze, detail: dict[str, Any], kind: str = "eval-runs") -> respx.Route:
    """Let the platform have a run; return the route that submits."""
    maze.get(f"/{kind}/amber").respond(json=detail)
    secrets = [{"id": "s", "name": "SEARCH_KEY", "scope": "workspace"}]
    maze.get("/environment-secrets").respond(json={"environment_secrets": secrets})
    maze.post(f"/{kind}/check").respond(404, html="<h1>404</h1>")
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31"})
    return maze.post(f"/{kind}").respond(json=SUBMITTED)


def resubmit(maze: Maze, *options: str, group: str = "eval") -> Outcome:
    return maze.osmosis(group, "resubmit", "amber", "--json", *options)


def test_resubmit_on_osmosis_platform(maze: Maze) -> None:
    route = resubmittable(maze, OURS)
    maze.post("/eval-runs/check").respond(json=VERDICT)
    assert resubmit(maze).error["code"] == "INTERACTIVE_REQUIRED" and not route.called
    resource = resubmit(maze, "--yes").resource
    assert resource["name"] == "copper-finch"
    assert resource["resubmit_of"] == {"id": "er_8", "name": OWN["name"]}
    assert {change["what"]: change["changed"] for change in resource["changes"]} == {
        "commit": True,
        "dataset": False,
        "model": False,
        "pool": False,
        "secret SEARCH_KEY": True,
        "platform version": True,
    }
    assert sent(route) == OURS["request"]


@pytest.mark.parametrize(
    ("updated", "changed"), [("2026-10-01T00:00:00Z", False), ("2026-10-03T00:00:00Z", True), (None, None)]
)
def test_resubmit_on_hosted_service(updated: str | None, changed: bool | None, maze: Maze) -> None:
    route = resubmittable(maze, HOSTED)
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31", "updated_at": updated})
    outcome = resubmit(maze, "--yes")
    assert outcome.status == 0, outcome.err
    assert sent(route) == {
        "experiment_config": {**EXPERIMENT, "branch": "main"},
        "evaluation_config": {"limit": CONFIG["limit"], "n": CONFIG["n"]},
        "env_config": {"LOG_LEVEL": "INFO"},
    }
    assert "a pinned commit and [advanced] are omitted" in outcome.err
    changes = {change["what"]: change["changed"] for change in outcome.resource["changes"]}
    assert changes == {"commit": None, "dataset": changed, "model": False, "platform version": None}


def test_resubmit_training_run(maze: Maze) -> None:
    config = {"training": {"lr": 1e-6, "seed": None}, "sampling": {}, "other": 3}
    detail = {**TRAINING, "config": config, "resolved_secret_scopes": {"SEARCH_KEY": "workspace"}}
    route = resubmittable(maze, detail, "training-runs")
    outcome = resubmit(maze, "--yes", group="train")
    assert (outcome.status, outcome.json["operation"]) == (0, "train.resubmit"), outcome.err
    body = sent(route)
    assert body["training_config"] == {"lr": 1e-6} and "other_config" not in body
    assert body["secrets"] == {"required": ["SEARCH_KEY"]}


@pytest.mark.parametrize(
    ("detail", "code", "message"),
    [
        ({**OURS, "eval_run": {**OWN, "imported": {"local_run_id": "a"}}}, "CONFLICT", "was imported"),
        ({"eval_run": OWN}, "VALIDATION", "does not report how the run 'amber-otter-42' was configured"),
        ({**HOSTED, "config": {}}, "VALIDATION", "experiment_config.model_path"),
        ({**HOSTED, "entrypoint": "/etc/passwd"}, "VALIDATION", "experiment_config.entrypoint"),
        ({**OURS, "resolved_secret_scopes": {"GIVEN": "run"}}, "INTERACTIVE_REQUIRED", "GIVEN"),
        (HOSTED, "NOT_FOUND", "Dataset 'maze-walks' of this run no longer exists"),
    ],
)
def test_resubmit_invalid(detail: dict[str, Any], code: str, message: str, maze: Maze) -> None:
    route = resubmittable(maze, detail)
    maze.get("/datasets/maze-walks").respond(404, json=NOT_FOUND)
    error = resubmit(maze, "--yes").error
    assert error["code"] == code and message in error["message"]
    assert not route.called


def test_resubmit_refused_or_lost(maze: Maze) -> None:
    route = resubmittable(maze, OURS)
    refusal = {"error": "there is no dataset 'maze-walks'", "code": "DATASET_NOT_FOUND", "dry_run": True}
    maze.post("/eval-runs/check").respond(404, json=refusal)
    error = resubmit(maze, "--yes").error
    assert error["code"] == "NOT_FOUND" and "there is no dataset 'maze-walks'" in error["message"]
    maze.post("/eval-runs/check").respond(json=VERDICT)
    route.mock(side_effect=LOST)
    assert "the request may have succeeded" in resubmit(maze, "--yes").error["hint"]


RETRIES = {"X-Osmosis-Capabilities": "eval-retries"}
RETRIED = {"revision": 2, "retried_at": "2026-10-03T09:00:00.000Z"}
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


def retriable(maze: Maze) -> tuple[respx.Route, respx.Route]:
    """Let the platform have a run that can be retried; return the routes that check and retry."""
    detail = {**run("finished"), "request": {"advanced_config": {"execution": EXECUTION}}}
    maze.get("/eval-runs/amber").respond(json=detail, headers=RETRIES)
    return (
        maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK),
        maze.post("/eval-runs/er_8/retry").respond(json=REOPENED),
    )


def retry(maze: Maze, *options: str) -> Outcome:
    return maze.osmosis("eval", "retry", "amber", "--json", *options)


def test_retry(maze: Maze) -> None:
    check, route = retriable(maze)
    assert retry(maze).error["code"] == "INTERACTIVE_REQUIRED" and not route.called
    # A budget of the retry replaces the whole budget of the run.
    asked = retry(maze, "--max-tokens", "9000").error["details"]["summary"]
    assert asked["Budget"] == "9,000 tokens for this retry; earlier use does not count"
    done = retry(maze, "--yes")
    assert done.json["message"] == "Evaluation run reopened: amber-otter-42, 5 attempts will run again"
    assert (done.resource["id"], done.resource["samples"], done.resource["planned"]) == ("er_8", 5, 10)
    assert sent(route) == sent(check) == {}


def test_retry_options(maze: Maze, tmp_path: Path) -> None:
    check, route = retriable(maze)
    secrets = tmp_path / "secrets.env"
    secrets.write_text("SEARCH_KEY=sk-canary-search\nUNUSED=sk-canary-unused\n")
    done = retry(maze, "--secrets-file", str(secrets), "--yes")
    assert done.status == 0 and "sk-canary" not in done.out + done.err
    assert sent(route) == {"secrets": {"provided": {"SEARCH_KEY": "sk-canary-search"}}}
    assert "sk-canary" not in str(sent(check))

    assert retry(maze, "--max-cost", "2.5", "--max-tokens", "9000", "--yes").status == 0
    assert sent(route) == sent(check) == {"max_cost": 2.5, "max_tokens": 9000}
    wrong = retry(maze, "--max-cost", "0", "--yes")
    assert (wrong.status, wrong.error["message"]) == (2, "'--max-cost' must be a positive number, not 0.0.")


def test_retry_refused_or_lost(maze: Maze) -> None:
    check, route = retriable(maze)
    check.respond(409, json={"error": "the run 'amber-otter-42' is pending", "code": "CONFLICT"})
    error = retry(maze, "--yes").error
    assert error["code"] == "CONFLICT" and "the run 'amber-otter-42' is pending" in error["message"]
    check.respond(json=CHECK)
    route.mock(side_effect=LOST)
    hint = "the request may have succeeded: check with `osmosis eval info amber-otter-42`"
    assert hint in retry(maze, "--yes").error["hint"]
    maze.get("/eval-runs/amber").respond(json=run("finished"))
    assert "does not support retrying evaluations" in retry(maze, "--yes").error["message"]


def test_revision_is_shown(maze: Maze) -> None:
    detail = run("finished", **RETRIED)
    maze.get("/eval-runs/amber").respond(json=detail)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    assert "Retried: 2 times, last 2026-10-03" in maze.osmosis("eval", "info", "amber", "--plain").out
    own = maze.osmosis("eval", "info", "amber", "--json").data["eval_run"]
    maze.get("/eval-runs").respond(json={"eval_runs": [{**detail["eval_run"], "results": None}]})
    (listed,) = maze.osmosis("eval", "list", "--json").json["items"]
    for shown in (own, listed):
        assert {key: shown[key] for key in RETRIED} == RETRIED
    gate = ("eval", "gate", "amber", "--max", "unscored=0.9", "--json")
    judged = maze.osmosis(*gate)
    assert judged.resource["run"]["revision"] == 2
    assert judged.json["message"].startswith("pass: amber-otter-42 (revision 2) meets every rule")

    maze.get("/eval-runs/amber").respond(json=run("pending", **RETRIED))
    assert "Progress: Waiting to be retried" in maze.osmosis("eval", "info", "amber", "--plain").out
    reopened = maze.osmosis(*gate)
    assert reopened.status == 3
    assert "the run is pending, not finished" in reopened.resource["rules"][0]["reason"]


@pytest.mark.parametrize("command", ["stop", "delete", "download", "retry", "resubmit"])
def test_platform_prefix_of_a_name(maze: Maze, command: str) -> None:
    asked = maze.router.route(path__regex=r".*/eval-runs/amber(/stop)?$").respond(404, json={"error": "gone"})
    outcome = maze.osmosis("eval", command, "platform:amber", "--yes", "--json")
    assert outcome.status == 1 and asked.called

"""`osmosis eval retry`, and what `info`, `list` and `gate` say of retries, against replies written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import ESTIMATE, ESTIMATES, METRICS, ROW, run
from tests.cli.maze import Maze, sent

OURS = {"X-Osmosis-Capabilities": "eval-retries"}
ORIGINAL = {"id": "er_8", "name": "amber-otter-42", "status": "finished"}
RETRY = {"id": "er_9", "name": "copper-finch", "status": "finished"}
SUBMITTED = {"id": "er_9", "name": "copper-finch", "status": "pending", "created_at": "2026-10-02T08:00:00Z"}
CHECK: dict[str, Any] = {
    "eval_run": ORIGINAL,
    "samples": 5,
    "planned": 10,
    "failed": {"provider": 2, "agent": 1},
    "no_reward": 1,
    "missing": 1,
    "commit_sha": "4be1c0ffee4be1c0ffee",
    "resolved_secret_scopes": {"SEARCH_KEY": "run"},
}
COUNTS = {**ESTIMATES["counts"], "scored": 9, "unscored": {}, "failed_by_boundary": {}}
MERGED: dict[str, Any] = {
    "runs": [{**ORIGINAL, "samples": 5}, {**RETRY, "samples": 5}],
    "estimates": {
        **ESTIMATES,
        "counts": COUNTS,
        "pass_rate": {**ESTIMATE, "value": 0.7, "low": 0.4, "high": 0.9},
        "warnings": ["5 of 10 samples are of retries"],
    },
    "rows_drawn": {"rows": 5, "total": 50, "kind": "first", "fraction": None, "seed": None},
}


def there(maze: Maze, headers: dict[str, str] = OURS) -> None:
    maze.get("/eval-runs/amber").respond(json=run("finished"), headers=headers)


def test_a_retry_says_what_it_makes_again_and_asks(maze: Maze) -> None:
    there(maze)
    asked = maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    route = maze.post("/eval-runs/er_8/retry").respond(json=SUBMITTED)
    error = maze.osmosis("eval", "retry", "amber", "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED" and not route.called
    assert error["details"]["prompt"] == 'Retry 5 of 10 samples of evaluation run "amber-otter-42"?'
    assert error["details"]["summary"] == {
        "Run": "amber-otter-42",
        "Samples": "5 of 10: failed 3: 2 provider, 1 agent; 1 without a reward; 1 never made",
        "Commit": "4be1c0ffee4b",
        "Secrets": "SEARCH_KEY (run)",
    }
    done = maze.osmosis("eval", "retry", "amber", "--yes", "--json").json
    assert (done["operation"], done["status"]) == ("eval.retry", "success")
    assert done["resource"] == {
        **SUBMITTED,
        "created_at": "2026-10-02T08:00:00.000Z",
        "retry_of": {"id": "er_8", "name": "amber-otter-42"},
        "samples": 5,
        "planned": 10,
        **maze.resource,
    }
    assert sent(route) == sent(asked) == {}
    plain = maze.osmosis("eval", "retry", "amber", "--yes", "--plain")
    assert plain.out.splitlines()[0] == "Evaluation run submitted: copper-finch, a retry of amber-otter-42"
    assert "5 of 10: failed 3: 2 provider" in maze.osmosis("eval", "retry", "amber", "-y").err


def test_values_of_secrets_travel_with_the_retry_and_with_nothing_else(maze: Maze, tmp_path: Path) -> None:
    there(maze)
    asked = maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    route = maze.post("/eval-runs/er_8/retry").respond(json=SUBMITTED)
    secrets = tmp_path / "secrets.env"
    secrets.write_text("SEARCH_KEY=sk-canary-search\nUNUSED=sk-canary-unused\n")
    done = maze.osmosis("eval", "retry", "amber", "--secrets-file", str(secrets), "--yes", "--json")
    assert done.status == 0 and "sk-canary" not in done.out + done.err
    assert sent(route) == {"secrets": {"provided": {"SEARCH_KEY": "sk-canary-search"}}}
    assert "sk-canary" not in str(sent(asked))


@pytest.mark.parametrize(
    ("refusal", "code", "said"),
    [
        ({"error": "every sample has a score", "code": "CONFLICT"}, "CONFLICT", "every sample has a score"),
        (
            {"error": "Secret(s) not found: SEARCH_KEY", "code": "SECRETS_NOT_FOUND"},
            "NOT_FOUND",
            "osmosis secret set SEARCH_KEY",
        ),
    ],
)
def test_what_cannot_be_retried_is_said_before_anybody_is_asked(
    refusal: dict[str, Any], code: str, said: str, maze: Maze
) -> None:
    there(maze)
    status = 409 if code == "CONFLICT" else 404
    maze.post("/eval-runs/er_8/retry/check").respond(status, json=refusal)
    error = maze.osmosis("eval", "retry", "amber", "--json").error
    assert error["code"] == code and said in error["message"]


def test_a_platform_without_retries_says_so_and_a_lost_answer_leaves_doubt(maze: Maze) -> None:
    there(maze, headers={})
    error = maze.osmosis("eval", "retry", "amber", "--yes", "--json").error
    assert "does not support retrying evaluations" in error["message"]
    maze.get("/eval-runs/gone").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "retry", "gone", "--yes", "--json").error["code"] == "NOT_FOUND"
    maze.get("/eval-runs/amber").respond(json=run("finished"), headers=OURS)
    maze.post("/eval-runs/er_8/retry/check").respond(json=CHECK)
    maze.post("/eval-runs/er_8/retry").mock(side_effect=httpx.ReadTimeout("late"))
    error = maze.osmosis("eval", "retry", "amber", "--yes", "--json").error
    assert "the run may exist all the same: look with `osmosis eval list`" in error["hint"]


def described(maze: Maze, merged: dict[str, Any] | None = MERGED, **more: Any) -> None:
    """Let the platform have the run, its metrics and what it and its retry have come to."""
    maze.get("/eval-runs/amber").respond(json={**run("finished"), **more})
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    status = 200 if merged is not None else 500
    maze.get("/eval-runs/er_8/merged").respond(status, json=merged or {"error": "broken"})


def test_info_of_either_run_shows_what_both_have_come_to(maze: Maze) -> None:
    for more, line in (
        ({"retries": [RETRY]}, "Retry: copper-finch (finished)"),
        ({"retry_of": ORIGINAL}, "Retry Of: amber-otter-42"),
        ({"retry_of": {"id": "er_1", "name": "gone", "status": None}}, "Retry Of: gone (deleted)"),
    ):
        described(maze, **more)
        lines = [line.strip() for line in maze.osmosis("eval", "info", "amber", "--plain").out.splitlines()]
        assert line in lines
        assert "Together: 5 of amber-otter-42, 5 of copper-finch" in lines
        assert "Scored: 9 of 10 planned" in lines
        assert "Pass Rate: 70.0 % (40.0 – 90.0 %) (reward >= 1.0, scored samples only)" in lines
        assert "Warning: 5 of 10 samples are of retries" in lines
        data = maze.osmosis("eval", "info", "amber", "--json").json["data"]
        assert [each["samples"] for each in data["merged"]["runs"]] == [5, 5]
        headline = data["merged"]["headline"]
        assert (headline["pass_rate"], headline["scored"], headline["planned"]) == (0.7, 9, 10)
        assert headline["rows"]["rows"] == 5
    described(maze, None, retries=[RETRY])
    assert maze.osmosis("eval", "info", "amber", "--json").json["data"]["merged"] is None
    described(maze)
    assert "merged" not in maze.osmosis("eval", "info", "amber", "--json").json["data"]


def test_a_list_marks_retries(maze: Maze) -> None:
    maze.get("/eval-runs").respond(json={"eval_runs": [{**ROW, "retry_of": {"id": "er_1", "name": "first"}}]})
    assert maze.osmosis("eval", "list", "--json").json["items"][0]["retry_of"]["name"] == "first"
    assert "retry of first" in maze.osmosis("eval", "list", "--plain").out


def test_a_gate_judges_a_run_and_its_retries_together_and_says_so(maze: Maze) -> None:
    rule = ("--max", "unscored=0.3")
    described(maze, retries=[RETRY])
    judged = maze.osmosis("eval", "gate", "amber", *rule, "--json").json["resource"]
    assert (judged["run"]["scored"], judged["run"]["tried"]) == (9, 9)
    assert "5 of 10 samples are of retries" in judged["warnings"]
    running = {**MERGED, "runs": [MERGED["runs"][0], {**MERGED["runs"][1], "status": "running"}]}
    gone = {"id": "er_1", "name": "gone", "status": None}
    for merged, more, said in (
        (running, {"retry_of": ORIGINAL}, "the run copper-finch is running"),
        (None, {"retries": [RETRY]}, "could not be read"),
        (MERGED, {"retry_of": gone}, "a retry of a run that was deleted"),
    ):
        described(maze, merged, **more)
        outcome = maze.osmosis("eval", "gate", "amber", *rule, "--json")
        assert outcome.status == 3 and said in outcome.json["resource"]["rules"][0]["reason"]

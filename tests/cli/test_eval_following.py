"""`osmosis eval logs`, `stop` and `watch` of a run of the platform, against replies written by hand."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.cli.eval_replies import ESTIMATES, METRICS, RESULTS, run
from tests.cli.maze import Maze, replies, sent
from tests.cli.outcome import Outcome

# Logs


LINES = [
    {
        "timestamp": f"2026-10-02T07:00:{number:02}Z",
        "level": "info",
        "step": "run",
        "message": f"line {number}",
        "details": None,
    }
    for number in range(9)
]


def test_logs_follow(maze: Maze) -> None:
    maze.get("/eval-runs/amber").side_effect = replies(run("running"))
    maze.get("/eval-runs/er_8").side_effect = replies(
        run("running"), run("running"), run("running"), run("finished")
    )
    lines = LINES
    logs = maze.get("/eval-runs/er_8/logs")
    logs.side_effect = replies(
        {"logs": lines[1:3], "next_cursor": "c"},
        {"logs": lines[1:3], "next_cursor": "c"},
        {"logs": lines[2:5], "next_cursor": "c"},
        # More came than fits on a page: the follower goes back until it knows where it is.
        {"logs": lines[7:9], "next_cursor": "c7"},
        {"logs": lines[4:7], "next_cursor": "c4"},
    )
    outcome = maze.osmosis("eval", "logs", "amber", "--follow", "--limit", "2", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert [json.loads(text) for text in outcome.out.splitlines()] == lines[1:]
    assert logs.calls[0].request.url.params["limit"] == "2"
    assert logs.calls[-1].request.url.params["cursor"] == "c7"


def test_logs_level_and_waiting_reason(maze: Maze) -> None:
    bad, good = {**LINES[1], "level": "error"}, LINES[2]
    maze.get("/eval-runs/amber/logs").side_effect = replies(
        {"logs": [bad, good], "next_cursor": "c"}, {"logs": [good, bad], "next_cursor": None}
    )
    page = maze.osmosis("eval", "logs", "amber", "--level", "error", "--limit", "2", "--json").json
    assert (len(page["items"]), page["next_cursor"]) == (2, None)
    waiting = {**run("pending"), "waits": "no worker has asked for it."}
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").side_effect = replies(
        *[waiting] * 4, *[run("finished")] * 2
    )
    maze.get("/eval-runs/er_8/logs").respond(json={"logs": []})
    followed = maze.osmosis("eval", "logs", "amber", "--follow")
    assert followed.err.count("Run status: no worker has asked for it.") == 1


def test_stop(maze: Maze) -> None:
    route = maze.post("/eval-runs/amber%2Fotter/stop").respond(json={"id": "er_8", "status": "stopping"})
    error = maze.osmosis("eval", "stop", "amber/otter", "--json").error
    assert error["details"]["prompt"] == 'Stop evaluation run "amber/otter"?'
    assert not route.called
    envelope = maze.osmosis("eval", "stop", "amber/otter", "--yes", "--json").json
    assert envelope["status"] == "success" and sent(route) == {}

    refusal = {"error": "its worker is being replaced", "status": "running"}
    maze.post("/eval-runs/amber/stop").respond(409, json=refusal)
    error = maze.osmosis("eval", "stop", "amber", "--yes", "--json").error
    assert error["message"] == "its worker is being replaced"


def progress(completed: int, **more: Any) -> dict[str, Any]:
    return {**run("running"), "results": {**RESULTS, "total_runs": completed}, **more}


def test_watch(maze: Maze) -> None:
    maze.get("/eval-runs/amber").side_effect = replies(run("pending"), *[run("finished")] * 9)
    # The reward is that of the tables: the mean of the rows, not of the attempts.
    results = {**RESULTS, "total_runs": 5, "headline": {"reward": 0.375}}
    looks = progress(0), progress(5, results=results)
    maze.get("/eval-runs/er_8").side_effect = replies(*looks, *[run("finished")] * 2)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    assert "Waiting for the run to start" in outcome.err
    assert (
        "amber-otter-42: 5/10 attempts (50%) 4 of 8 scored attempts pass · mean reward 0.375" in outcome.err
    )
    assert outcome.out.startswith("Evaluation run finished: amber-otter-42\n")
    assert "mean over 5 rows: reward ≥ 1.0, 8 attempts scored, 1 failed\n" in outcome.out
    assert "  Rows                      first 5 of 50 rows\n" in outcome.out


def watch(maze: Maze, *looks: Any, headers: dict[str, str] | None = None) -> Outcome:
    """Watch a run, of which these are the replies, until it has finished."""
    looks = (*looks, *[run("finished")] * 2)
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").side_effect = [
        httpx.Response(200, json=look, headers=headers) if isinstance(look, dict) else look for look in looks
    ]
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    return outcome


def test_watch_prints_waiting_reason_once(maze: Maze) -> None:
    before, after = "isolation: required, and not possible.", "its worker released it; it waits for another."
    pending, waiting = {**run("pending"), "waits": before}, progress(3, waits=after)
    outcome = watch(maze, pending, pending, pending, progress(3), waiting, waiting, progress(4))
    assert outcome.err.count(f"Waiting for the run to start: {before}\n") == 1
    assert outcome.err.count(f"Run status: {after}\n") == 1


def test_watch_survives_an_outage(maze: Maze) -> None:
    away = httpx.Response(503, json={"error": "starting"})
    slower = httpx.Response(429, json={"error": "slower"})
    outages = (*[away] * 6, *[slower] * 3, httpx.ConnectError("refused"), *[away] * 2)
    outcome = watch(maze, progress(1), *outages)
    assert outcome.err.count("waiting for the platform to come back") == 1


def test_watch_ctrl_c(maze: Maze) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    maze.get("/eval-runs/amber").mock(side_effect=interrupt)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 130
    said = "The run continues. Follow it: osmosis eval watch amber; stop it: osmosis eval stop amber"
    assert said in outcome.err
    warned = maze.osmosis("eval", "watch", "amber", "--json")
    assert warned.status == 130 and json.loads(warned.err)["warning"]["message"] == said


def test_watch_web_page_instead_of_reply(maze: Maze) -> None:
    """A page is waited for only from a platform that has answered before."""
    page = httpx.Response(200, html="<h1>Sign in</h1>")
    watch(maze, progress(1), page, page)
    looks = maze.router.get(url__regex=".*/eval-runs/[^/]+$")
    looks.side_effect = [page]
    assert maze.osmosis("eval", "watch", "amber", "--json").error["code"] == "PLATFORM_ERROR"

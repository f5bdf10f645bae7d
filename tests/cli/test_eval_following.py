"""`osmosis eval logs`, `stop` and `watch` of a run of the platform, against replies written by hand."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import ESTIMATES, METRICS, RESULTS, run
from tests.cli.maze import Maze, Outcome, replies, sent

# Logs


def line(number: int) -> dict[str, Any]:
    return {
        "timestamp": f"2026-10-02T07:00:{number:02}Z",
        "level": "info",
        "step": "run",
        "message": f"line {number}",
        "details": None,
    }


def test_following_gives_every_line_once_and_ends_with_the_run(maze: Maze) -> None:
    maze.get("/eval-runs/amber").side_effect = replies(run("running"))
    maze.get("/eval-runs/er_8").side_effect = replies(
        run("running"), run("running"), run("running"), run("finished")
    )
    lines = [line(number) for number in range(9)]
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


def test_lines_of_a_level_are_gathered_up_to_the_limit_and_why_a_run_waits_is_told_once(maze: Maze) -> None:
    bad, good = {**line(1), "level": "error"}, line(2)
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
    assert followed.err.count("The run waits: no worker has asked for it.") == 1


# Stop


def test_stopping_asks_first_and_a_refusal_is_an_error(maze: Maze) -> None:
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


# Watch


def progress(completed: int, **more: Any) -> dict[str, Any]:
    return {**run("running"), "results": {**RESULTS, "total_runs": completed}, **more}


def test_watching_a_run_of_the_platform_ends_with_its_numbers(maze: Maze) -> None:
    maze.get("/eval-runs/amber").side_effect = replies(run("pending"))
    maze.get("/eval-runs/er_8").side_effect = replies(
        progress(0), progress(5), run("finished", completed_at="2026-10-02T07:02:00Z"), run("finished")
    )
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    maze.get("/eval-runs/amber").mock(side_effect=[*replies(run("pending")), *replies(run("finished")) * 9])
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    assert "Waiting for the run to start" in outcome.err
    assert "amber-otter-42: 5/10 samples (50%) 4 of 8 samples pass · reward 0.500 a sample" in outcome.err
    assert outcome.out.startswith("Evaluation run finished: amber-otter-42\n")
    assert "scored 8 of 10 planned; failed 1: 1 agent; 1 skipped; 5 of 50 rows, the first" in outcome.out


def watched(maze: Maze, looks: list[dict[str, Any]]) -> Outcome:
    """Watch a run of which these are the replies until it has finished."""
    maze.get("/eval-runs/amber").side_effect = replies(looks[0], *[run("finished")] * 3)
    maze.get("/eval-runs/er_8").side_effect = replies(*looks[1:], *[run("finished")] * 3)
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    return outcome


def test_watching_says_once_why_a_run_waits_before_it_has_begun_and_after(maze: Maze) -> None:
    before, after = (
        "isolation: required, and not possible.",
        "its worker released it; it waits for another.",
    )
    looks = [
        {**run("pending"), "waits": before},
        {**run("pending"), "waits": before},
        progress(3),
        progress(3, waits=after),
        progress(3, waits=after),
        progress(4),
    ]
    outcome = watched(maze, looks)
    assert outcome.err.count(f"Waiting for the run to start: {before}\n") == 1
    assert outcome.err.count(f"The run waits: {after}\n") == 1


def test_a_platform_that_is_away_for_a_while_is_waited_for(maze: Maze) -> None:
    away = httpx.Response(503, json={"error": "starting"})
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").side_effect = [
        *replies(progress(1)),
        *[away] * 6,
        *[httpx.Response(429, json={"error": "slower"})] * 3,
        httpx.ConnectError("refused"),
        *[away] * 2,
        *replies(run("finished"), run("finished")),
    ]
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("waiting for the platform to come back") == 1


TELLS = {"X-Osmosis-Capabilities": "run-events"}


def told(*changes: str) -> httpx.Response:
    """Return a stream of events, one for each cursor, as the platform sends them."""
    events = "".join(f'event: change\ndata: {{"cursor": "{cursor}"}}\nid: {cursor}\n\n' for cursor in changes)
    return httpx.Response(200, text=f": ping\n\n{events}", headers={"Content-Type": "text/event-stream"})


def looks_at(*bodies: dict[str, Any]) -> list[httpx.Response]:
    return [httpx.Response(200, json=body, headers=TELLS) for body in bodies]


def test_a_platform_that_tells_what_is_new_is_not_asked_every_second(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").side_effect = looks_at(
        run("pending"), progress(5), run("finished"), run("finished")
    )
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    stream = maze.get("/eval-runs/amber/events").mock(return_value=told("1", "2"))
    monkeypatch.setattr("osmosis_ai.cli.runs.view.pause", lambda: pytest.fail("it was waited by the clock"))
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    assert stream.call_count == 1
    asked = stream.calls[0].request
    assert asked.headers["accept"] == "text/event-stream"
    # Each stream begins anew: it knows no cursor that another release could have given.
    assert "last-event-id" not in asked.headers and asked.url.query == b""


@pytest.mark.parametrize(
    "stream",
    [
        httpx.Response(400, json={"message": "the cursor is none of a run's changes."}),
        httpx.Response(429, json={"message": "as many streams as a visitor may have are open."}),
        httpx.Response(404, json={"error": "there is no such route"}),
        httpx.Response(200, html="<h1>Sign in</h1>"),
        told(),
    ],
)
def test_a_stream_that_fails_is_tried_a_few_times_and_the_run_is_watched_all_the_same(
    maze: Maze, stream: httpx.Response
) -> None:
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").side_effect = looks_at(
        *[progress(number) for number in range(6)], run("finished"), run("finished")
    )
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    asked = maze.get("/eval-runs/amber/events").mock(return_value=stream)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert (outcome.status, asked.call_count) == (0, 3), outcome.err


def test_ctrl_c_stops_watching_and_says_that_the_run_goes_on(maze: Maze) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    maze.get("/eval-runs/amber").mock(side_effect=interrupt)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 130
    assert "The run continues; follow it again with: osmosis eval watch amber" in outcome.err


def test_a_page_is_waited_for_only_from_a_platform_that_has_answered_before(maze: Maze) -> None:
    page = httpx.Response(200, html="<h1>Sign in</h1>")
    looks = maze.router.get(url__regex=".*/eval-runs/[^/]+$")
    looks.side_effect = [*replies(progress(1)), page, page, *replies(run("finished"), run("finished"))]
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    assert maze.osmosis("eval", "watch", "amber", "--plain").status == 0
    looks.side_effect = [page]
    assert maze.osmosis("eval", "watch", "amber", "--json").error["code"] == "PLATFORM_ERROR"

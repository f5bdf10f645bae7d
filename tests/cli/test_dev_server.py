"""`osmosis dev server`: start, list, logs and end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.cli.eval_submits import commit, write_entrypoint
from tests.cli.maze import Maze, sent
from tests.workspace.builders import git

STREAM, SSE = "/dev-rollout-server/ds_1/logs/stream", {"Content-Type": "text/event-stream; charset=utf-8"}
REPLY = {
    "id": "ds_1",
    "url": "https://ds-1.fern.example",
    "api_key": "osm_dev_key",
    "expires_at": "2026-10-03T07:00:00Z",
    "status": "starting",
    "region": {"name": "eu"},
    "note": None,
}


@pytest.fixture
def rollout(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> Maze:
    """The maze, in the directory of a rollout that is committed."""
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")  # no `gh` of this machine is asked
    write_entrypoint(maze, "print('hello')\n")
    commit(maze)
    maze.get("/verify").respond(json={"user": {"id": "u1", "email": "mara@fern.example"}})
    maze.post("/dev-rollout-server").respond(json=REPLY)
    monkeypatch.chdir(maze.workspace.rollouts_dir / "multiply")
    monkeypatch.setattr("osmosis_ai.services.runs.submit._ask_github", lambda identity, sha: "present")
    return maze


@pytest.mark.parametrize(("options", "ttl"), [((), 24), (("--ttl-hours", "2"), 2), (("--no-ttl",), None)])
def test_up(rollout: Maze, options: tuple[str, ...], ttl: int | None) -> None:
    outcome = rollout.osmosis("dev", "server", "up", *options, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert sent(rollout.post("/dev-rollout-server")) == {
        "rollout_name": "multiply",
        "commit_sha": git(rollout.workspace.root, "rev-parse", "HEAD"),
        "repository_path": "rollouts/multiply",
        "entrypoint": "main.py",
        "ttl_hours": ttl,
    }
    assert outcome.json["operation"] == "dev.server.up"
    assert outcome.resource == {**REPLY, **rollout.resource}


def test_up_with_uncommitted_changes(rollout: Maze) -> None:
    write_entrypoint(rollout, "print('changed')\n")
    error = rollout.osmosis("dev", "server", "up", "--json").error
    assert (error["code"], rollout.post("/dev-rollout-server").called) == ("INTERACTIVE_REQUIRED", False)
    assert rollout.osmosis("dev", "server", "up", "--yes", "--json").status == 0

    git(rollout.workspace.root, "update-ref", "-d", "HEAD")
    error = rollout.osmosis("dev", "server", "up", "--yes", "--json").error
    assert error["message"] == "Repository has no commits."


def test_up_with_unpushed_commit(rollout: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.services.runs.submit._ask_github", lambda *_: "absent")
    error = rollout.osmosis("dev", "server", "up", "--json").error
    assert "not pushed" in error["message"] and error["hint"].endswith("git push origin HEAD")
    assert not rollout.post("/dev-rollout-server").called


def test_up_outside_a_rollout(rollout: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    (rollout.workspace.data_dir / "main.py").touch()
    for place in (rollout.workspace.root, rollout.workspace.data_dir):
        monkeypatch.chdir(place)
        error = rollout.osmosis("dev", "server", "up", "--json").error
        assert error["code"] == "VALIDATION" and "is not a rollout" in error["message"]
    (rollout.workspace.rollouts_dir / "multiply" / "main.py").unlink()
    monkeypatch.chdir(rollout.workspace.rollouts_dir / "multiply")
    assert rollout.osmosis("dev", "server", "up", "--json").error["code"] == "VALIDATION"


def event(number: int, **more: Any) -> str:
    line = {"timestamp": f"2026-10-02T07:04:0{number}Z", "message": f"line {number}", **more}
    return f"data: {json.dumps(line)}\n\n"


def messages(out: str) -> list[str]:
    return [json.loads(line)["message"] for line in out.splitlines()]


def cut(*events: str, error: type[httpx.TransportError] = httpx.ReadError) -> httpx.Response:
    def content() -> Iterator[bytes]:
        for text in events:
            yield text.encode()
        raise error("gone")

    return httpx.Response(200, headers=SSE, content=content())


def test_logs_follow(maze: Maze) -> None:
    noise = ": tick\r\n\r\nevent: x\ndata: no json\n\ndata: [1]\n\nid: 7\nretry: 10\n\n"
    split = 'data: {"timestamp": "2026-10-02T07:04:03Z",\ndata:  "message": {"a": 1}}\n\n'
    stream = maze.get(STREAM).respond(text=event(1) + noise + split + event(4)[:-2], headers=SSE)
    outcome = maze.osmosis("dev", "server", "logs", "ds_1", "--tail", "20")
    request = stream.calls.last.request
    assert (request.headers["Accept"], request.url.params["tail"]) == ("text/event-stream", "20")
    assert outcome.status == 0 and "line 1" in outcome.out and '{"a": 1}' in outcome.out
    assert len(outcome.out.splitlines()) == 2
    followed = maze.osmosis("dev", "server", "logs", "ds_1", "--follow", "--json")
    assert messages(followed.out) == ["line 1", '{"a": 1}'] and followed.err == ""


@pytest.mark.parametrize("error", [httpx.ReadError, httpx.ReadTimeout])
def test_logs_cut_off(maze: Maze, error: type[httpx.TransportError]) -> None:
    stream = maze.get(STREAM).mock(side_effect=[cut(event(1), error=error)])
    outcome = maze.osmosis("dev", "server", "logs", "ds_1", "-f", "--json")
    assert (outcome.status, stream.call_count) == (1, 1)
    assert messages(outcome.out) == ["line 1"]
    assert json.loads(outcome.err)["error"]["code"] == "PLATFORM_ERROR"


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (httpx.Response(404, json={"error": "No such server."}), "NOT_FOUND", "No such server."),
        (httpx.Response(200, html="<html>Sign in</html>"), "PLATFORM_ERROR", "not a stream of events"),
        (
            httpx.Response(200, headers=SSE, text="data: " + "x" * (1 << 20) + "\n\n"),
            "PLATFORM_ERROR",
            "has an endless line",
        ),
    ],
)
def test_logs_invalid_stream(maze: Maze, reply: Any, code: str, said: str) -> None:
    stream = maze.get(STREAM).mock(side_effect=[reply])
    outcome = maze.osmosis("dev", "server", "logs", "ds_1", "-f", "--json")
    assert (outcome.status, stream.call_count) == (1, 1)
    assert outcome.error["code"] == code and said in outcome.error["message"]

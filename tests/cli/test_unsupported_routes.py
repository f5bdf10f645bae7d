"""Commands about what only a self-hosted platform has, against a platform that does not have it."""

from __future__ import annotations

import pytest

from tests.cli.maze import Maze

COMMANDS = {
    "rollout server list": ("get", "/rollout-servers", "served agents"),
    "rollout server register calculator 10.1.2.3:9000": ("post", "/rollout-server/register", "served agents"),
    "rollout server probe calculator": ("post", "/rollout-servers/calculator/probe", "served agents"),
    "rollout server remove calculator --yes": ("delete", "/rollout-servers/calculator", "served agents"),
    "train resume copper": ("post", "/training-runs/copper/resume", "resuming training runs"),
    "model download keen-owl-2-step-40": (
        "get",
        "/models/keen-owl-2-step-40/download",
        "downloading models",
    ),
}


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_route_is_reported_as_unsupported(maze: Maze, command: str, status: int) -> None:
    method, path, what = COMMANDS[command]
    getattr(maze, method)(path).respond(status_code=status, html="<html>This page does not exist.</html>")
    error = maze.osmosis(*command.split(), "--json").error
    assert error["message"].startswith(f"This platform does not support {what}: https://")
    assert "osmosis platform start" in error["hint"]


def test_what_a_self_hosted_platform_does_not_find_is_reported_as_it_says(maze: Maze) -> None:
    maze.post("/training-runs/copper/resume").respond(
        404, json={"error": "no such run", "code": "NOT_FOUND"}, headers={"X-Osmosis-Capabilities": ""}
    )
    assert "no such run" in maze.osmosis("train", "resume", "copper", "--json").error["message"]


def test_a_repository_that_is_not_connected_is_no_missing_route(maze: Maze) -> None:
    maze.get("/rollout-servers").respond(404, json={"error": "no", "code": "GIT_REPOSITORY_NOT_CONNECTED"})
    error = maze.osmosis("rollout", "server", "list", "--json").error
    assert "not connected" in error["message"]

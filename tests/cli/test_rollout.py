"""`osmosis rollout`: new rollouts, and agents on remote servers, whose keys are never shown."""

from __future__ import annotations

import pytest

from tests.cli.golden_cases import HEALTHY
from tests.cli.maze import Maze, sent
from tests.cli.outcome import Outcome

REGISTER, PROBE = "/rollout-server/register", "/rollout-servers/calculator/probe"
KEY = "osm_rollout_canary-4711"
UNHEALTHY = {"id": "srv_1", "status": "unhealthy", "health_check_result": {"error": "it refuses the key"}}


def server(maze: Maze, *arguments: str) -> Outcome:
    return maze.osmosis("rollout", "server", *arguments)


def test_register(maze: Maze) -> None:
    maze.patch.setenv("OSMOSIS_ROLLOUT_SERVER_KEY", KEY)
    maze.post(REGISTER).respond(json=HEALTHY)
    outcome = server(maze, "register", "calculator", "[fd00::1]:9000")
    assert outcome.status == 0
    expected = {"host": "fd00::1", "port": 9000, "agent_loop_name": "calculator", "api_key": KEY}
    assert sent(maze.post(REGISTER)) == expected
    assert "server://calculator" in outcome.out and KEY not in outcome.out + outcome.err
    maze.post(REGISTER).respond(json=UNHEALTHY)
    unhealthy = server(maze, "register", "calculator", "10.1.2.3:9000")
    assert unhealthy.status == 0 and "it refuses the key" in unhealthy.err


@pytest.mark.parametrize(
    ("address", "message"), [("169.254.169.254:80", "is refused"), ("10.1.2.3", "is not HOST:PORT")]
)
def test_register_invalid_address(maze: Maze, address: str, message: str) -> None:
    outcome = server(maze, "register", "calculator", address)
    assert outcome.status == 1 and message in outcome.err
    assert not maze.router.calls


def test_probe_and_remove(maze: Maze) -> None:
    removal = maze.delete("/rollout-servers/calculator").respond(json={})
    assert server(maze, "remove", "calculator").status == 1 and not maze.router.calls
    assert server(maze, "remove", "calculator", "--yes").status == 0 and removal.called

    maze.post(PROBE).respond(json=HEALTHY)
    healthy = server(maze, "probe", "calculator")
    assert (healthy.status, "3 active rollouts" in healthy.out) == (0, True)
    maze.post(PROBE).respond(json=UNHEALTHY)
    unhealthy = server(maze, "probe", "calculator", "--json")
    assert unhealthy.status == 1
    assert unhealthy.resource["health_check_result"] == {"error": "it refuses the key"}


def test_list_out_of_date(maze: Maze) -> None:
    reason = "fern/maze cannot be fetched from https://git.example/maze.git: could not resolve host."
    rollout = {"id": "ro_2", "name": "maze", "is_active": True}
    maze.get("/rollouts").respond(json={"rollouts": [rollout], "total_count": 1, "sync_error": reason})
    listed = maze.osmosis("rollout", "list", "--json")
    assert listed.status == 0 and listed.json["sync_error"] == reason
    assert '"code":"GIT_SYNC_FAILED"' in listed.err


def test_init_conflict(maze: Maze) -> None:
    assert maze.osmosis("rollout", "init", "capitals").status == 0
    error = maze.osmosis("rollout", "init", "capitals", "--json").error
    assert (error["code"], len(error["details"]["conflicts"])) == ("CONFLICT", 3)
    assert maze.osmosis("rollout", "init", "capitals", "-f").status == 0

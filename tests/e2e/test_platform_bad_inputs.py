"""Bad input on a platform gets a clear error message and the right exit status, through real processes.

The origin of the checkout is a path on this machine, and the platform calls the repository ``fern/agents``.
"""

from __future__ import annotations

import json
import socket
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.platform_checkout import World, prepare_scratch, said
from tests.full_disk import NO_CACHED_CODE, limit_files

pytestmark = pytest.mark.e2e

CONFIG = "configs/eval/multiply.toml"


@pytest.fixture(scope="module")
def token(world: World) -> str:
    """A token of the administrator."""
    made: str = world.json(
        "platform", "token", "create", "--name", "tests", "--user", "admin@localhost"
    ).resource["token"]
    return made


# The repository


def test_repository_with_another_name_on_the_platform(world: World, token: str) -> None:
    listed = world.json("rollout", "list")
    assert {item["repo_full_name"] for item in json.loads(listed.out)["items"]} == {"fern/agents"}
    sent = json.loads(listed.out)["git"]["identity"]
    assert sent.startswith("local/origin-")
    for identity in (sent, "fern/agents", "Fern/Agents"):
        status, body = world.request("GET", "/api/cli/verify", token=token, **{"X-Osmosis-Git": identity})
        assert (status, body["workspace"]["name"]) == (200, "default")


def test_unconnected_origin(world: World, tmp_path: Path) -> None:
    fork = tmp_path / "fork.git"
    world.git("clone", "-q", "--bare", str(world.scratch.origin), str(fork))
    world.git("clone", "-q", str(fork), str(tmp_path / "agents"))
    error = world.json("eval", "submit", CONFIG, "--yes", cwd=tmp_path / "agents").error
    assert error["code"] == "NOT_FOUND"
    assert "is not connected to a workspace" in error["message"]
    assert f"osmosis platform connect {fork}" in error["hint"]


# Access


# The platform


def test_unreachable_platform(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the port is reserved, and no process listens on it
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        there = {"OSMOSIS_PLATFORM_URL": url, "OSMOSIS_TOKEN": "osm_t", "OSMOSIS_TOKEN_PLATFORM_URL": url}
        outcome = world.json("eval", "list", **there)
    assert outcome.error["code"] == "PLATFORM_ERROR"
    assert url in said(outcome) and "osmosis platform start" in said(outcome)


# Limits


def test_full_disk(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    scratch.push()
    with closing(World(scratch, prepare=partial(limit_files, 3_000_000), **NO_CACHED_CODE)) as world:
        assert world.osmosis("platform", "connect", str(scratch.origin)).status == 0
        large = scratch.workspace / "data" / "large.jsonl"
        row = json.dumps({"user_prompt": "a" * 1000, "ground_truth": "1"}) + "\n"
        large.write_text(row * 4000)
        refused = world.json("dataset", "upload", "data/large.jsonl", "--yes")
        assert "disk is full" in said(refused), refused.error
        assert world.osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes").status == 0
        listed = json.loads(world.json("dataset", "list").out)["items"]
        assert {item["file_name"]: item["status"] for item in listed}["multiply"] == "uploaded"

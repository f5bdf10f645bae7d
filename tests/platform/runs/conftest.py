"""A workspace that can submit runs: its repository holds the rollout ``multiply``, and its dataset is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.worker.host import Host
from tests.e2e.turnstile import Turnstile
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import Code, add_dataset, executing, put_mirror, read_commits_once, wait_until


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Code:
    read_commits_once(monkeypatch)
    return Code(tmp_path / "code")


@pytest.fixture
def turnstile(code: Code) -> Iterator[Turnstile]:
    """Where the attempts of all runs wait before they begin; all may pass at first."""
    made = Turnstile(code.path)
    code.commit("wait at a turnstile")
    yield made
    made.close()


@pytest.fixture
def rows() -> list[dict[str, Any]] | None:
    """The rows of the dataset; None is those of this repository."""
    return None


@pytest.fixture
def member(world: World, code: Code, rows: list[dict[str, Any]] | None, password: str | None) -> Member:
    """Mara, whose repository is ``code``, with the dataset ``multiply``."""
    found = world.member(password=password, clone_url=str(code.path))
    add_dataset(world, found, rows=rows)
    put_mirror(world, found)
    return found


@pytest.fixture
def host(world: World) -> Iterator[Host]:
    """A platform that executes runs: its workers are real processes of this machine."""
    with executing(world) as started:
        yield started


@pytest.fixture
def unsandboxed(world: World) -> Iterator[Host]:
    """One whose rollouts write where they like, for tests that have them tell what they see."""
    with executing(world, isolation="off") as started:
        yield started


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> ManualClock | SystemClock:
    """A clock that tests advance, or that of this machine if workers are other processes."""
    return SystemClock() if request.node.get_closest_marker("e2e") else ManualClock()


def ended(api: TestClient, route: str, name: str) -> dict[str, Any]:
    """Wait for a run to end, and return its detail."""

    def look() -> dict[str, Any] | None:
        detail: dict[str, Any] = api.get(f"{route}/{name}").json()
        run = detail.get("eval_run") or detail["training_run"]
        return detail if run["status"] in ("finished", "failed", "stopped") else None

    found: dict[str, Any] = wait_until(look)
    return found

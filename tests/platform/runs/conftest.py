"""A workspace that can submit runs: its repository holds the rollout ``multiply``, and its dataset is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.platform.local_execution import open_local_executor
from osmosis_ai.platform.runs.execute.executor_loop import ExecutorLoop
from osmosis_ai.platform.services import PlatformServices
from tests.e2e.turnstile import Turnstile
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import Code, add_dataset, put_mirror, read_commits_once
from tests.platform.runs.played_hosts import Play, player
from tests.platform.runs.pretended_workers import Bench


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
def member(
    world: World,
    code: Code,
    services: PlatformServices,
    rows: list[dict[str, Any]] | None,
    password: str | None,
) -> Member:
    """Mara, whose repository is ``code``, with the dataset ``multiply``."""
    found = world.member(password=password, clone_url=str(code.path))
    add_dataset(services, found, rows=rows)
    put_mirror(services, found)
    return found


@pytest.fixture
def executor_later(services: PlatformServices) -> Iterator[ExecutorLoop]:
    """An executor that the test starts."""
    made = open_local_executor(services)
    yield made
    made.close()


@pytest.fixture
def unsandboxed(services: PlatformServices) -> Iterator[ExecutorLoop]:
    """One whose rollouts write where they like, for tests that have them tell what they see."""
    made = open_local_executor(services, config=replace(services.config, isolation="off"))
    yield made
    made.close()


@pytest.fixture
def executor(executor_later: ExecutorLoop) -> ExecutorLoop:
    """One that is started; its workers are real processes."""
    executor_later.start()
    return executor_later


@pytest.fixture
def bench(services: PlatformServices, clock: ManualClock, member: Member) -> Bench:
    """An executor of two slots, its workers and the runs they are for."""
    return Bench(services, clock, member)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Has a machine take runs of a played platform."""
    return player(monkeypatch, tmp_path)

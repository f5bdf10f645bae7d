"""Platforms for workers: the real one on a port, and a small server that answers as a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from osmosis_ai.platform.app import create_worker_app
from osmosis_ai.platform.worker.client import WorkerClient
from tests.platform.conftest import World
from tests.platform.runs.conftest import code, member, rows
from tests.platform.worker.fake_platform import FakePlatform, Switch, serving

__all__ = ["code", "member", "rows"]


@pytest.fixture(scope="session")
def switch() -> Switch:
    return Switch()


@pytest.fixture(scope="session")
def port(switch: Switch) -> Iterator[str]:
    """The URL of the server of all tests."""
    with serving(switch) as url:
        yield url


@pytest.fixture
def platform(switch: Switch) -> FakePlatform:
    made = FakePlatform()
    switch.app = made.app
    return made


@pytest.fixture
def worker_client(port: str, platform: FakePlatform) -> Iterator[WorkerClient]:
    """A client of the fake platform."""
    made = WorkerClient(port, "token-canary")
    yield made
    made.close()


@pytest.fixture
def real(port: str, switch: Switch, world: World) -> Iterator[WorkerClient]:
    """A client of the real platform."""
    switch.app = create_worker_app(world.services)
    made = WorkerClient(port, world.services.worker_access.local_token)
    yield made
    made.close()

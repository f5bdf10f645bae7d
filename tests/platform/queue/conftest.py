"""A workspace that can submit runs, and the owner of a run's shard."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import World
from tests.platform.fake_worker import EVALS, GPU, FakeWorker
from tests.platform.runs.conftest import code, member, rows  # noqa: F401


@pytest.fixture
def worker(api: TestClient, world: World) -> FakeWorker:
    """The owner of the only shard of an evaluation in the pool ``gpu``: 60 rows, 2 attempts per row."""
    settings = {"limit": 60, "n": 2, "batch_size": 4}
    EVALS.taken(api, evaluation_config=settings, advanced_config=GPU)
    return FakeWorker.claims(world, "gpu")

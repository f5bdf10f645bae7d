"""The owner of a run, and the lines of its journal."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.platform.evaluations import ROWS
from tests.platform.runs.desk.desk_workers import DeskWorker
from tests.platform.runs.desk.submits import submitted


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in ROWS.read_bytes().splitlines()] * 3


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a run of 600 rows that was submitted just now."""
    submitted(api, evaluation_config={"limit": 600, "n": 2, "batch_size": 4})
    return DeskWorker.claims(services)

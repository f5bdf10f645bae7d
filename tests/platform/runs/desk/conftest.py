"""The owner of a run."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.platform.evaluations import ROWS
from tests.platform.runs.desk.desk_workers import DeskWorker, submitted


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in ROWS.read_bytes().splitlines()] * 3


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a run of 600 rows that was submitted just now."""
    submitted(api, evaluation_config={"limit": 600, "n": 2, "batch_size": 4})
    return DeskWorker.claims(services)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines of a journal are enough for a piece of it in the store."""
    monkeypatch.setattr("osmosis_ai.platform.runs.desk.journal_folding.FOLD_BYTES", 400)
    monkeypatch.setattr("osmosis_ai.platform.runs.desk.journal_folding._LOOKS", 1)

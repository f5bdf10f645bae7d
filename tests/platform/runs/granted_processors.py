"""How many rollout servers a run has, on a machine that is said to have so many processors."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.controller import server_process
from osmosis_ai.platform.runs.work import inputs, worker
from tests.platform.runs.played_hosts import assignment


def with_processors(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this machine grant so many processors."""
    monkeypatch.setattr(server_process.os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    monkeypatch.setattr(server_process, "granted_processors", lambda *_: [])


def servers_of_a_run(
    asks: dict[str, Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Return how many servers a run has that asks for ``asks``, of a worker with this environment."""
    found: list[int] = []

    class LookingWorker:
        def __init__(self, _channel: object, given: inputs.RunInputs, *_: object) -> None:
            request: Any = SimpleNamespace(execution=ExecutionSection.model_validate(asks))
            found.append(given.servers(request))

        def run(self) -> int:
            return 0

    monkeypatch.setattr(os, "environ", environment)
    for name in ("disable_inspection", "watch_parent", "lower_priority"):
        monkeypatch.setattr(worker, name, lambda *_: None)
    handed = {
        worker.PLATFORM_URL: "https://osmosis.fern.example",
        worker.CREDENTIAL: "osmw_canary-4711",
        worker.CLAIM_ID: "c" * 32,
    }
    monkeypatch.setattr(worker, "take_private_variables", lambda: handed)
    monkeypatch.setattr(worker, "_claimed", lambda *_: assignment("first"))
    monkeypatch.setattr(inputs.RowSelection, "read", lambda _: None)
    monkeypatch.setattr(worker, "Worker", LookingWorker)
    assert worker.main(["run_first"]) == 0
    [servers] = found
    return servers

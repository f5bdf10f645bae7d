"""What a run of the platform's own machine is granted of its processors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from osmosis_ai.platform.local_execution import LocalWorkers
from osmosis_ai.platform.runs.execute import worker_process
from osmosis_ai.platform.services import PlatformServices
from tests.platform.runs.granted_processors import servers_of_a_run, with_processors


@pytest.mark.parametrize(
    ("slots", "asks", "servers"), [(1, {}, 8), (2, {}, 7), (4, {}, 3), (100, {}, 1), (4, {"cpus": 8}, 7)]
)
def test_runs_of_the_platforms_own_machine_share_its_processors(
    slots: int,
    asks: dict[str, Any],
    servers: int,
    services: PlatformServices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_processors(16, monkeypatch)
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(worker_process, "ChildProcess", lambda _, *, env, **more: environments.append(env))
    workers = LocalWorkers(services, replace(services.config, executor_slots=slots))
    try:
        workers("first", "osmw_canary-4711", "c" * 32)
    finally:
        workers.close()
    assert servers_of_a_run(asks, environments[0], monkeypatch) == servers

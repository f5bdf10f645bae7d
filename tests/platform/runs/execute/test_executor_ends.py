"""How the executor notes that a job has ended, where the database breaks it off and where a stop is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.execute.worker_process import SET_BACK
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.worker_access import WorkerAccess
from tests.platform.conftest import ManualClock, Member
from tests.platform.runs.pretended_workers import Bench, messages


def breaks_off(real: Callable[..., Any], *, times: int) -> Callable[..., Any]:
    left = list(range(times))

    def instead(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            raise OsmosisError("the database is away.")
        return real(*args, **options)

    return instead


@pytest.mark.parametrize(
    "step", [(WorkerAccess, "withdraw"), (Leases, "release"), (LogStore, "append")], ids=lambda step: step[1]
)
def test_an_end_that_the_database_broke_off_is_noted_by_the_next_round_and_counted_once(
    bench: Bench,
    member: Member,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str],
) -> None:
    reason = "the rollout server was not ready after 90 s."
    run_id = bench.add("a", member)
    bench.executor.round()
    bench.claim(bench.started[0])
    bench.directory(run_id).note_setback(reason)
    bench.started[0].status = SET_BACK
    with monkeypatch.context() as patched:
        patched.setattr(*step, breaks_off(getattr(*step), times=3))
        for _ in range(3):
            with pytest.raises(OsmosisError, match="the database is away"):
                bench.executor.round()
        assert bench.order == ["a"]
        bench.executor.round()
    assert bench.run(run_id).lease_token is None
    assert messages(bench, run_id) == [
        "the rollout server was not ready after 90 s (no fault of the run, 1 of 3 tries; trying again in 0.5 s)"
    ]
    clock.advance(0.5)
    bench.executor.round()
    assert bench.order == ["a", "a"]

"""The numbers of a run are those of all accepted records, while it is active and after it has ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.evaluation.builders import MeasuredResults, record
from tests.platform.conftest import ManualClock, World
from tests.platform.fake_worker import EVALS, FakeWorker, downloaded, expire_leases, settle

ROWS, N = 5, 3
RECORDS = [
    record(0, 0, reward=0.5, cost_usd=0.25, prompt_tokens=5, completion_tokens=2, model_calls=2),
    record(0, 1, judge_calls=2, judge_tokens=30, judge_cost_usd=0.5, judge_outside_scale=1, duration_ms=1500),
    record(1, 0, status="failed", reward=None, error_type="AgentError", boundary="agent", lost_attempts=2),
    record(1, 1, status="skipped", reward=None),
    record(2, 0, reward=None, finish_reasons={"length": 1}),
    record(2, 1, reward=0.0, row_digest="d" * 32),
    record(3, 0, row_digest="d" * 32),
    record(1, 0, judge_calls=1, judge_tokens=7),
]


def measured(count: int | None = None) -> dict[str, Any]:
    """Return what the engine computes from the first records."""
    metrics = MeasuredResults(ROWS, N)
    for each in RECORDS[:count]:
        metrics.set_result(each)
        if each.row_digest:
            metrics.set_row_digest(each.row_index, each.row_digest)
    found = metrics.summary()
    return {"summary": found.summary, "estimates": found.estimates.model_dump(mode="json")}


@pytest.fixture
def workers(api: TestClient, world: World) -> list[FakeWorker]:
    """The owners of two shards of one run: its even rows and its odd ones."""
    settings = {"limit": ROWS, "n": N, "batch_size": 4}
    execution = {"pool": "gpu", "workers": 2}
    EVALS.taken(api, evaluation_config=settings, advanced_config={"execution": execution})
    return [FakeWorker.claims(world, "gpu") for _ in range(2)]


def report(workers: list[FakeWorker], first: int = 0, end: int | None = None) -> None:
    """Report these records, each by the owner of its shard."""
    for each in RECORDS[first:end]:
        worker = workers[each.row_index % 2]
        sent = len(worker.journal)
        worker.write([each])
        worker.sync(journal=worker.part(sent))


def shown(api: TestClient, worker: FakeWorker) -> dict[str, Any]:
    """Return the numbers of a run, which are the same in all three places."""
    metrics = api.get(f"{EVALS.route}/{worker.run.name}/metrics").json()
    detail = api.get(f"{EVALS.route}/{worker.run.name}").json()
    (listed,) = api.get(EVALS.route).json()["eval_runs"]
    assert listed["results"] == detail["results"]
    assert detail["results"]["graded"] == metrics["overview"]["graded"]
    return {**metrics, "results": detail["results"]}


@pytest.mark.parametrize("ending", ["failed", "stopped", "killed and stopped"])
def test_live_numbers_and_those_of_the_ended_run_are_those_of_the_engine(
    api: TestClient, world: World, workers: list[FakeWorker], clock: ManualClock, ending: str
) -> None:
    first = workers[0]
    settle(world)
    for end in (2, 5, len(RECORDS)):
        report(workers, first.run.accepted, end)
        settle(world)
        expected = measured(end)
        assert {name: (first.run.metrics or {})[name] for name in expected} == expected
        assert shown(api, first)["estimates"] == expected["estimates"]
    live = first.run
    assert live.status == "running" and live.progress == {"completed": 7, "total": 15}
    workers[1].sync(worked_s=0.9)
    if "stopped" in ending:
        api.post(f"{EVALS.route}/{first.run_id}/stop", json={})
    if "killed" in ending:
        expire_leases(clock)
        settle(world)
    else:
        for worker in workers:
            worker.finishes("failed" if ending == "failed" else "finished", error="the model is unreachable.")
    run = first.run
    assert run.status == ending.rpartition(" ")[2]
    assert {name: (run.metrics or {})[name] for name in expected} == expected
    assert (run.metrics or {})["duration_ms"] == 1500, "at least that of the longest attempt"
    assert (run.progress, run.reward, run.pass_rate) == (live.progress, live.reward, live.pass_rate)
    found = shown(api, first)
    assert (found["results"]["graded"], found["overview"]["tokens_used"]) == (5, 49)
    assert found["estimates"]["judges"] == {"calls": 3, "tokens": 37, "cost_usd": 0.5, "outside_scale": 1}
    assert json.loads(downloaded(api, run.id, "metrics.json"))["summary"] == expected["summary"]


def test_the_time_worked_is_that_of_the_longest_worker_over_all_its_attempts(
    world: World, workers: list[FakeWorker]
) -> None:
    first, second = workers
    first.sync(
        worked_s=20.0, limited_by={"most": "provider", "provider": 1, "rate_limit": 0, "this_machine": 0}
    )
    first.sync(worked_s=3.0)
    first.releases()
    first = FakeWorker.claims(world, "gpu")
    assert first.assignment.shard.worked_s == 20.0
    first.sync(worked_s=31.0)
    second.sync(worked_s=8.0, limited_by={"most": "nonsense"})
    for worker in (first, second):
        worker.finishes()
    metrics = first.run.metrics
    assert metrics is not None and metrics["duration_ms"] == 31_000
    assert metrics["estimates"]["limited_by"]["most"] == "provider"

"""The budget of an evaluation on the platform: what ends a run, what it keeps, and how a retry continues."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.evaluation.builders import record
from tests.platform.conftest import World, assert_flat_error
from tests.platform.fake_worker import EVALS, FakeWorker, settle


def submit(api: TestClient, **execution: Any) -> str:
    """Submit an evaluation of four rows with one attempt each; return its id."""
    settings = {"limit": 4, "n": 1}
    taken = EVALS.taken(api, evaluation_config=settings, advanced_config={"execution": execution})
    run_id: str = taken["id"]
    return run_id


PAID: dict[str, Any] = {"cost_usd": 0.2, "tokens": 100, "model_calls": 2}
UNPRICED: dict[str, Any] = {**PAID, "cost_usd": None}
UNCOUNTED: dict[str, Any] = {**PAID, "tokens": 0}


@pytest.mark.parametrize(
    ("budget", "facts", "error"),
    [
        (
            {"max_cost": 0.4},
            PAID,
            "it had spent $0.4000, and max_cost is 0.4. Continue with `osmosis eval retry",
        ),
        ({"max_cost": 0.5}, {**PAID, "judge_cost_usd": 0.1}, "it had spent $0.6000, and max_cost is 0.5."),
        (
            {"max_tokens": 200},
            PAID,
            "it had used 200 tokens, and max_tokens is 200. Continue with `osmosis eval retry",
        ),
        (
            {"max_cost": 9.0},
            UNPRICED,
            "the price of the model is unknown. Limit it with `max_tokens` instead.",
        ),
        ({"max_tokens": 9999}, UNCOUNTED, "the model does not report how many tokens it used."),
        ({"max_cost": 0.7, "max_tokens": 301}, PAID, None),
        ({"max_tokens": 301}, UNPRICED, None),
        ({}, UNCOUNTED, None),
    ],
)
def test_a_run_ends_when_its_budget_is_used_up(
    api: TestClient, world: World, budget: dict[str, Any], facts: dict[str, Any], error: str | None
) -> None:
    run_id = submit(api, workers=2, **budget)
    workers = [FakeWorker.claims(world, run_id=run_id) for _ in range(2)]
    for worker in workers:
        worker.records(1, **facts)
    assert [worker.sync().stop for worker in workers] == [error is not None] * 2
    if error is None:
        for worker in workers:
            worker.records(1, **facts)
    for worker in workers:
        worker.finishes()
    found = api.get(f"{EVALS.route}/{run_id}").json()["eval_run"]
    assert found["status"] == ("finished" if error is None else "failed")
    assert error is None or error in found["error"]
    assert len(workers[0].samples()) == (4 if error is None else 2)


def test_a_run_whose_last_record_uses_its_budget_up_is_finished(api: TestClient, world: World) -> None:
    worker = FakeWorker.claims(world, run_id=submit(api, max_cost=0.8))
    worker.records(4, **PAID)
    assert not worker.sync().stop
    worker.finishes()
    assert (worker.run.status, worker.run.error) == ("finished", None)


def test_a_retry_has_the_budget_of_the_run_again_or_one_of_its_own(api: TestClient, world: World) -> None:
    run_id = submit(api, max_cost=0.3)
    worker = FakeWorker.claims(world, run_id=run_id)
    worker.records(2, **PAID)
    assert worker.sync().stop
    worker.finishes()
    path = f"{EVALS.route}/{run_id}/retry"
    assert api.post(path, json={}).status_code == 200
    worker = FakeWorker.claims(world, run_id=run_id)
    first, second = ((row, number) for row, number in worker.assignment.shard.attempts or [])
    worker.write([record(*first, **PAID)])
    assert not worker.sync(journal=worker.part()).stop, "what was spent before the retry counts as well"
    worker.releases()
    api.post(f"{EVALS.route}/{run_id}/stop", json={})
    settle(world)

    for wrong in ({"max_cost": 0}, {"max_cost": "much"}, {"max_tokens": -1}, {"max_tokens": 1.5}):
        assert_flat_error(api.post(path, json=wrong), 400, "VALIDATION_FAILED")
    assert api.post(path, json={"max_tokens": 100}).status_code == 200
    worker = FakeWorker.claims(world, run_id=run_id)
    assert worker.assignment.shard.attempts == [second]
    worker.write([record(*second, **PAID)])
    worker.sync(journal=worker.part())
    worker.finishes()
    assert (worker.run.status, worker.run.revision, len(worker.samples())) == ("finished", 2, 4)
    execution = worker.run.request["advanced_config"]["execution"]
    assert execution == {"max_tokens": 100}

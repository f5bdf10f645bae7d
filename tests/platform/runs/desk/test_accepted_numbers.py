"""Runs whose workers are killed: their numbers are those of all that was accepted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.runs.stored_journal import records_beside
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock
from tests.platform.platform_parts import BlobStoreError, DbSample, PlatformServices
from tests.platform.runs.desk.desk_workers import (
    GPU,
    RUNS,
    DeskWorker,
    claim,
    has_expired,
    measured,
    pool_token,
    submitted,
)
from tests.platform.runs.desk.test_exchanges import downloaded

ROWS, N = 5, 3
RECORDS = [
    record(
        0,
        0,
        reward=0.5,
        cost_usd=0.25,
        prompt_tokens=5,
        completion_tokens=2,
        model_calls=2,
        finish_reasons={"stop": 2},
    ),
    record(
        0,
        1,
        reward=1.0,
        judge_calls=2,
        judge_tokens=30,
        judge_cost_usd=0.5,
        judge_outside_scale=1,
        duration_ms=1500,
        finish_reasons={"length": 1},
    ),
    record(1, 0, status="failed", reward=None, error_type="AgentError", boundary="agent", lost_attempts=2),
    record(1, 1, status="skipped", reward=None),
    record(2, 0, reward=None),
    record(2, 1, reward=0.0, row_digest="d" * 32),
    record(3, 0, reward=1.0, row_digest="d" * 32),
    record(1, 0, reward=1.0, judge_calls=1, judge_tokens=7),
]


def counted(written: Sequence[TerminalRecord]) -> dict[str, Any]:
    return measured(written, rows=ROWS, n=N)


def said(written: Sequence[TerminalRecord], **more: Any) -> dict[str, Any]:
    return {"duration_ms": 700.0, **counted(written), **more}


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a pool's run of 15 samples, who has said its first numbers: of none."""
    settings = {"limit": ROWS, "n": N, "batch_size": 4}
    submitted(api, evaluation_config=settings, advanced_config=GPU)
    worker = DeskWorker.claims(services, "gpu")
    worker.sync(metrics=said([], journal_bytes=None), progress=progress(0))
    return worker


def progress(completed: int, **changes: Any) -> dict[str, Any]:
    known = {"completed": completed, "total": ROWS * N, "passed": 0, "failed": 0, "skipped": 0, "scored": 0}
    more = {"reward_mean": None, "tokens": 0, "cost_usd": None, "in_flight": None, "elapsed_s": 1.0}
    return {**known, **more, "finished": completed, **changes}


def leaves(worker: DeskWorker, records: Sequence[TerminalRecord] = RECORDS) -> None:
    """Have a worker's lines arrive, and no numbers of them any more."""
    worker.write(records)
    worker.sync(journal=worker.part())


def shown(api: TestClient, worker: DeskWorker) -> dict[str, Any]:
    """Return what the three places say of a run that tell its numbers."""
    name = worker.run.name
    metrics = api.get(f"{RUNS}/{name}/metrics").json()
    detail = api.get(f"{RUNS}/{name}").json()
    (listed,) = api.get(RUNS).json()["eval_runs"]
    assert listed["results"] == detail["results"]
    results, overview = detail["results"], metrics["overview"]
    assert results["graded"] == results["headline"]["scored"] == overview["graded"]
    return {**metrics, "results": results}


def test_a_stopped_run_of_a_pool_whose_worker_was_killed_ends_with_the_numbers_of_all_that_was_accepted(
    api: TestClient, services: PlatformServices, worker: DeskWorker, clock: ManualClock
) -> None:
    leaves(worker)
    services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    has_expired(clock)
    services.desk.close_stopped()
    run, expected = worker.run, counted(RECORDS)
    assert run.status == "stopped"
    assert {name: run.metrics[name] for name in expected} == expected
    assert run.metrics["duration_ms"] == 1500, "as long as its longest attempt at least"
    assert run.progress == {"completed": 7, "total": 15}
    found = shown(api, worker)
    assert (found["results"]["graded"], found["overview"]["tokens_used"]) == (5, 49)
    assert found["results"]["headline"]["brief"] == "62.5% pass (reward >= 1.0), 5 of 15 planned scored"
    assert found["estimates"] == expected["estimates"]
    judges = {"calls": 3, "tokens": 37, "cost_usd": 0.5, "outside_scale": 1}
    assert found["estimates"]["judges"] == judges
    assert json.loads(downloaded(api, run.id, "metrics.json"))["summary"] == expected["summary"]
    estimates = expected["estimates"]
    assert (run.reward, run.pass_rate) == (
        expected["summary"]["reward_stats"]["mean"],
        estimates["pass_rate"]["value"],
    )


def test_numbers_of_a_failed_run(services: PlatformServices, worker: DeskWorker, clock: ManualClock) -> None:
    leaves(worker)
    for _ in range(3):  # one worker after the other dies
        has_expired(clock)
        assert claim(services, pool_token(services)) is not None
    has_expired(clock)
    assert claim(services, pool_token(services)) is None
    run = worker.run
    assert (run.status, run.metrics["summary"]) == ("failed", counted(RECORDS)["summary"])


def test_what_a_worker_said_of_samples_that_never_came_is_no_result(
    api: TestClient, services: PlatformServices, worker: DeskWorker, clock: ManualClock
) -> None:
    worker.sync(progress=progress(2, scored=2, passed=1, reward_mean=0.385, tokens=12))
    services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    has_expired(clock)
    services.desk.close_stopped()
    found = shown(api, worker)
    assert found["results"]["graded"] == found["results"]["total_tokens"] == 0
    assert "score" not in found["results"] and worker.run.reward is None
    assert worker.run.progress == {"completed": 0, "total": 15}


def test_numbers_of_the_whole_journal_are_kept(worker: DeskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Would fail if it were called.
    monkeypatch.setattr("osmosis_ai.platform.runs.desk.accepted_numbers.AcceptedNumbers._measure", None)
    leaves(worker)
    whole = said(RECORDS, journal_bytes=len(worker.journal))
    worker.sync(metrics=whole)
    worker.ends("finished")
    assert worker.run.metrics == whole


def test_a_run_that_waits_for_its_next_worker_says_the_numbers_of_all_that_was_accepted(
    api: TestClient, services: PlatformServices, worker: DeskWorker, clock: ManualClock
) -> None:
    leaves(worker, RECORDS[:2])
    worker.sync(metrics=said(RECORDS[:1], journal_bytes=None))
    worker.write(RECORDS[2:])
    worker.sync(journal=worker.part(), progress=progress(7, scored=4, passed=2, skipped=1, tokens=42))
    services.desk.count_accepted()
    assert worker.run.metrics["summary"]["total_samples"] == 1, "somebody works on it"
    has_expired(clock)
    before = worker.run
    services.desk.count_accepted()
    run, expected = worker.run, counted(RECORDS)
    assert run.status == "running" and run.metrics["estimates"] == expected["estimates"]
    assert run.progress == {"completed": 7, "total": 15}
    assert (run.lease_token, run.heartbeat_at) == (before.lease_token, before.heartbeat_at)
    assert shown(api, worker)["estimates"] == expected["estimates"]
    worker.sync()  # its worker had only been slow


@pytest.mark.usefixtures("small_pieces")
def test_where_the_journal_can_not_be_read_its_judges_alone_are_left_out_which_is_said(
    services: PlatformServices, worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in RECORDS:
        leaves(worker, [each])

    def away(*_: Any) -> Any:
        raise BlobStoreError("the bucket is away.")

    monkeypatch.setattr(services.blobs, "open", away)
    has_expired(clock)
    services.desk.count_accepted()
    run, expected = worker.run, counted(RECORDS)
    assert run.metrics["summary"] == expected["summary"]
    assert run.metrics["estimates"]["judges"] is None
    assert "judges" in run.metrics["estimates"]["warnings"][0]


def test_a_sample_of_no_row_of_a_run(
    services: PlatformServices, worker: DeskWorker, clock: ManualClock
) -> None:
    leaves(worker)
    with services.db.transaction() as session:
        session.execute(update(DbSample).where(DbSample.row_index == 3).values(row_index=ROWS))
    services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    has_expired(clock)
    services.desk.count_accepted()
    services.desk.close_stopped()
    assert (worker.run.status, worker.run.metrics["summary"]["graded"]) == ("stopped", 0)


def test_progress_counts_where_no_metrics_have_scores(api: TestClient, worker: DeskWorker) -> None:
    worker.sync(progress=progress(3, scored=2, passed=1, failed=1, reward_mean=0.5, tokens=7))
    results = api.get(f"{RUNS}/{worker.run_id}").json()["results"]
    assert (results["graded"], results["headline"]["failed"]) == (2, 1)
    assert results["headline"]["brief"].startswith("50.0% pass (reward >= 1.0), 2 of 15 planned scored")


def test_the_token_count_never_decreases(api: TestClient, worker: DeskWorker) -> None:
    shown = []
    for tokens in (1728, 1661, 1900):
        worker.sync(progress=progress(3, tokens=tokens))
        shown.append(api.get(f"{RUNS}/{worker.run_id}").json()["results"]["total_tokens"])
    assert shown == [1728, 1728, 1900]


def test_extra_fields_are_those_of_the_newest_record(services: PlatformServices, worker: DeskWorker) -> None:
    judged = {"judge_calls": 1, "judgements": [{"model": "j", "score": 1.0}]}
    leaves(worker, [record(0, **judged), record(0), record(1), record(2, scores={"agent": 0.5})])
    leaves(worker, [record(1, **judged)])
    worker.ends()
    key = worker.run.journal_blob
    assert key is not None
    agents = {"scores": {"agent": 0.5}}
    assert records_beside(services.blobs, key) == {(1, 0): judged, (2, 0): agents}
    assert records_beside(services.blobs, key, most_bytes=10) is None
    assert records_beside(services.blobs, key, only=(2, 0)) == {(2, 0): agents}
    assert records_beside(services.blobs, key, only=(0, 0)) == {}

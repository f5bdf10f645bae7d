"""Runs whose workers are killed: their numbers are those of all that was accepted, as the worker would have said them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.row_copies import RowCopies
from osmosis_ai.platform.blobs.store import BlobStoreError
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.desk import accepted_numbers
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.read.derived_files import DerivedFiles
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer
from tests.platform.runs.desk.submits import has_expired

RUNS = "/api/cli/eval-runs"
POOL = ClaimScope(pool="gpu")
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


def measured(records: Sequence[TerminalRecord]) -> dict[str, Any]:
    """Return what the engine says of these records."""
    copies = RowCopies(ROWS)
    metrics = MetricsAccumulator(rows=ROWS, n=N)
    for each in records:
        metrics.add_record(each)
        if each.row_digest:
            copies.note(each.row_index, each.row_digest)
    metrics.cluster(copies.clusters())
    found = metrics.summary()
    return {"summary": found.summary, "estimates": found.estimates.model_dump(mode="json")}


def said(records: Sequence[TerminalRecord], **more: Any) -> dict[str, Any]:
    return {"duration_ms": 700.0, **measured(records), **more}


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a pool's run of 15 samples, who has said its first numbers: of none."""
    pool = {"execution": {"pool": "gpu"}}
    settings = {"limit": ROWS, "n": N, "batch_size": 4}
    Submits(RUNS, submit_body).taken(api, evaluation_config=settings, advanced_config=pool)
    worker = DeskWorker.claims(services, POOL)
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


def file_of(services: PlatformServices, run: DbRun) -> dict[str, Any]:
    key = DerivedFiles(services.db, services.blobs).key(run, "metrics.json", None)
    assert key is not None
    with services.blobs.open(key) as file:
        found: dict[str, Any] = json.load(file)
    return found


def test_a_stopped_run_of_a_pool_whose_worker_was_killed_ends_with_the_numbers_of_all_that_was_accepted(
    api: TestClient, services: PlatformServices, worker: DeskWorker, clock: ManualClock
) -> None:
    leaves(worker)
    services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    has_expired(clock)
    services.desk.close_stopped()
    run, expected = worker.run, measured(RECORDS)
    assert run.status == "stopped"
    assert {name: run.metrics[name] for name in expected} == expected
    assert run.metrics["duration_ms"] == 1500, "as long as its longest attempt at least"
    assert run.progress == {"completed": 7, "total": 15}
    found = shown(api, worker)
    assert (found["results"]["graded"], found["overview"]["tokens_used"]) == (5, 49)
    assert found["results"]["headline"]["brief"] == "62.5 % pass (reward >= 1.0), 5 of 15 planned scored"
    assert found["estimates"] == expected["estimates"]
    judges = {"calls": 3, "tokens": 37, "cost_usd": 0.5, "outside_scale": 1}
    assert found["estimates"]["judges"] == judges
    assert file_of(services, run)["summary"] == expected["summary"]
    estimates = expected["estimates"]
    assert (run.reward, run.pass_rate) == (
        expected["summary"]["reward_stats"]["mean"],
        estimates["pass_rate"]["value"],
    )


def test_a_run_that_the_platform_fails_ends_with_the_numbers_of_all_that_was_accepted(
    services: PlatformServices, worker: DeskWorker, clock: ManualClock
) -> None:
    leaves(worker)
    for _ in range(3):  # one worker after the other dies
        has_expired(clock)
        assert services.desk.claim(offer(), POOL) is not None
    has_expired(clock)
    assert services.desk.claim(offer(), POOL) is None
    run = worker.run
    assert (run.status, run.metrics["summary"]) == ("failed", measured(RECORDS)["summary"])


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


def test_numbers_that_a_worker_said_of_the_whole_journal_are_left_alone(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_numbers, "measure_accepted", None)  # would fail whoever calls it
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
    run, expected = worker.run, measured(RECORDS)
    assert run.status == "running" and run.metrics["estimates"] == expected["estimates"]
    assert run.progress == {"completed": 7, "total": 15}
    assert (run.lease_token, run.heartbeat_at) == (before.lease_token, before.heartbeat_at)
    assert shown(api, worker)["estimates"] == expected["estimates"]
    worker.sync()  # its worker had only been slow


def test_what_waits_is_counted_once_and_again_when_its_worker_has_said_more(
    services: PlatformServices, worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves(worker, RECORDS[:3])
    real, counted = accepted_numbers.measure_accepted, []

    def counting(db: Any, blobs: Any, run: DbRun, *rest: Any) -> Any:
        counted.append(run.journal_bytes)
        return real(db, blobs, run, *rest)

    monkeypatch.setattr(accepted_numbers, "measure_accepted", counting)
    has_expired(clock)
    for _ in range(3):
        services.desk.count_accepted()
    assert len(counted) == 1
    leaves(worker, RECORDS[3:])
    has_expired(clock)
    for _ in range(3):
        services.desk.count_accepted()
    assert len(counted) == 2
    assert worker.run.metrics["summary"] == measured(RECORDS)["summary"]


def test_where_the_journal_can_not_be_read_its_judges_alone_are_left_out_which_is_said(
    services: PlatformServices, worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves(worker)
    services.desk._folding.fold_all(worker.run_id)

    def away(*_: Any) -> Any:
        raise BlobStoreError("the bucket is away.")

    monkeypatch.setattr(services.blobs, "open", away)
    has_expired(clock)
    services.desk.count_accepted()
    run, expected = worker.run, measured(RECORDS)
    assert run.metrics["summary"] == expected["summary"]
    assert run.metrics["estimates"]["judges"] is None
    assert "judges" in run.metrics["estimates"]["warnings"][0]


def test_a_sample_outside_of_its_run_keeps_it_from_no_end(
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


def test_the_page_of_a_run_does_not_count_none_beside_a_list_that_counts_some(
    api: TestClient, services: PlatformServices, worker: DeskWorker
) -> None:
    leaves(worker)
    worker.sync(progress=progress(7, scored=5, passed=3, skipped=1, tokens=49))
    source = PlatformSource(services, worker.run.workspace_id, services.sample_counts)
    detail = source.run("eval", worker.run.name)
    assert detail.summary.headline is not None and detail.summary.headline.scored == 5
    assert detail.estimates is None
    assert shown(api, worker)["estimates"] is None

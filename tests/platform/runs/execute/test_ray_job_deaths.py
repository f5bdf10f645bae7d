"""Runs whose jobs on a Ray cluster end before they do: lost nodes, deaths in a row, workers that let go."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.platform.db.tables import DbDataset
from osmosis_ai.platform.runs.desk.closing import FRUITLESS
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from tests.platform.conftest import Member, World
from tests.platform.evaluations import training_body
from tests.platform.runs.execute.played_cluster import Cluster


@pytest.fixture
def member(world: World) -> Member:
    return world.member()


def test_a_run_of_a_lost_node_gets_another_job_when_its_lease_has_ended_and_not_before(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.claim(run)
    cluster.ray.become("node_lost")
    cluster.rounds(20)
    assert list(cluster.ray.jobs) == ["osm-run_a-1"]
    assert cluster.notes.withdrawn == [run]
    assert "the Ray job osm-run_a-1 has ended: its node was lost" in cluster.log(run)[-1]
    cluster.rounds(20)
    assert list(cluster.ray.jobs) == ["osm-run_a-1", "osm-run_a-2"]
    assert cluster.ray.bodies["osm-run_a-2"]["runtime_env"]["env_vars"] == {
        "OSMOSIS_WORKER_TICKET": "ticket-2-of-run_a"
    }


def test_lost_nodes_never_fail_a_run(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    for _ in range(6):
        cluster.rounds(310)
        cluster.ray.become("node_lost")
    cluster.rounds(310)
    assert cluster.run(run).status == "pending"
    assert len(cluster.ray.jobs) == 7


def test_jobs_that_end_without_getting_anything_done_fail_the_run_in_the_end(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    for _ in range(3):
        cluster.rounds(100)
        cluster.ray.become("failed_127")
    cluster.rounds()
    ended = cluster.run(run)
    assert ended.status == "failed"
    assert ended.error == (
        "the Ray job osm-run_a-3 has ended: the node has no command `osmosis` on the PATH of its Ray, 3 times in a row "
        "without getting anything done; see `ray job logs osm-run_a-3`, then submit again."
    )
    cluster.rounds(400)
    assert len(cluster.ray.jobs) == 3


def test_a_run_that_no_node_may_have_for_want_of_a_sandbox_fails_with_what_mends_it(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    cluster.notes.unconfined[run] = "this machine gets no runs; set OSMOSIS_ISOLATION=off there."
    for _ in range(3):
        cluster.rounds(100)
        cluster.ray.become("failed_7")
    cluster.rounds()
    assert cluster.run(run).error == (
        "this machine gets no runs; set OSMOSIS_ISOLATION=off there. The Ray job osm-run_a-3 has ended: its worker ended "
        "with 7, 3 times in a row without getting anything done; see `ray job logs osm-run_a-3`, then submit again."
    )


def test_a_run_whose_last_worker_may_still_live_is_not_failed_before_its_lease_has_ended(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    for _ in range(3):
        cluster.rounds(100)
        cluster.claim(run)
        cluster.ray.become("failed_7")
    cluster.rounds()
    assert cluster.run(run).status == "running"
    cluster.rounds(40)
    assert cluster.run(run).status == "failed"


def test_progress_between_two_deaths_forgives_the_first(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    for number in range(5):
        cluster.rounds(100)
        cluster.change(run, journal_bytes=number + 1)
        cluster.ray.become("failed_7")
    cluster.rounds(100)
    assert cluster.run(run).status == "pending"
    assert len(cluster.ray.jobs) == 6


def test_a_training_run_whose_jobs_begin_and_save_nothing_fails_in_the_end(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member, kind="training")
    for number in range(1, FRUITLESS["training"] + 1):
        cluster.rounds(310)
        # So the desk notes that an attempt has begun, and how far it came: what is not in a checkpoint is done again.
        cluster.change(run, training_state={"begun": number, "furthest": number})
        cluster.ray.become("failed_7")
    cluster.rounds()
    assert cluster.run(run).status == "failed"
    assert len(cluster.ray.jobs) == FRUITLESS["training"]


def test_a_checkpoint_between_two_deaths_of_a_training_run_forgives_the_first(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member, kind="training")
    for number in range(1, FRUITLESS["training"] + 2):
        cluster.rounds(310)
        cluster.change(run, training_state={"begun": number, "resume": {"step": number}})
        cluster.ray.become("failed_7")
    cluster.rounds()
    assert cluster.run(run).status == "pending"


def add_dataset(cluster: Cluster, member: Member) -> dict[str, Any]:
    now = cluster.clock.now()
    dataset = DbDataset(
        id="ds_1",
        workspace_id=member.workspace.id,
        name="multiply",
        status="uploaded",
        extension="jsonl",
        file_size=1,
        sha256="ab" * 32,
        created_at=now,
        updated_at=now,
    )
    with cluster.bench.services.db.transaction() as session:
        session.add(dataset)
    return {"dataset_id": "ds_1", "selection": RowSelection(1, 1, None, "ab" * 32, "jsonl").record()}


@pytest.mark.parametrize("answer", ["succeeded", "failed_7"])
def test_a_run_that_is_resumed_before_its_cluster_says_that_its_job_has_ended_goes_on_at_once(
    cluster: Cluster, member: Member, answer: str
) -> None:
    with_dataset = add_dataset(cluster, member)
    run = cluster.bench.add("a", member, kind="training", request=training_body(), **with_dataset)
    cluster.rounds()
    cluster.ray.become("running")
    cluster.rounds(2)
    with cluster.leases.writing(cluster.claim(run)) as (_, row):
        row.training_state = {"begun": 1, "resume": {"step": 5}}
        row.stop_requested_at = cluster.clock.now()
        cluster.leases.end(row, "stopped")
    cluster.bench.services.resumption.resume(member.workspace.id, "a", by="mara@fern.example")
    cluster.rounds(2)
    assert list(cluster.ray.jobs) == ["osm-run_a-1"], "it may be at work still"
    cluster.ray.become(answer)
    cluster.rounds()
    assert list(cluster.ray.jobs) == ["osm-run_a-1", "osm-run_a-2"]
    assert not [line for line in cluster.log(run) if "has ended" in line or "trying again" in line]
    # What comes of the next job counts as that of any.
    cluster.ray.become("failed_7")
    cluster.rounds()
    assert cluster.log(run)[-1].endswith("its worker ended with 7; trying again in 5 s")


def test_a_worker_that_let_its_run_go_is_followed_by_another(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    for _ in range(4):
        cluster.rounds(310)
        cluster.ray.become("succeeded")
    cluster.rounds(310)
    assert cluster.run(run).status == "pending"


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_a_run_whose_store_is_away_is_tried_until_it_is_back(
    cluster: Cluster, member: Member, kind: str
) -> None:
    run = cluster.bench.add("a", member, kind=kind)
    for _ in range(20):
        cluster.rounds(310)
        cluster.ray.become("failed_80")
    cluster.rounds(310)
    assert cluster.run(run).status == "pending"
    assert len(cluster.ray.jobs) == 21
    assert not any("has ended" in line for line in cluster.log(run)), "the desk says what it waits for"

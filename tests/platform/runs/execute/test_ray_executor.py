"""Runs on a Ray cluster, from their submission to their end; the cluster answers as a real one has."""

from __future__ import annotations

import threading

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.execute.ray_jobs import RayJobs
from osmosis_ai.platform.runs.leases import LONGEST_PAUSE
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.runs.execute.played_cluster import NO_ANSWER, Cluster
from tests.platform.runs.execute.recorded_ray import TOKEN


@pytest.fixture
def member(world: World) -> Member:
    return world.member()


def test_a_run_becomes_a_job_that_is_followed_to_its_end(cluster: Cluster, member: Member) -> None:
    asked = {"advanced_config": {"execution": {"cpus": 2, "gpus": 1, "memory_gb": 4}}}
    run = cluster.bench.add("a", member, request=asked)
    cluster.rounds()
    assert cluster.ray.bodies == {
        "osm-run_a-1": {
            "entrypoint": "exec osmosis platform worker --run run_a --url https://osmosis.example "
            "--token-env OSMOSIS_WORKER_TICKET --cpus 2",
            "submission_id": "osm-run_a-1",
            "entrypoint_num_cpus": 2,
            "entrypoint_num_gpus": 1,
            "entrypoint_memory": 4 << 30,
            "runtime_env": {"env_vars": {"OSMOSIS_WORKER_TICKET": "ticket-1-of-run_a"}},
        }
    }
    cluster.ray.become("running")
    cluster.rounds(20)
    assert cluster.notes.seen_running == [run]
    cluster.change(run, status="finished")
    cluster.ray.become("succeeded")
    cluster.rounds(20)
    assert cluster.notes.withdrawn == [run]
    assert list(cluster.ray.jobs) == ["osm-run_a-1"]
    assert cluster.log(run) == [
        "submitted to the Ray cluster as osm-run_a-1",
        "the Ray job osm-run_a-1 is running",
    ]


def test_runs_of_a_pool_and_runs_that_somebody_works_on_are_left_alone(
    cluster: Cluster, member: Member
) -> None:
    cluster.bench.add("pooled", member, pool="gpu")
    taken = cluster.bench.add("taken", member)
    lease = cluster.claim(taken)
    cluster.rounds()
    assert cluster.ray.jobs == {}
    cluster.leases.release(taken, lease.token)
    cluster.rounds()
    assert list(cluster.ray.jobs) == ["osm-run_taken-1"]


def test_a_run_that_is_not_to_be_claimed_yet_gets_no_job_yet(
    cluster: Cluster, member: Member, clock: ManualClock
) -> None:
    run = cluster.bench.add("a", member)
    cluster.change(run, claimable_at=clock.now() + LONGEST_PAUSE)
    cluster.rounds()
    assert cluster.ray.jobs == {}
    cluster.rounds(LONGEST_PAUSE.total_seconds())
    assert list(cluster.ray.jobs) == ["osm-run_a-1"]


def test_workspaces_take_turns_and_no_more_jobs_are_submitted_than_there_are_slots(
    cluster: Cluster, member: Member, stranger: Member
) -> None:
    for name in ("a", "b", "c"):
        cluster.bench.add(name, member)
    cluster.bench.add("d", stranger)
    cluster.executor = cluster.started(slots=2)
    cluster.rounds()
    assert list(cluster.ray.jobs) == ["osm-run_a-1", "osm-run_d-1"]


def test_what_no_node_can_hold_is_said_on_the_run_after_a_minute_and_once(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member, request={"advanced_config": {"execution": {"gpus": 8}}})
    cluster.rounds(50)
    assert len(cluster.log(run)) == 1
    cluster.rounds(200)
    assert cluster.log(run)[1:] == ["the Ray job osm-run_a-1 waits for 8 GPUs, the cluster has 1"]
    assert cluster.waits(run) == "the Ray job osm-run_a-1 waits for 8 GPUs, the cluster has 1."
    # After 15 minutes Ray gives up; we do not.
    cluster.ray.become("start_timeout")
    cluster.rounds(20)
    assert cluster.ray.jobs == {"osm-run_a-1": "start_timeout", "osm-run_a-2": "pending"}


@pytest.mark.parametrize(
    "lost", ["by hand", "with its head"], ids=["a job deleted by hand", "a restarted head"]
)
def test_what_the_cluster_has_forgotten_is_submitted_anew(
    cluster: Cluster, member: Member, lost: str
) -> None:
    run = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.ray.become("running")
    cluster.rounds()
    if lost == "with its head":
        cluster.ray.trouble = NO_ANSWER
        cluster.rounds(70)
        cluster.ray.trouble = None
    cluster.ray.jobs.clear()
    cluster.rounds(20)
    assert list(cluster.ray.jobs) == ["osm-run_a-2"]
    assert "is not known to the cluster any more" in cluster.log(run)[-2]


def test_a_cluster_that_hangs_costs_no_run_more_than_time(
    cluster: Cluster, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    running = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.ray.become("running")
    cluster.rounds()
    cluster.claim(running)
    waiting = cluster.bench.add("b", member)
    cluster.ray.trouble = NO_ANSWER
    cluster.rounds(20)
    lines = len(cluster.log(running))
    cluster.change(running, lease_expires_at=cluster.clock.now().replace(year=2027, month=1))
    cluster.change(running, lease_token=None)
    cluster.claim(running)
    cluster.rounds(60)
    assert cluster.log(waiting) == [
        "waits: the Ray cluster at http://127.0.0.1:8265 cannot be reached: timed out."
    ]
    why = "the Ray cluster at http://127.0.0.1:8265 cannot be reached: timed out."
    assert cluster.waits(waiting) == why
    assert caplog.text.count("cannot be reached") == 1
    assert "timed out. (its runs go on when it answers again)" in caplog.text
    cluster.ray.trouble = None
    cluster.rounds()
    assert caplog.messages[-1] == "the executor goes on", "whoever was told that it waits is told that, too"
    assert cluster.waits(waiting) is None
    assert cluster.ray.jobs == {"osm-run_a-1": "running", "osm-run_b-1": "pending"}
    assert lines <= len(cluster.log(running)) <= lines + 1


def test_a_run_that_has_lost_its_worker_with_the_cluster_says_that_the_cluster_is_away(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.ray.become("running")
    cluster.rounds()
    desk = cluster.bench.services.desk
    cluster.claim(run)
    cluster.ray.trouble = NO_ANSWER
    cluster.rounds(31)
    assert "its worker has not been heard for 30 s" in (cluster.waits(run) or "")
    assert desk.silent_since(cluster.run(run)) is not None
    cluster.rounds(40)
    assert cluster.waits(run) == "the Ray cluster at http://127.0.0.1:8265 cannot be reached: timed out."
    assert desk.silent_since(cluster.run(run)) is None, "`info` would count the seconds instead"
    cluster.leases.release(run, f"worker-of-{run}")
    assert "cannot be reached" in (cluster.waits(run) or "")
    cluster.claim(run)
    assert cluster.waits(run) is None, "its worker has come back"
    cluster.clock.advance(16)
    assert "may take it" in (cluster.waits(run) or "")
    cluster.clock.advance(15)
    assert "cannot be reached" in (cluster.waits(run) or "")
    cluster.change(run, stop_requested_at=cluster.clock.now())
    assert cluster.waits(run) is None
    cluster.change(run, stop_requested_at=None)
    cluster.ray.trouble = None
    cluster.rounds()
    assert "cannot be reached" not in (cluster.waits(run) or "")


def test_what_a_job_waits_for_is_said_again_behind_an_outage_and_not_of_the_next_job(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member, request={"advanced_config": {"execution": {"gpus": 8}}})
    cluster.rounds(130)
    why = cluster.waits(run)
    assert why == "the Ray job osm-run_a-1 waits for 8 GPUs, the cluster has 1."
    cluster.ray.trouble = NO_ANSWER
    cluster.rounds(70)
    assert "cannot be reached" in (cluster.waits(run) or "")
    cluster.ray.trouble = None
    cluster.rounds()
    assert cluster.waits(run) == why
    cluster.ray.become("start_timeout")
    cluster.rounds(20)
    assert "osm-run_a-2" in cluster.ray.jobs and cluster.waits(run) is None


def test_a_wrong_token_is_said_on_the_runs_that_wait_and_goes_no_further(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    (cluster.directory / "ray-token").write_text("a-token-of-another-cluster")
    cluster.rounds(100)
    assert cluster.log(run) == [
        "waits: the Ray cluster at http://127.0.0.1:8265 refuses the token in "
        f"{cluster.directory / 'ray-token'}."
    ]
    (cluster.directory / "ray-token").write_text(TOKEN)
    cluster.rounds()
    assert list(cluster.ray.jobs) == ["osm-run_a-1"]


def test_nothing_is_submitted_to_a_cluster_that_anybody_may_use(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    cluster.ray.is_open = True
    cluster.rounds(100)
    assert cluster.ray.bodies == {}
    assert "answers without a token" in cluster.log(run)[0]


@pytest.mark.parametrize("has_it", [True, False])
def test_a_submit_of_which_nobody_knows_what_became_makes_one_job(
    cluster: Cluster, member: Member, has_it: bool
) -> None:
    run = cluster.bench.add("a", member)
    cluster.ray.submit_trouble = NO_ANSWER, has_it
    cluster.rounds()
    cluster.ray.submit_trouble = None
    cluster.rounds(20)
    assert len(cluster.ray.jobs) == 1
    assert not any("not known" in line for line in cluster.log(run))


def test_a_run_that_ends_while_its_job_waits_takes_the_jobs_ticket_with_it(
    cluster: Cluster, member: Member
) -> None:
    run = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.change(run, status="stopped")
    cluster.rounds()
    assert cluster.ray.stopped == ["osm-run_a-1"]
    assert cluster.notes.withdrawn == [run]


def test_a_worker_that_does_not_stop_in_time_is_ended_with_its_job(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.ray.become("running")
    cluster.claim(run)
    cluster.change(run, stop_requested_at=cluster.clock.now())
    cluster.rounds(20)
    assert cluster.ray.stopped == []
    cluster.rounds(20)
    assert cluster.ray.stopped == ["osm-run_a-1"]
    cluster.ray.become("stopped")
    cluster.rounds(40)
    assert cluster.run(run).status == "stopped"
    assert list(cluster.ray.jobs) == ["osm-run_a-1"]


def test_a_run_can_be_stopped_while_its_cluster_is_gone(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    cluster.claim(run)
    cluster.change(run, stop_requested_at=cluster.clock.now())
    cluster.ray.trouble = NO_ANSWER
    cluster.rounds(40)
    assert cluster.run(run).status == "stopped"


def test_a_platform_that_starts_again_finds_its_jobs(cluster: Cluster, member: Member) -> None:
    run = cluster.bench.add("a", member)
    cluster.rounds()
    cluster.ray.become("running")
    cluster.ray.jobs["osm-run_of_another_platform-3"] = "running"
    cluster.executor.close()
    cluster.executor = cluster.started()
    cluster.rounds(60)
    assert len(cluster.ray.bodies) == 1
    cluster.ray.become("failed_7")
    cluster.rounds(20)
    assert list(cluster.ray.bodies) == ["osm-run_a-1", "osm-run_a-2"]
    assert cluster.ray.stopped == []
    assert cluster.run(run).status == "pending"


def test_the_thread_goes_on_after_trouble_and_ends_when_it_is_told_to(
    cluster: Cluster, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.bench.add("a", member)
    monkeypatch.setattr(RayJobs, "every_s", 0.001)
    troubles = [OsmosisError("the disk is full"), RuntimeError("unexpected")]
    rounds, went_on = cluster.executor.round, threading.Event()

    def round_with_trouble() -> None:
        if troubles:
            raise troubles.pop()
        rounds()
        went_on.set()

    monkeypatch.setattr(cluster.executor, "round", round_with_trouble)
    cluster.executor.start()
    assert went_on.wait(300)
    cluster.executor.close()
    assert list(cluster.ray.jobs) == ["osm-run_a-1"]
    assert not [thread for thread in threading.enumerate() if thread.name == "executor"]

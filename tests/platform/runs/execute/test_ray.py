"""Runs on a Ray cluster, from their submission to their end; the cluster answers as a real one has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.ray_cluster import ray_cluster, require_usable_cluster
from osmosis_ai.platform.runs.execute.executor import WantedJob
from osmosis_ai.platform.runs.execute.ray_jobs import RayError
from tests.platform.conftest import Member, World
from tests.platform.runs.execute.played_cluster import NO_ANSWER, Cluster
from tests.platform.runs.execute.recorded_ray import TOKEN, RecordedRay

TICKET = "ticket-for-one-attempt"
HAS_ENDED = "the Ray job osm-run_1-1 has ended: "
JOB = WantedJob("osm-run_1-1", "run_1", 2, 1, 1.5)


@pytest.fixture
def ray() -> RecordedRay:
    return RecordedRay()


def test_an_open_cluster_is_sent_nothing(ray: RecordedRay, tmp_path: Path) -> None:
    ray.is_open = True
    with pytest.raises(RayError, match="answers without a token") as refused:
        ray.jobs_of(tmp_path).start(JOB, TICKET)
    assert "RAY_AUTH_MODE=token" in (refused.value.hint or "")
    assert {request.url.path for request in ray.requests} == {"/api/version"}
    assert not any("authorization" in request.headers for request in ray.requests)
    ray.jobs_of(tmp_path, token_file=None, allow_open=True).start(JOB, TICKET)
    assert "osm-run_1-1" in ray.jobs


def test_a_cluster_is_checked_again_after_trouble(ray: RecordedRay, tmp_path: Path) -> None:
    jobs = ray.jobs_of(tmp_path)
    assert jobs.list() == jobs.list() == []
    assert sum(request.url.path == "/api/version" for request in ray.requests) == 1
    ray.trouble = httpx.ReadTimeout("slow")
    with pytest.raises(RayError, match="timed out"):
        jobs.list()
    ray.trouble, ray.is_open = None, True
    with pytest.raises(RayError, match="answers without a token"):
        jobs.list()


def test_a_refused_token_is_not_shown(ray: RecordedRay, tmp_path: Path) -> None:
    jobs = ray.jobs_of(tmp_path)
    file = tmp_path / "ray-token"
    file.write_text("a-token-of-another-cluster")
    with pytest.raises(RayError, match=f"refuses the token in {file}") as refused:
        jobs.list()
    assert "another" not in refused.value.message
    for content in ("", "two words", "a\nb", "x" * 5000):
        file.write_text(content)
        with pytest.raises(RayError, match="holds no token"):
            jobs.list()
    file.write_text(TOKEN)
    assert jobs.list() == []


def test_a_refusal_is_shown_without_the_ticket(ray: RecordedRay, tmp_path: Path) -> None:
    ray.submit_trouble = (
        httpx.Response(400, text=f"Traceback\n  line 1\nValueError: {TICKET} {TOKEN}\n"),
        False,
    )
    with pytest.raises(RayError) as refused:
        ray.jobs_of(tmp_path).start(JOB, TICKET)
    assert refused.value.message.endswith("did not take a job: 400 ValueError: [REDACTED] [REDACTED].")


@pytest.mark.parametrize(
    ("answer", "phase", "told", "fault"),
    [
        ("pending", "waiting", "", "nobody"),
        ("running", "running", "the Ray job osm-run_1-1 is running", "nobody"),
        ("succeeded", "ended", f"{HAS_ENDED}its worker ended with 0", "nobody"),
        ("failed_7", "ended", f"{HAS_ENDED}its worker ended with 7", "run"),
        ("failed_80", "ended", "", "nobody"),
        (
            "failed_127",
            "ended",
            f"{HAS_ENDED}the node has no command `osmosis` on the PATH of its Ray",
            "run",
        ),
        ("stopped", "ended", f"{HAS_ENDED}it was stopped", "nobody"),
        ("node_lost", "ended", f"{HAS_ENDED}its node was lost", "nobody"),
        ("start_timeout", "ended", f"{HAS_ENDED}no node had room for it in time", "nobody"),
    ],
)
def test_every_state_of_a_job_is_told_from_the_others(
    ray: RecordedRay, tmp_path: Path, answer: str, phase: str, told: str, fault: str
) -> None:
    ray.jobs["osm-run_1-1"] = answer
    state = ray.jobs_of(tmp_path).state(JOB)
    assert state is not None
    assert (state.phase, state.told, state.fault) == (phase, told, fault)


@pytest.mark.parametrize(
    ("needs", "waits"),
    [
        ({"gpus": 8}, "waits for 8 GPUs, the cluster has 1"),
        ({"cpus": 3.0}, "waits for a node with 3 CPUs, the largest has 2"),
        ({"memory_gb": 1024.0}, "waits for 1024 GiB of memory, the cluster has 24.9 GiB"),
        ({"cpus": 2.0, "gpus": 1}, "waits for a node with 2 CPUs and 1 GPU, and none has all of it"),
        ({"gpus": 1}, "waits for a node of the Ray cluster to have room"),
    ],
)
def test_a_shortage_is_named(ray: RecordedRay, tmp_path: Path, needs: dict[str, Any], waits: str) -> None:
    assert ray.jobs_of(tmp_path).shortage(WantedJob("osm-run_1-1", "run_1", **needs)) == waits


def test_an_answer_not_of_ray(ray: RecordedRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.platform.runs.execute.ray_jobs._LARGEST_REPLY_BYTES", 1000)
    jobs = ray.jobs_of(tmp_path)
    assert jobs.list() == []
    for body in ("", "no json", "{}", '[{"status": 1}]', '{"data": {"result": {"result": "no"}}}'):
        ray.trouble = httpx.Response(200, text=body)
        for ask in (jobs.list, lambda: jobs.state(JOB), lambda: jobs.shortage(JOB)):
            with pytest.raises(RayError, match="as Ray's Jobs API does"):
                ask()
    ray.trouble = httpx.Response(200, text="[" + " " * 2000)
    with pytest.raises(RayError, match="more than can be read"):
        jobs.list()


GOOD = {"OSMOSIS_EXECUTOR": "ray", "OSMOSIS_RAY_ADDRESS": "127.0.0.1:8265", "OSMOSIS_RAY_TOKEN_FILE": "/t"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"OSMOSIS_EXECUTOR": "slurm"}, "OSMOSIS_EXECUTOR must be local or ray, and is 'slurm'"),
        ({"OSMOSIS_RAY_ADDRESS": ""}, "OSMOSIS_RAY_ADDRESS must say where"),
        ({"OSMOSIS_RAY_ADDRESS": "ray://head:10001"}, "OSMOSIS_RAY_ADDRESS is not the address"),
        ({"OSMOSIS_RAY_ADDRESS": "https://me:hush@head"}, "OSMOSIS_RAY_ADDRESS is not the address"),
        ({"OSMOSIS_RAY_ADDRESS": "http://head:8265"}, "OSMOSIS_RAY_ADDRESS is plain http"),
        ({"OSMOSIS_RAY_TOKEN_FILE": ""}, "OSMOSIS_RAY_TOKEN_FILE must name the file"),
        ({"OSMOSIS_RAY_ALLOW_OPEN": "yes"}, "OSMOSIS_RAY_ALLOW_OPEN must be 1 or 0, and is 'yes'"),
    ],
)
def test_an_unusable_setting_is_refused(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(OsmosisError, match=problem) as refused:
        from_environment({**GOOD, **changes})
    assert "hush" not in refused.value.message


def test_a_cluster_whose_nodes_could_not_find_the_platform_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    env: dict[str, Any] = {
        **GOOD,
        "OSMOSIS_RAY_ADDRESS": "https://ray.example.com",
        "OSMOSIS_RAY_TOKEN_FILE": str(file),
    }
    cluster = ray_cluster(env)
    assert cluster is not None
    with pytest.raises(
        OsmosisError, match=r"cannot reach the platform at http://127\.0\.0\.1:8733"
    ) as refused:
        require_usable_cluster(cluster, "http://127.0.0.1:8733")
    assert "--public-url" in (refused.value.hint or "")
    require_usable_cluster(cluster, "https://osmosis.example.com")
    file.unlink()
    with pytest.raises(OsmosisError, match="cannot be read"):
        require_usable_cluster(cluster, "https://osmosis.example.com")


@pytest.fixture
def member(world: World) -> Member:
    return world.member()


def test_a_run_becomes_a_job(cluster: Cluster) -> None:
    asked = {"advanced_config": {"execution": {"cpus": 2, "gpus": 1, "memory_gb": 4}}}
    run = cluster.add("a", request=asked)
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


def test_what_a_restarted_head_has_forgotten_is_submitted_again(cluster: Cluster) -> None:
    run = cluster.add("a")
    cluster.rounds()
    cluster.ray.become("running")
    cluster.rounds()
    cluster.ray.trouble = NO_ANSWER
    cluster.rounds(70)
    cluster.ray.trouble = None
    cluster.ray.jobs.clear()
    cluster.rounds(20)
    assert list(cluster.ray.jobs) == ["osm-run_a-2"]
    assert "is not known to the cluster any more" in cluster.log(run)[-2]


def test_a_cluster_that_hangs_fails_no_run(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    running = cluster.add("a")
    cluster.rounds()
    cluster.ray.become("running")
    cluster.rounds()
    cluster.claim(running)
    waiting = cluster.add("b")
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
    assert caplog.messages[-1] == "the executor continues", "the wait was logged, and so is its end"
    assert cluster.waits(waiting) is None
    assert cluster.ray.jobs == {"osm-run_a-1": "running", "osm-run_b-1": "pending"}
    assert lines <= len(cluster.log(running)) <= lines + 1


@pytest.mark.parametrize("has_it", [True, False])
def test_a_submit_of_which_nobody_knows_what_became_makes_one_job(cluster: Cluster, has_it: bool) -> None:
    run = cluster.add("a")
    cluster.ray.submit_trouble = NO_ANSWER, has_it
    cluster.rounds()
    cluster.ray.submit_trouble = None
    cluster.rounds(20)
    assert len(cluster.ray.jobs) == 1
    assert not any("not known" in line for line in cluster.log(run))


def test_a_run_that_ends_while_its_job_waits_takes_the_jobs_ticket_with_it(cluster: Cluster) -> None:
    run = cluster.add("a")
    cluster.rounds()
    cluster.change(run, status="stopped")
    cluster.rounds()
    assert cluster.ray.stopped == ["osm-run_a-1"]
    assert cluster.notes.withdrawn == [run]


def test_a_worker_that_does_not_stop_in_time_is_ended_with_its_job(cluster: Cluster) -> None:
    run = cluster.add("a")
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


def test_a_platform_that_starts_again_finds_its_jobs(cluster: Cluster) -> None:
    run = cluster.add("a")
    cluster.rounds()
    cluster.ray.become("node_lost")
    cluster.rounds(20)
    assert list(cluster.ray.bodies) == ["osm-run_a-1", "osm-run_a-2"]
    cluster.ray.jobs["osm-run_a-2"] = cluster.ray.jobs["osm-run_of_another_platform-3"] = "running"
    cluster.executor.close()
    cluster.executor = cluster.started()
    cluster.rounds(60)
    assert len(cluster.ray.bodies) == 2 and cluster.notes.issued == [run] * 2
    cluster.ray.become("failed_7")
    cluster.rounds(20)
    assert list(cluster.ray.bodies) == [f"osm-run_a-{number}" for number in (1, 2, 3)]
    assert cluster.ray.stopped == []
    assert cluster.run(run).status == "pending"


def test_a_lost_node_is_replaced_when_its_lease_has_ended(cluster: Cluster) -> None:
    run = cluster.add("a")
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


def test_jobs_that_end_without_getting_anything_done_fail_the_run_in_the_end(cluster: Cluster) -> None:
    run = cluster.add("a")
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


def test_progress_between_two_deaths_forgives_the_first(cluster: Cluster) -> None:
    run = cluster.add("a")
    for number in range(5):
        cluster.rounds(100)
        cluster.change(run, journal_bytes=number + 1)
        cluster.ray.become("failed_7")
    cluster.rounds(100)
    assert cluster.run(run).status == "pending"
    assert len(cluster.ray.jobs) == 6


def test_a_run_whose_store_is_away_is_tried_until_it_is_back(cluster: Cluster) -> None:
    run = cluster.add("a")
    for _ in range(20):
        cluster.rounds(310)
        cluster.ray.become("failed_80")
    cluster.rounds(310)
    assert cluster.run(run).status == "pending"
    assert len(cluster.ray.jobs) == 21
    assert not any("has ended" in line for line in cluster.log(run)), "the desk says what it waits for"

"""The client of Ray's Jobs API against a real head and a second node, where Ray is installed (`pip install ".[ray]"`)."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.platform.runs.execute.ray_jobs import RayError, RayJob, RayJobs, WantedJob
from tests.platform.evaluations import wait_until
from tests.platform.runs.execute.real_ray import RAY, RealRay

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def ray() -> Iterator[RealRay]:
    if RAY is None:
        pytest.skip("ray is not installed")
    # A Unix socket's path is short, and pytest's directories are not.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        real = RealRay(Path(directory))
        try:
            wait_until(real.answers)
            yield real
        finally:
            real.close()


def ended(ray: RealRay, job: str) -> RayJob:
    def state() -> RayJob | None:
        found = ray.jobs.state(job)
        return found if found is not None and found.phase == "ended" else None

    return wait_until(state)


def is_taken(ray: RealRay, job: WantedJob) -> bool:
    """Submit a job as the executor does: a head that has just got a node may take its time."""
    try:
        ray.jobs.start(job)
    except RayError as error:
        print(error.message)  # why, where this goes on until the test gives up
        return False
    return True


def is_running(ray: RealRay, job: str) -> bool:
    found = ray.jobs.state(job)
    return found is not None and found.phase == "running"


def test_a_real_cluster_answers_as_the_recorded_one(ray: RealRay) -> None:
    other = ray.directory / "other"
    other.write_text("a-token-of-another-cluster-altogether")
    with pytest.raises(RayError, match="refuses the token"):
        RayJobs(replace(ray.cluster, token_file=other)).list()
    with pytest.raises(RayError, match="asks for a token"):
        RayJobs(replace(ray.cluster, token_file=None)).list()

    for number, (command, exit_code) in enumerate(
        [("exec sh -c 'exit 7'", 7), ("exec no-such-program", 127), ("exec true", 0)], start=1
    ):
        ray.jobs.start(WantedJob(f"osm-run-{number}", command, "a-ticket", 0.5))
        assert ended(ray, f"osm-run-{number}").exit_code == exit_code
    told = WantedJob("osm-run-4", "exec sh -c 'test $OSMOSIS_WORKER_TICKET = a-ticket'", "a-ticket")
    ray.jobs.start(told)
    ray.jobs.start(told)  # as after an answer that got lost
    assert ended(ray, told.id).exit_code == 0

    large = WantedJob("osm-run-5", "exec true", "a-ticket", gpus=8)
    ray.jobs.start(large)
    assert ray.jobs.shortage(large.needs) == "waits for 8 GPUs, the cluster has 0"
    ray.jobs.stop(large.id)
    ray.jobs.start(WantedJob("osm-run-6", "exec sleep 600", "a-ticket"))
    wait_until(lambda: is_running(ray, "osm-run-6"))
    ray.jobs.stop("osm-run-6")
    assert ended(ray, "osm-run-6").ending == "it was stopped"
    assert {job.id for job in ray.jobs.list()} == {f"osm-run-{number}" for number in range(1, 7)}
    assert ray.jobs.state("osm-run-7") is None


def test_a_lost_node_and_a_lost_head_are_noticed(ray: RealRay) -> None:
    ray.start(f"--address=127.0.0.1:{ray.port}", "--num-cpus=1", "--num-gpus=1")
    job = WantedJob("osm-run-1", "exec sleep 600", "a-ticket", gpus=1)
    wait_until(lambda: "cluster has" not in ray.jobs.shortage(job.needs))
    wait_until(lambda: is_taken(ray, job))
    wait_until(lambda: is_running(ray, job.id))
    (raylet,) = set(ray.processes("raylet/raylet")) & set(ray.processes("GPU,1"))
    os.kill(raylet, signal.SIGKILL)
    lost = ended(ray, job.id)
    assert (lost.ending, lost.is_blameless) == ("its node was lost", True)
    assert ray.processes("sleep\x00600") == []

    ray.kill("gcs/gcs_server")
    with pytest.raises(RayError):
        wait_until(lambda: ray.jobs.list() is None)

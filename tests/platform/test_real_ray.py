"""The client of Ray's Jobs API with a real head and a second node, if Ray is installed (`pip install ".[ray]"`)."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.platform.ray_jobs import Job, JobState, RayError, RayJobs
from tests.platform.evaluations import wait_until
from tests.platform.real_ray import RAY, RealRay

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def ray() -> Iterator[RealRay]:
    if RAY is None:
        pytest.skip("ray is not installed")
    # The path of a Unix socket must be short, which pytest's directories are not.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        real = RealRay(Path(directory))
        try:
            wait_until(real.answers)
            yield real
        finally:
            real.close()


def ended(ray: RealRay, job: Job) -> JobState:
    def state() -> JobState | None:
        found = ray.jobs.state(job)
        return found if found is not None and found.phase == "ended" else None

    return wait_until(state)


def job_of(ray: RealRay, number: int, command: str, **needs: Any) -> Job:
    """Return a job that runs ``command``."""
    ray.commands[f"run-{number}"] = command
    return Job(f"osm-shd-{number}-a", f"shd-{number}", f"run-{number}", **needs)


def is_accepted(ray: RealRay, job: Job) -> bool:
    """Submit a job like the launcher: a head that has just got a node may be slow."""
    try:
        ray.jobs.start(job, "a-ticket")
    except RayError as error:
        print(error.message)  # shown if the test gives up
        return False
    return True


def is_running(ray: RealRay, job: Job) -> bool:
    found = ray.jobs.state(job)
    return found is not None and found.phase == "running"


def message_of(job: Job, ending: str) -> str:
    return f"the Ray job {job.id} has ended: {ending}; see `ray job logs {job.id}`"


def test_a_real_cluster_replies_like_the_recorded_one(ray: RealRay) -> None:
    other = ray.directory / "other"
    other.write_text("a-token-of-another-cluster-altogether")
    with pytest.raises(RayError, match="refuses the token"):
        RayJobs(replace(ray.cluster, token_file=other), str).list()
    with pytest.raises(RayError, match="requires a token"):
        RayJobs(replace(ray.cluster, token_file=None), str).list()

    commands = {
        "exec sh -c 'exit 7'": "its worker ended with 7",
        "exec no-such-program": "the node has no command `osmosis` on the PATH of its Ray",
        "exec true": "its worker ended with 0",
    }
    for number, (command, ending) in enumerate(commands.items(), start=1):
        job = job_of(ray, number, command, cpus=0.5)
        ray.jobs.start(job, "a-ticket")
        assert ended(ray, job) == JobState(job.id, "ended", message_of(job, ending), is_failure=True)
    repeated = job_of(ray, 4, "exec sh -c 'test $OSMOSIS_WORKER_TICKET = a-ticket'")
    ray.jobs.start(repeated, "a-ticket")
    ray.jobs.start(repeated, "a-ticket")  # as after a lost reply
    assert ended(ray, repeated).message == message_of(repeated, "its worker ended with 0")

    large = job_of(ray, 5, "exec true", gpus=8)
    ray.jobs.start(large, "a-ticket")
    assert ray.jobs.shortage(large) == "waits for 8 GPUs, the cluster has 0"
    ray.jobs.stop(large)
    stopped = job_of(ray, 6, "exec sleep 600")
    ray.jobs.start(stopped, "a-ticket")
    wait_until(lambda: is_running(ray, stopped))
    ray.jobs.stop(stopped)
    assert ended(ray, stopped).message == message_of(stopped, "it was stopped")
    assert {job.id for job in ray.jobs.list()} == {f"osm-shd-{number}-a" for number in range(1, 7)}
    assert ray.jobs.state(job_of(ray, 7, "exec true")) is None


def test_a_lost_node_and_a_lost_head_are_noticed(ray: RealRay) -> None:
    ray.start(f"--address=127.0.0.1:{ray.port}", "--num-cpus=1", "--num-gpus=1")
    job = job_of(ray, 1, "exec sleep 600", gpus=1)
    wait_until(lambda: "cluster has" not in ray.jobs.shortage(job))
    wait_until(lambda: is_accepted(ray, job))
    wait_until(lambda: is_running(ray, job))
    (raylet,) = set(ray.processes("raylet/raylet")) & set(ray.processes("GPU,1"))
    os.kill(raylet, signal.SIGKILL)
    assert ended(ray, job) == JobState(job.id, "ended", message_of(job, "its node was lost"))
    assert ray.processes("sleep\x00600") == []

    ray.kill("gcs/gcs_server")
    with pytest.raises(RayError):
        wait_until(lambda: ray.jobs.list() is None)

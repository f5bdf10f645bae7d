"""The client of Ray's Jobs API against a real head and a second node, where Ray is installed (`pip install ".[ray]"`)."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.platform.runs.execute.executor import JobState, WantedJob
from osmosis_ai.platform.runs.execute.ray_jobs import RayError, RayJobs
from tests.platform.evaluations import wait_until
from tests.platform.runs.execute.real_ray import RAY, RealRay

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.slow]


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


def ended(ray: RealRay, job: WantedJob) -> JobState:
    def state() -> JobState | None:
        found = ray.jobs.state(job)
        return found if found is not None and found.phase == "ended" else None

    return wait_until(state)


def wanted(ray: RealRay, number: int, command: str, **needs: Any) -> WantedJob:
    """Return a job that runs ``command``."""
    ray.commands[f"run-{number}"] = command
    return WantedJob(f"osm-run-{number}-1", f"run-{number}", **needs)


def is_taken(ray: RealRay, job: WantedJob) -> bool:
    """Submit a job as the executor does: a head that has just got a node may take its time."""
    try:
        ray.jobs.start(job, "a-ticket")
    except RayError as error:
        print(error.message)  # why, where this goes on until the test gives up
        return False
    return True


def is_running(ray: RealRay, job: WantedJob) -> bool:
    found = ray.jobs.state(job)
    return found is not None and found.phase == "running"


def test_a_real_cluster_answers_as_the_recorded_one(ray: RealRay) -> None:
    other = ray.directory / "other"
    other.write_text("a-token-of-another-cluster-altogether")
    with pytest.raises(RayError, match="refuses the token"):
        RayJobs(replace(ray.cluster, token_file=other), str).list()
    with pytest.raises(RayError, match="asks for a token"):
        RayJobs(replace(ray.cluster, token_file=None), str).list()

    commands = {
        "exec sh -c 'exit 7'": ("its worker ended with 7", "run"),
        "exec no-such-program": ("the node has no command `osmosis` on the PATH of its Ray", "run"),
        "exec true": ("its worker ended with 0", "nobody"),
    }
    for number, (command, (ending, fault)) in enumerate(commands.items(), start=1):
        job = wanted(ray, number, command, cpus=0.5)
        ray.jobs.start(job, "a-ticket")
        state = ended(ray, job)
        assert (state.told, state.fault) == (f"the Ray job {job.id} has ended: {ending}", fault)
    told = wanted(ray, 4, "exec sh -c 'test $OSMOSIS_WORKER_TICKET = a-ticket'")
    ray.jobs.start(told, "a-ticket")
    ray.jobs.start(told, "a-ticket")  # as after an answer that got lost
    assert ended(ray, told).fault == "nobody"

    large = wanted(ray, 5, "exec true", gpus=8)
    ray.jobs.start(large, "a-ticket")
    assert ray.jobs.shortage(large) == "waits for 8 GPUs, the cluster has 0"
    ray.jobs.stop(large)
    stopped = wanted(ray, 6, "exec sleep 600")
    ray.jobs.start(stopped, "a-ticket")
    wait_until(lambda: is_running(ray, stopped))
    ray.jobs.stop(stopped)
    assert ended(ray, stopped).told.endswith("it was stopped")
    assert {job.id for job in ray.jobs.list()} == {f"osm-run-{number}-1" for number in range(1, 7)}
    assert ray.jobs.state(wanted(ray, 7, "exec true")) is None


def test_a_lost_node_and_a_lost_head_are_noticed(ray: RealRay) -> None:
    ray.start(f"--address=127.0.0.1:{ray.port}", "--num-cpus=1", "--num-gpus=1")
    job = wanted(ray, 1, "exec sleep 600", gpus=1)
    wait_until(lambda: "cluster has" not in ray.jobs.shortage(job))
    wait_until(lambda: is_taken(ray, job))
    wait_until(lambda: is_running(ray, job))
    (raylet,) = set(ray.processes("raylet/raylet")) & set(ray.processes("GPU,1"))
    os.kill(raylet, signal.SIGKILL)
    lost = ended(ray, job)
    assert (lost.told, lost.fault) == (f"the Ray job {job.id} has ended: its node was lost", "nobody")
    assert ray.processes("sleep\x00600") == []

    ray.kill("gcs/gcs_server")
    with pytest.raises(RayError):
        wait_until(lambda: ray.jobs.list() is None)

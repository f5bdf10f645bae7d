"""Runs on a Ray cluster, from the submission of their jobs to the end; the cluster replies like a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import (
    PlatformConfig,
    RayCluster,
    from_environment,
    ray_cluster,
    require_usable_cluster,
)
from osmosis_ai.platform.ray_jobs import Job, RayError, RayLauncher
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import Code, add_dataset, put_mirror, read_commits_once
from tests.platform.fake_ray import ADDRESS, TIMEOUT, TOKEN, FakeRay
from tests.platform.fake_worker import EVALS, FakeWorker, Refused, claim, settle

TICKET = "ticket-for-one-attempt"
JOB = Job("osm-shd_1-a", "shd_1", "run_1", 2, 1, 1.5)
HAS_ENDED = "the Ray job osm-shd_1-a has ended: "
SEE_LOGS = "; see `ray job logs osm-shd_1-a`"
UNREACHABLE = f"the Ray cluster at {ADDRESS} cannot be reached: timed out."


# -- the Jobs API ----------------------------------------------------------------------------------


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


def test_an_open_cluster_receives_no_job_and_no_token(ray: FakeRay, tmp_path: Path) -> None:
    ray.is_open = True
    with pytest.raises(RayError, match="answers without a token") as refused:
        ray.client(tmp_path).start(JOB, TICKET)
    assert "RAY_AUTH_MODE=token" in (refused.value.hint or "")
    assert {request.url.path for request in ray.requests} == {"/api/version"}
    assert not any("authorization" in request.headers for request in ray.requests)
    ray.client(tmp_path, token_file=None, allow_open=True).start(JOB, TICKET)
    assert JOB.id in ray.jobs


def test_a_cluster_is_checked_again_after_an_outage(ray: FakeRay, tmp_path: Path) -> None:
    jobs = ray.client(tmp_path)
    assert jobs.list() == jobs.list() == []
    assert sum(request.url.path == "/api/version" for request in ray.requests) == 1
    ray.fault = TIMEOUT
    with pytest.raises(RayError, match="timed out"):
        jobs.list()
    ray.fault, ray.is_open = None, True
    with pytest.raises(RayError, match="answers without a token"):
        jobs.list()


def test_a_refused_token_is_not_shown(ray: FakeRay, tmp_path: Path) -> None:
    jobs = ray.client(tmp_path)
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


def test_a_refusal_is_shown_without_the_ticket(ray: FakeRay, tmp_path: Path) -> None:
    reply = httpx.Response(400, text=f"Traceback\n  line 1\nValueError: {TICKET} {TOKEN}\n")
    ray.submit_fault = reply, False
    with pytest.raises(RayError) as refused:
        ray.client(tmp_path).start(JOB, TICKET)
    assert refused.value.message.endswith("did not take a job: 400 ValueError: [REDACTED] [REDACTED].")


@pytest.mark.parametrize(
    ("answer", "phase", "ending", "is_failure"),
    [
        ("pending", "waiting", "", False),
        ("running", "running", "", False),
        ("succeeded", "ended", "its worker ended with 0", True),
        ("failed_7", "ended", "its worker ended with 7", True),
        ("failed_127", "ended", "the node has no command `osmosis` on the PATH of its Ray", True),
        ("stopped", "ended", "it was stopped", False),
        ("node_lost", "ended", "its node was lost", False),
        ("start_timeout", "ended", "no node had room for it in time", False),
    ],
)
def test_every_state_of_a_job(
    ray: FakeRay, tmp_path: Path, answer: str, phase: str, ending: str, is_failure: bool
) -> None:
    ray.jobs[JOB.id] = answer
    state = ray.client(tmp_path).state(JOB)
    assert state is not None
    message = f"{HAS_ENDED}{ending}{SEE_LOGS}" if ending else ""
    assert (state.phase, state.message, state.is_failure) == (phase, message, is_failure)


@pytest.mark.parametrize(
    ("needs", "waits"),
    [
        ({"gpus": 8}, "waits for 8 GPUs (the cluster has 1)"),
        ({"cpus": 3.0}, "waits for a node with 3 CPUs (the largest has 2)"),
        ({"memory_gb": 1024.0}, "waits for 1024 GiB of memory (the cluster has 24.9 GiB)"),
        ({"cpus": 2.0, "gpus": 1}, "waits for a node with 2 CPUs and 1 GPU, but no node has both"),
        ({"gpus": 1}, "waits for a node of the Ray cluster to have room"),
    ],
)
def test_a_shortage_is_named(ray: FakeRay, tmp_path: Path, needs: dict[str, Any], waits: str) -> None:
    assert ray.client(tmp_path).shortage(Job(JOB.id, "shd_1", "run_1", **needs)) == waits


def test_an_invalid_reply_is_an_error(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.platform.ray_jobs._LARGEST_REPLY_BYTES", 1000)
    jobs = ray.client(tmp_path)
    assert jobs.list() == []
    for body in ("", "no json", "{}", '[{"status": 1}]', '{"data": {"result": {"result": "no"}}}'):
        ray.fault = httpx.Response(200, text=body)
        for ask in (jobs.list, lambda: jobs.state(JOB), lambda: jobs.shortage(JOB)):
            with pytest.raises(RayError, match="does not answer like Ray's Jobs API"):
                ask()
    ray.fault = httpx.Response(200, text="[" + " " * 2000)
    with pytest.raises(RayError, match="too large or too slow"):
        jobs.list()


# -- settings --------------------------------------------------------------------------------------

GOOD = {"OSMOSIS_EXECUTOR": "ray", "OSMOSIS_RAY_ADDRESS": "127.0.0.1:8265", "OSMOSIS_RAY_TOKEN_FILE": "/t"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"OSMOSIS_EXECUTOR": "slurm"}, "OSMOSIS_EXECUTOR must be local or ray: 'slurm'"),
        ({"OSMOSIS_RAY_ADDRESS": ""}, "OSMOSIS_RAY_ADDRESS must be the address"),
        ({"OSMOSIS_RAY_ADDRESS": "ray://head:10001"}, "OSMOSIS_RAY_ADDRESS is not the address"),
        ({"OSMOSIS_RAY_ADDRESS": "https://me:hush@head"}, "OSMOSIS_RAY_ADDRESS is not the address"),
        ({"OSMOSIS_RAY_ADDRESS": "http://head:8265"}, "OSMOSIS_RAY_ADDRESS uses plain http"),
        ({"OSMOSIS_RAY_TOKEN_FILE": ""}, "OSMOSIS_RAY_TOKEN_FILE must name the file"),
        ({"OSMOSIS_RAY_ALLOW_OPEN": "yes"}, "OSMOSIS_RAY_ALLOW_OPEN must be 1 or 0: 'yes'"),
    ],
)
def test_an_unusable_setting_is_refused(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(OsmosisError, match=problem) as refused:
        from_environment({**GOOD, **changes})
    assert "hush" not in refused.value.message


def test_a_cluster_whose_nodes_cannot_reach_the_platform_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    remote = {"OSMOSIS_RAY_ADDRESS": "https://ray.example.com", "OSMOSIS_RAY_TOKEN_FILE": str(file)}
    cluster = ray_cluster({**GOOD, **remote})
    assert cluster is not None
    unreachable = r"cannot reach the platform at http://127\.0\.0\.1:8733"
    with pytest.raises(OsmosisError, match=unreachable) as refused:
        require_usable_cluster(cluster, "http://127.0.0.1:8733")
    assert "--public-url" in (refused.value.hint or "")
    require_usable_cluster(cluster, "https://osmosis.example.com")
    file.unlink()
    with pytest.raises(OsmosisError, match="cannot be read"):
        require_usable_cluster(cluster, "https://osmosis.example.com")


# -- runs ------------------------------------------------------------------------------------------


@pytest.fixture
def config(config: PlatformConfig) -> PlatformConfig:
    return replace(config, ray=RayCluster(ADDRESS))


@pytest.fixture
def member(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Member:
    read_commits_once(monkeypatch)
    found = world.member(clone_url=str(Code(tmp_path / "code").path))
    add_dataset(world, found)
    put_mirror(world, found)
    return found


class Cluster:
    """A cluster, a launcher and runs."""

    def __init__(self, world: World, clock: ManualClock, api: TestClient, home: Path) -> None:
        self.world, self.clock, self.api, self.home = world, clock, api, home
        self.ray = FakeRay()
        self.launcher = self.restart()

    def restart(self, slots: int = 100) -> RayLauncher:
        """Replace the launcher, like a platform that starts again."""
        jobs = self.ray.client(self.home, self.clock.monotonic)
        queue, access = self.world.services.queue, self.world.services.worker_access
        self.launcher = RayLauncher(queue, access, jobs, slots=slots, monotonic=self.clock.monotonic)
        return self.launcher

    def submit(self, **execution: Any) -> str:
        """Submit an evaluation; return its id."""
        reply = EVALS.taken(self.api, advanced_config={"execution": execution} if execution else {})
        settle(self.world)
        return str(reply["id"])

    def rounds(self, seconds: float = 0.0) -> None:
        """Let time pass, with a round every ten seconds and one at the end."""
        while seconds > 0:
            step = min(10.0, seconds)
            self.clock.advance(step)
            self.launcher.round()
            seconds -= step
        self.launcher.round()

    @property
    def job(self) -> str:
        """The newest job."""
        return list(self.ray.bodies)[-1]

    def claim(self) -> FakeWorker:
        """Claim with the ticket of the newest job, which begins to run."""
        self.ray.jobs[self.job] = "running"
        ticket = self.ray.ticket(self.job)
        assignment = claim(self.world, ticket)
        assert assignment is not None
        return FakeWorker(self.world, assignment, ticket)

    def assert_ticket_void(self, job: str) -> None:
        with pytest.raises(Refused) as refused:
            claim(self.world, self.ray.ticket(job))
        assert refused.value.code == "TICKET_VOID"

    def show(self, run_id: str) -> dict[str, Any]:
        """Return the run as clients see it."""
        detail = self.api.get(f"/api/cli/eval-runs/{run_id}").json()
        return {**detail["eval_run"], "waits": detail.get("waits")}

    def log(self, run_id: str) -> list[str]:
        page = self.world.services.logs.page(run_id, limit=500, direction="newer")
        return [line.message or "" for line in page.logs]


@pytest.fixture
def cluster(world: World, clock: ManualClock, api: TestClient, tmp_path: Path) -> Cluster:
    return Cluster(world, clock, api, tmp_path)


def test_a_run_becomes_a_job_and_its_ticket_claims_it(cluster: Cluster) -> None:
    run = cluster.submit(cpus=2, gpus=1, memory_gb=4)
    cluster.rounds()
    (body,) = cluster.ray.bodies.values()
    ticket = cluster.ray.ticket(cluster.job)
    assert body == {
        "entrypoint": f"exec osmosis platform worker --run {run} --url https://osmosis.example "
        "--token-env OSMOSIS_WORKER_TICKET --cpus 2",
        "submission_id": cluster.job,
        "entrypoint_num_cpus": 2,
        "entrypoint_num_gpus": 1,
        "entrypoint_memory": 4 << 30,
        "runtime_env": {"env_vars": {"OSMOSIS_WORKER_TICKET": ticket}},
    }
    worker = cluster.claim()
    cluster.rounds(20)
    worker.records(3)
    worker.finishes()
    cluster.ray.set_all("succeeded")
    cluster.rounds(20)
    assert cluster.show(run)["status"] == "finished"
    assert cluster.log(run).count(f"submitted to the Ray cluster as {cluster.job}") == 1
    assert len(cluster.ray.jobs) == 1 and cluster.ray.stopped == []
    cluster.assert_ticket_void(cluster.job)


def test_each_worker_of_a_run_is_a_job_and_slots_limit_them(cluster: Cluster) -> None:
    cluster.restart(slots=2)
    cluster.submit(workers=3)
    cluster.rounds()
    assert len(cluster.ray.bodies) == 2
    claimed = []
    for job in list(cluster.ray.bodies):
        assignment = claim(cluster.world, cluster.ray.ticket(job))
        assert assignment is not None
        claimed.append(FakeWorker(cluster.world, assignment))
    assert {worker.assignment.shard.number for worker in claimed} == {0, 1}
    cluster.ray.set_all("running")
    claimed[0].records(1)
    claimed[0].finishes()
    cluster.rounds()
    assert len(cluster.ray.bodies) == 2
    cluster.ray.jobs[next(iter(cluster.ray.jobs))] = "succeeded"
    cluster.rounds()
    assert cluster.claim().assignment.shard.number == 2


def test_jobs_that_a_restarted_head_has_forgotten_are_submitted_again(cluster: Cluster) -> None:
    run = cluster.submit()
    cluster.rounds()
    first = cluster.job
    cluster.ray.set_all("running")
    cluster.rounds()
    cluster.ray.fault = TIMEOUT
    cluster.rounds(70)
    cluster.ray.fault = None
    cluster.ray.jobs.clear()
    cluster.rounds(20)
    assert cluster.job != first and list(cluster.ray.jobs) == [cluster.job]
    assert any("is not known to the cluster any more" in line for line in cluster.log(run))
    cluster.assert_ticket_void(first)
    assert cluster.claim().assignment.lease.attempt == 1


def test_an_unreachable_cluster_is_explained_and_fails_no_run(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    running = cluster.submit()
    cluster.rounds()
    worker = cluster.claim()
    waiting = cluster.submit()
    cluster.ray.fault = TIMEOUT
    for _ in range(4):
        worker.sync()
        cluster.rounds(20)
    assert cluster.log(waiting).count(UNREACHABLE) == 1
    assert UNREACHABLE not in cluster.log(running)
    assert cluster.show(waiting)["waits"] == UNREACHABLE
    assert [message for message in caplog.messages if "cannot be reached" in message] == [
        f"the launcher of Ray jobs waits: {UNREACHABLE} (its runs continue when it answers again)"
    ]
    cluster.ray.fault = None
    cluster.rounds()
    assert caplog.messages[-1] == "the Ray cluster answers again"
    assert cluster.show(waiting)["waits"] is None
    assert list(cluster.ray.jobs.values()) == ["running", "pending"]
    assert worker.sync().stop is False


def test_a_job_that_waits_long_is_explained(cluster: Cluster) -> None:
    run = cluster.submit(gpus=8)
    cluster.rounds(50)
    assert cluster.show(run)["waits"] is None
    cluster.rounds(60)
    why = f"the Ray job {cluster.job} waits for 8 GPUs (the cluster has 1)."
    assert cluster.show(run)["waits"] == why
    assert cluster.log(run).count(why) == 1
    cluster.ray.fault = TIMEOUT
    cluster.rounds(70)
    assert cluster.show(run)["waits"] == UNREACHABLE
    cluster.ray.fault = None
    cluster.rounds(10)
    assert cluster.show(run)["waits"] == why


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_submission_without_a_reply_makes_one_job(cluster: Cluster, is_accepted: bool) -> None:
    run = cluster.submit()
    cluster.ray.submit_fault = TIMEOUT, is_accepted
    cluster.rounds()
    cluster.ray.submit_fault = None
    cluster.rounds(20)
    assert len(cluster.ray.jobs) == 1
    assert not any("not known" in line for line in cluster.log(run))
    assert cluster.claim().run_id == run


def test_a_run_that_stops_while_its_job_waits(cluster: Cluster) -> None:
    run = cluster.submit()
    cluster.rounds()
    cluster.api.post(f"/api/cli/eval-runs/{run}/stop")
    cluster.rounds()
    assert cluster.show(run)["status"] == "stopped"
    assert cluster.ray.stopped == [cluster.job]
    cluster.assert_ticket_void(cluster.job)


def test_a_job_that_does_not_stop_in_time_is_stopped_by_the_cluster(cluster: Cluster) -> None:
    run = cluster.submit()
    cluster.rounds()
    worker = cluster.claim()
    cluster.api.post(f"/api/cli/eval-runs/{run}/stop")
    for _ in range(11):
        assert worker.sync().stop
        cluster.rounds(10)
    assert cluster.ray.stopped == []
    cluster.rounds(20)
    assert set(cluster.ray.stopped) == {cluster.job}
    cluster.ray.set_all("stopped")
    cluster.rounds()
    settle(cluster.world)
    assert cluster.show(run)["status"] == "stopped"
    assert len(cluster.ray.jobs) == 1


def test_a_platform_that_starts_again_finds_its_jobs(cluster: Cluster) -> None:
    run = cluster.submit()
    cluster.rounds()
    worker = cluster.claim()
    worker.records(1)
    cluster.ray.jobs["osm-shd_of_another_platform-3"] = cluster.ray.jobs["a-job-of-a-user"] = "running"
    cluster.restart()
    for _ in range(6):
        worker.sync()
        cluster.rounds(10)
    assert len(cluster.ray.bodies) == 1
    cluster.ray.set_all("failed_7")
    cluster.rounds(20)
    assert len(cluster.ray.bodies) == 2 and cluster.ray.stopped == []
    assert cluster.show(run)["status"] == "running"
    assert cluster.claim().assignment.lease.attempt == 2


def test_jobs_that_end_without_progress_fail_the_run_in_the_end(cluster: Cluster) -> None:
    run = cluster.submit()
    for _ in range(3):
        assert cluster.show(run)["status"] == "pending"
        cluster.rounds(100)
        cluster.ray.set_all("failed_127")
    cluster.rounds()
    settle(cluster.world)
    ended = cluster.show(run)
    assert ended["status"] == "failed"
    assert ended["error"] == (
        f"the Ray job {cluster.job} has ended: the node has no command `osmosis` on the PATH of its Ray; see `ray job "
        f"logs {cluster.job}`; 3 workers in a row failed without progress. See the run's log, then submit it again."
    )
    cluster.rounds(400)
    assert len(cluster.ray.jobs) == 3

"""What is asked of a Ray cluster, and what its answers are taken for; the answers are those of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import RAY_SLOTS, from_environment
from osmosis_ai.platform.ray_cluster import RayCluster, ray_cluster, require_usable_cluster
from osmosis_ai.platform.runs.execute import ray_jobs
from osmosis_ai.platform.runs.execute.executor import WantedJob, job_id, run_and_number
from osmosis_ai.platform.runs.execute.ray_jobs import RayError
from tests.platform.runs.execute.recorded_ray import TOKEN, RecordedRay, recorded

TICKET = "ticket-for-one-attempt"
ENDED = "the Ray job osm-run_1-1 has ended: "
JOB = WantedJob("osm-run_1-1", "run_1", 2, 1, 1.5)


@pytest.fixture
def ray() -> RecordedRay:
    return RecordedRay()


def test_a_job_asks_for_what_its_run_needs_and_carries_a_ticket_and_nothing_else(
    ray: RecordedRay, tmp_path: Path
) -> None:
    jobs = ray.jobs_of(tmp_path)
    jobs.start(JOB, TICKET)
    assert ray.bodies["osm-run_1-1"] == {
        "entrypoint": "exec osmosis platform worker --run run_1 --url https://osmosis.example "
        "--token-env OSMOSIS_WORKER_TICKET --cpus 2",
        "submission_id": "osm-run_1-1",
        "entrypoint_num_cpus": 2,
        "entrypoint_num_gpus": 1,
        "entrypoint_memory": 3 << 29,
        "runtime_env": {"env_vars": {"OSMOSIS_WORKER_TICKET": "ticket-for-one-attempt"}},
    }


def test_a_cluster_that_answers_without_a_token_is_sent_nothing_unless_that_is_allowed(
    ray: RecordedRay, tmp_path: Path
) -> None:
    ray.is_open = True
    with pytest.raises(RayError, match="answers without a token") as refused:
        ray.jobs_of(tmp_path).start(JOB, TICKET)
    assert "RAY_AUTH_MODE=token" in (refused.value.hint or "")
    assert {request.url.path for request in ray.requests} == {"/api/version"}
    assert not any("authorization" in request.headers for request in ray.requests)
    ray.jobs_of(tmp_path, token_file=None, allow_open=True).start(JOB, TICKET)
    assert "osm-run_1-1" in ray.jobs


def test_whether_the_cluster_asks_for_a_token_is_looked_at_again_after_every_trouble(
    ray: RecordedRay, tmp_path: Path
) -> None:
    jobs = ray.jobs_of(tmp_path)
    assert jobs.list() == jobs.list() == []
    assert sum(request.url.path == "/api/version" for request in ray.requests) == 1
    ray.trouble = httpx.ReadTimeout("slow")
    with pytest.raises(RayError, match="timed out"):
        jobs.list()
    ray.trouble, ray.is_open = None, True
    with pytest.raises(RayError, match="answers without a token"):
        jobs.list()


def test_a_wrong_token_is_refused_without_being_shown_and_a_new_one_counts_at_once(
    ray: RecordedRay, tmp_path: Path
) -> None:
    jobs = ray.jobs_of(tmp_path)
    file = tmp_path / "ray-token"
    file.write_text("a-token-of-another-cluster")
    with pytest.raises(RayError, match=f"refuses the token in {file}") as refused:
        jobs.list()
    assert "another" not in refused.value.message
    file.write_text(TOKEN)
    assert jobs.list() == []


@pytest.mark.parametrize("content", ["", "two words", "ümlaut", "a\nb", "x" * 5000])
def test_a_file_without_a_token_is_named_and_not_quoted(
    ray: RecordedRay, tmp_path: Path, content: str
) -> None:
    jobs = ray.jobs_of(tmp_path)
    (tmp_path / "ray-token").write_text(content)
    with pytest.raises(RayError, match="holds no token"):
        jobs.list()


def test_a_token_file_that_is_gone_is_said(ray: RecordedRay, tmp_path: Path) -> None:
    with pytest.raises(RayError, match=r"cannot be read from .*gone: No such file"):
        ray.jobs_of(tmp_path, token_file=tmp_path / "gone").list()


@pytest.mark.parametrize("trouble", [httpx.ReadTimeout("slow"), recorded("submitted_twice")])
def test_a_submit_that_failed_on_the_way_counts_when_the_cluster_has_the_job(
    ray: RecordedRay, tmp_path: Path, trouble: Exception | httpx.Response
) -> None:
    ray.submit_trouble = trouble, True
    ray.jobs_of(tmp_path).start(JOB, TICKET)
    ray.jobs.clear()
    ray.submit_trouble = trouble, False
    with pytest.raises(RayError):
        ray.jobs_of(tmp_path).start(JOB, TICKET)


def test_a_head_that_answers_and_takes_no_job_is_not_said_to_be_unreachable(
    ray: RecordedRay, tmp_path: Path
) -> None:
    ray.submit_trouble = httpx.ReadTimeout("slow"), False
    with pytest.raises(
        RayError, match=r"answers, but did not take a job \(timed out\).*dashboard_agent"
    ) as failed:
        ray.jobs_of(tmp_path).start(JOB, TICKET)
    assert "--dashboard-agent-listen-port" in (failed.value.hint or "")
    ray.trouble = httpx.ConnectError("refused")
    with pytest.raises(RayError, match=r"cannot be reached: refused"):
        ray.jobs_of(tmp_path).start(JOB, TICKET)


def test_what_the_cluster_says_of_a_refused_job_is_its_last_line_without_the_ticket(
    ray: RecordedRay, tmp_path: Path
) -> None:
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
        ("succeeded", "ended", f"{ENDED}its worker ended with 0", "nobody"),
        ("failed_7", "ended", f"{ENDED}its worker ended with 7", "run"),
        ("failed_80", "ended", "", "nobody"),
        ("failed_127", "ended", f"{ENDED}the node has no command `osmosis` on the PATH of its Ray", "run"),
        ("stopped", "ended", f"{ENDED}it was stopped", "nobody"),
        ("node_lost", "ended", f"{ENDED}its node was lost", "nobody"),
        ("start_timeout", "ended", f"{ENDED}no node had room for it in time", "nobody"),
    ],
)
def test_every_state_of_a_job_is_told_from_the_others(
    ray: RecordedRay, tmp_path: Path, answer: str, phase: str, told: str, fault: str
) -> None:
    ray.jobs["osm-run_1-1"] = answer
    state = ray.jobs_of(tmp_path).state(JOB)
    assert state is not None
    assert (state.phase, state.told, state.fault) == (phase, told, fault)


def test_a_job_that_is_not_known_has_no_state_and_needs_no_stop(ray: RecordedRay, tmp_path: Path) -> None:
    jobs = ray.jobs_of(tmp_path)
    assert jobs.state(JOB) is None
    jobs.stop(JOB)


def test_only_jobs_of_platforms_are_listed(ray: RecordedRay, tmp_path: Path) -> None:
    ray.jobs = {"osm-run_1-12": "running", "raysubmit_x": "running", "osm-strange": "pending"}
    assert [job.id for job in ray.jobs_of(tmp_path).list()] == ["osm-run_1-12"]
    assert run_and_number(job_id("run_1", 12)) == ("run_1", 12)
    assert [run_and_number(text) for text in ("osm-", "osm--1", "osm-x-²", "other-x-1")] == [None] * 4


@pytest.mark.parametrize(
    ("needs", "waits"),
    [
        ({"gpus": 8}, "waits for 8 GPUs, the cluster has 1"),
        ({"cpus": 3.0}, "waits for a node with 3 CPUs, the largest has 2"),
        ({"memory_gb": 1024.0}, "waits for 1024 GiB of memory, the cluster has 24.9 GiB"),
        (
            {"cpus": 2.0, "gpus": 1},
            "waits for a node with 2 CPUs and 1 GPU, and none has all of it",
        ),
        ({"gpus": 1}, "waits for a node of the Ray cluster to have room"),
    ],
)
def test_what_a_job_waits_for_is_said_in_words(
    ray: RecordedRay, tmp_path: Path, needs: dict[str, Any], waits: str
) -> None:
    assert ray.jobs_of(tmp_path).shortage(WantedJob("osm-run_1-1", "run_1", **needs)) == waits


def test_a_node_that_was_lost_has_nothing_to_offer(ray: RecordedRay, tmp_path: Path) -> None:
    ray.nodes = "one_node_lost"
    assert (
        ray.jobs_of(tmp_path).shortage(WantedJob("osm-run_1-1", "run_1", gpus=1))
        == "waits for 1 GPU, the cluster has 0"
    )


@pytest.mark.parametrize(
    "body", ["", "no json", "{}", '[{"status": 1}]', json.dumps({"data": {"result": {"result": "no"}}})]
)
def test_an_answer_that_is_none_of_rays_is_a_sentence(ray: RecordedRay, tmp_path: Path, body: str) -> None:
    jobs = ray.jobs_of(tmp_path)
    assert jobs.list() == []
    ray.trouble = httpx.Response(200, text=body)
    for ask in (jobs.list, lambda: jobs.state(JOB), lambda: jobs.shortage(JOB)):
        with pytest.raises(RayError, match="as Ray's Jobs API does"):
            ask()


def test_something_that_is_no_ray_is_said_to_be_none(ray: RecordedRay, tmp_path: Path) -> None:
    ray.trouble = httpx.Response(302, headers={"location": "https://elsewhere.example"})
    with pytest.raises(RayError, match="does not do its part: 302"):
        ray.jobs_of(tmp_path).list()


def test_an_endless_answer_is_not_read_to_its_end(
    ray: RecordedRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "_LARGEST_REPLY_BYTES", 1000)
    jobs = ray.jobs_of(tmp_path)
    assert jobs.list() == []
    ray.trouble = httpx.Response(200, text="[" + " " * 2000)
    with pytest.raises(RayError, match="more than can be read"):
        jobs.list()


GOOD = {"OSMOSIS_EXECUTOR": "ray", "OSMOSIS_RAY_ADDRESS": "127.0.0.1:8265", "OSMOSIS_RAY_TOKEN_FILE": "/t"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"OSMOSIS_EXECUTOR": "slurm"}, "OSMOSIS_EXECUTOR must be local or ray, and is 'slurm'"),
        ({"OSMOSIS_RAY_ADDRESS": ""}, "OSMOSIS_RAY_ADDRESS must say where"),
        ({"OSMOSIS_RAY_ADDRESS": "ray://head:10001"}, "OSMOSIS_RAY_ADDRESS is no address"),
        ({"OSMOSIS_RAY_ADDRESS": "https://me:hush@head"}, "OSMOSIS_RAY_ADDRESS is no address"),
        ({"OSMOSIS_RAY_ADDRESS": "http://head:8265"}, "OSMOSIS_RAY_ADDRESS is plain http"),
        ({"OSMOSIS_RAY_TOKEN_FILE": ""}, "OSMOSIS_RAY_TOKEN_FILE must name the file"),
        ({"OSMOSIS_RAY_ALLOW_OPEN": "yes"}, "OSMOSIS_RAY_ALLOW_OPEN must be 1 or 0, and is 'yes'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_a_sentence_at_the_start(
    changes: dict[str, str], problem: str
) -> None:
    with pytest.raises(OsmosisError, match=problem) as refused:
        from_environment({**GOOD, **changes})
    assert "hush" not in refused.value.message


def test_a_platform_without_these_settings_executes_runs_itself() -> None:
    assert from_environment({}).ray is None
    assert from_environment({}).executor_shown == "this machine, 2 at a time"
    config = from_environment(GOOD)
    assert config.ray == RayCluster("http://127.0.0.1:8265", Path("/t"))
    assert config.executor_slots == RAY_SLOTS
    assert config.executor_shown == "the Ray cluster at http://127.0.0.1:8265, 100 at a time"


def test_settings_of_a_cluster_that_nobody_uses_and_a_token_that_all_can_read_are_warnings(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    env = {**GOOD, "OSMOSIS_RAY_TOKEN_FILE": str(file)}
    assert from_environment(env).warnings == ()
    file.chmod(0o644)
    assert from_environment(env).warnings == (
        f"every user of this machine can read {file}, and the Ray cluster is theirs with it: chmod 600 {file}",
    )
    assert from_environment({**env, "OSMOSIS_EXECUTOR": "local"}).warnings == (), "somebody has chosen"
    [told] = from_environment({**env, "OSMOSIS_EXECUTOR": ""}).warnings
    assert told.startswith(
        "OSMOSIS_RAY_ADDRESS and OSMOSIS_RAY_TOKEN_FILE are set and OSMOSIS_EXECUTOR is not: runs execute on"
    )


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

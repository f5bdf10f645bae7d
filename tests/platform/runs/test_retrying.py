"""Retries of evaluation runs over HTTP: which attempts run again, what they replace, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

from fastapi.testclient import TestClient

from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import Code, Samples, add_dataset, experiment
from tests.platform.fake_worker import EVALS, FakeWorker
from tests.platform.viewer.runs_world import change_run

RUNS = EVALS.route
PASSED: dict[str, Any] = {"status": "success", "reward": 1.0}
MISSED: dict[str, Any] = {"status": "success", "reward": 0.0}
FAILED: dict[str, Any] = {"status": "failed", "boundary": "provider", "error_type": "timeout"}
UNSCORED: dict[str, Any] = {"status": "success", "reward": None}
SKIPPED: dict[str, Any] = {"status": "skipped"}
# Three rows, two attempts each; the last attempt was never made.
FIRST: Samples = {(0, 0): PASSED, (0, 1): FAILED, (1, 0): MISSED, (1, 1): UNSCORED, (2, 0): SKIPPED}


def ended(api: TestClient, world: World, samples: Samples = FIRST, **changes: Any) -> dict[str, Any]:
    run = EVALS.taken(api, **changes)
    worker = FakeWorker.claims(world, run_id=run["id"])
    if samples:
        worker.write([record(*place, **{"reward": None, **known}) for place, known in samples.items()])
        files = [worker.conversation(*place, b"first") for place in samples]
        worker.sync(journal=worker.part(), files=files)
    worker.finishes("failed", error="it was cut short")
    return run


def retry(api: TestClient, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Retry a run; asked beforehand, the platform agrees."""
    told = api.post(f"{RUNS}/{name}/retry/check", json=body or {})
    assert told.status_code == 200, told.text
    reply = api.post(f"{RUNS}/{name}/retry", json=body or {})
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


def refused(api: TestClient, name: str, status: int, code: str, body: dict[str, Any] | None = None) -> str:
    """Retry what must be refused, and return why; asked beforehand, the platform says the same."""
    told = assert_flat_error(api.post(f"{RUNS}/{name}/retry/check", json=body or {}), status, code)
    assert assert_flat_error(api.post(f"{RUNS}/{name}/retry", json=body or {}), status, code) == told
    return str(told["error"])


def detail_of(api: TestClient, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{RUNS}/{run['id']}").json()
    return found


def journal_of(api: TestClient, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Download the records of a run."""
    items = {"items": [{"path": "events.jsonl"}]}
    [file] = api.post(f"{RUNS}/{run['id']}/samples/download-urls", json=items).json()["items"]
    return [json.loads(line) for line in api.get(file["url"]).content.splitlines()]


def test_a_retry_repeats_the_attempts_without_a_score(
    api: TestClient, world: World, clock: ManualClock, code: Code
) -> None:
    run = ended(api, world, experiment_config=experiment(branch="main"))
    told = api.post(f"{RUNS}/{run['name']}/retry/check", json={}).json()
    assert told == {
        "eval_run": {"id": run["id"], "name": run["name"]},
        "samples": 3,
        "planned": 6,
        "failed": {"provider": 1},
        "no_reward": 1,
        "missing": 1,
        "commit_sha": code.head,
        "resolved_secret_scopes": {},
    }
    before, commit = detail_of(api, run), code.head
    code.commit("something else")
    clock.advance(60)
    made = retry(api, run["name"])
    assert (made["id"], made["name"], made["status"]) == (run["id"], run["name"], "pending")
    assert (made["workflow_id"], made["retryable_samples"]) == (run["id"], 3)
    found = detail_of(api, run)
    assert (found["commit_sha"], found["config"]) == (commit, before["config"])
    detail = found["eval_run"]
    assert (detail["status"], detail["revision"]) == ("pending", 1) and detail["retried_at"]
    assert not {"error", "completed_at"} & detail.keys()
    assert "it is pending" in refused(api, run["id"], 409, "CONFLICT")
    statuses = ["success", "failed", "success", "success", "skipped"]
    assert [sample["status"] for sample in samples_of(api, run["id"])] == statuses

    worker = FakeWorker.claims(world)
    assert worker.assignment.shard.attempts == [(0, 1), (1, 1), (2, 1)]
    worker.write([record(*place) for place in ((0, 1), (1, 1))])
    worker.sync(journal=worker.part(), files=[worker.conversation(0, 1, b"second")])
    worker.finishes()
    assert [sample["status"] for sample in samples_of(api, run["id"])] == [
        *["success"] * 4,
        "skipped",
        "success",
    ]
    found = detail_of(api, run)
    assert (found["eval_run"]["status"], found["results"]["total_runs"]) == ("finished", 6)
    rewards = [line.get("reward") for line in journal_of(api, run)]
    assert rewards == [1.0, None, 0.0, None, None, 1.0, 1.0, 1.0]
    journals = [key for key in world.stored(f"runs/{run['id']}") if "journal" in key]
    assert len(journals) == 1, "the former journal is deleted"
    # A repeated attempt has no files of the former one.
    files = {"0_run_0": b"first", "0_run_1": b"second", "1_run_0": b"first", "2_run_0": b"first"}
    items = [{"path": f"trajectories/row_{name}.json"} for name in (*files, "1_run_1")]
    urls = api.post(f"{RUNS}/{run['id']}/samples/download-urls", json={"items": items}).json()["items"]
    contents = {each["path"][17:-5]: api.get(each["url"]).content for each in urls}
    assert contents == files


def samples_of(api: TestClient, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"{RUNS}/{run_id}/samples").json()["samples"]
    return found


def test_damaged_journal(api: TestClient, world: World) -> None:
    run = ended(api, world)
    [key] = [key for key in world.stored(f"runs/{run['id']}") if "journal" in key]
    with world.services.blobs.open(key) as stored:
        packed = stored.read()
    for damaged in (b"no journal", packed[:-20], packed[:30] + b"\xff\xff" + packed[32:], gzip.compress(b"")):
        world.store(key, damaged)
        assert "its journal is damaged or missing" in refused(api, run["id"], 409, "CONFLICT")
    change_run(world, run["id"], journal_blob=None)
    assert "its journal is damaged or missing" in refused(api, run["id"], 409, "CONFLICT")
    assert not detail_of(api, run)["eval_run"].get("revision")


def test_personal_secrets_of_another_member(
    api: TestClient, world: World, member: Member, code: Code
) -> None:
    world.put_secret(member, "SEARCH_KEY", "sk-of-mara", "user")
    run = ended(api, world, secrets={"required": ["SEARCH_KEY"]})
    kim = world.member("kim", clone_url=str(code.path))
    mara = retry_check(api, run)
    assert mara.json()["resolved_secret_scopes"] == {"SEARCH_KEY": "user"}
    refusal = assert_flat_error(retry_check(api, run, headers=kim.headers), 409, "CONFLICT")
    assert re.search(r"personal secrets of .* \(SEARCH_KEY\)", refusal["error"])
    given = {"secrets": {"provided": {"SEARCH_KEY": "sk-of-kim"}}}
    told = retry_check(api, run, json=given, headers=kim.headers)
    assert told.json()["resolved_secret_scopes"] == {"SEARCH_KEY": "run"}


def retry_check(api: TestClient, run: dict[str, Any], **options: Any) -> Any:
    return api.post(f"{RUNS}/{run['id']}/retry/check", **{"json": {}, **options})


def test_refusals(api: TestClient, world: World, member: Member, stranger: Member, code: Code) -> None:
    assert "it is pending" in refused(api, EVALS.taken(api)["name"], 409, "CONFLICT")
    run = ended(api, world, {(row, attempt): PASSED for row in range(3) for attempt in range(2)})
    assert "every attempt has a score" in refused(api, run["name"], 409, "CONFLICT")
    refused(api, "nobody", 404, "NOT_FOUND")
    foreign = api.post(f"{RUNS}/{run['id']}/retry", json={}, headers=stranger.headers)
    assert_flat_error(foreign, 404, "NOT_FOUND")
    for body in ([], {"secrets": {"provided": {"A": 3}}}, {"secrets": "x"}):
        assert api.post(f"{RUNS}/{run['id']}/retry", json=body).status_code == 400
    change_run(world, run["id"], imported={"sdk_version": "0.3"})
    refusal = refused(api, run["id"], 409, "CONFLICT")
    assert "was imported" in refusal and f"osmosis eval delete {run['name']}" in refusal


def test_missing_inputs(api: TestClient, world: World, member: Member) -> None:
    run = ended(api, world)
    assert api.delete("/api/cli/datasets/multiply").status_code == 200
    assert "its dataset 'multiply' was deleted" in refused(api, run["id"], 409, "CONFLICT")
    add_dataset(world, member, rows=[{"user_prompt": "2 x 3", "ground_truth": "6"}] * 5)
    assert "its dataset 'multiply' was replaced" in refused(api, run["id"], 409, "CONFLICT")
    assert api.delete("/api/cli/datasets/multiply").status_code == 200
    again = add_dataset(world, member)
    retry(api, run["id"])
    assert detail_of(api, run)["dataset"]["id"] == again.id, "the same bytes were uploaded again"
    assert api.post(f"{RUNS}/{run['id']}/stop", json={}).status_code == 200
    change_run(world, run["id"], commit_sha="f" * 40)
    told = refused(api, run["id"], 400, "INVALID_CONFIG")
    assert told.startswith("this run cannot be submitted")
    change_run(world, run["id"], repository_id=None)
    assert "its repository is no longer connected" in refused(api, run["id"], 409, "CONFLICT")


def test_secrets(api: TestClient, world: World) -> None:
    given = {"required": ["SEARCH_KEY"], "provided": {"SEARCH_KEY": "sk-only-for-this"}}
    run = ended(api, world, secrets=given)
    assert "SEARCH_KEY" in refused(api, run["id"], 404, "SECRETS_NOT_FOUND")
    body = {"secrets": {"provided": {"SEARCH_KEY": "sk-again"}}}
    retry(api, run["id"], body)
    detail = detail_of(api, run)
    assert detail["resolved_secret_scopes"] == {"SEARCH_KEY": "run"} and "sk-again" not in str(detail)
    worker = FakeWorker.claims(world, run_id=run["id"])
    assert worker.assignment.secrets["SEARCH_KEY"].get_secret_value() == "sk-again"
    worker.finishes("failed", error="it was cut short")
    unlisted = {"secrets": {"provided": {"OTHER": "sk-canary"}}}
    assert "sk-canary" not in refused(api, run["id"], 400, "INVALID_CONFIG", unlisted)

"""Retries of evaluation runs over HTTP, as far as that goes without a worker: what they make, what is refused, merging."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.evaluations import Code, Samples, Submits, add_dataset, end_with, submit_body
from tests.platform.platform_parts import DbDataset, DbRepository, DbRun, PlatformServices

RUNS = "/api/cli/eval-runs"
SUBMITS = Submits(RUNS, submit_body)
PASSED: dict[str, Any] = {"status": "success", "reward": 1.0}
MISSED: dict[str, Any] = {"status": "success", "reward": 0.0}
FAILED: dict[str, Any] = {"status": "failed", "boundary": "provider", "error_type": "timeout"}
UNSCORED: dict[str, Any] = {"status": "success", "reward": None}
SKIPPED: dict[str, Any] = {"status": "skipped"}
# Three rows, two attempts each; the last attempt was never made.
FIRST: Samples = {(0, 0): PASSED, (0, 1): FAILED, (1, 0): MISSED, (1, 1): UNSCORED, (2, 0): SKIPPED}


def ended(
    api: TestClient, services: PlatformServices, samples: Samples = FIRST, **changes: Any
) -> dict[str, Any]:
    run = SUBMITS.taken(api, **changes)
    end_with(services, run["id"], samples)
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


def row_of(services: PlatformServices, run_id: str) -> DbRun:
    with services.db.session() as session:
        return session.get_one(DbRun, run_id)


def test_a_retry_repeats_what_has_no_score(api: TestClient, services: PlatformServices, code: Code) -> None:
    run = ended(api, services)
    told = api.post(f"{RUNS}/{run['name']}/retry/check", json={}).json()
    assert told == {
        "eval_run": {"id": run["id"], "name": run["name"], "status": "finished"},
        "samples": 3,
        "planned": 6,
        "failed": {"provider": 1},
        "no_reward": 1,
        "missing": 1,
        "commit_sha": code.head,
        "resolved_secret_scopes": {},
    }
    before = code.head
    code.commit("something else")
    made = retry(api, run["name"])
    assert set(made) == {"id", "name", "status", "created_at", "platform_url"} and made["status"] == "pending"
    original, found = row_of(services, run["id"]), row_of(services, made["id"])
    assert found.retried == [[0, 1], [1, 1], [2, 1]]
    assert (found.commit_sha, found.selection, found.seed) == (before, original.selection, original.seed)
    assert found.request == original.request
    detail = api.get(f"{RUNS}/{made['id']}").json()
    assert detail["retry_of"] == {"id": run["id"], "name": run["name"], "status": "finished"}
    assert (detail["results"]["planned_samples"], detail["commit_sha"]) == (3, before)
    assert api.get(f"{RUNS}/{run['id']}").json()["retries"] == [
        {"id": made["id"], "name": made["name"], "status": "pending"}
    ]


def test_retries_are_merged(api: TestClient, services: PlatformServices, clock: ManualClock) -> None:
    run = ended(api, services)
    clock.advance(1)
    first = retry(api, run["id"])
    told = refused(api, run["id"], 409, "CONFLICT")
    assert f"its retry '{first['name']}' is pending" in told
    end_with(services, first["id"], {(0, 1): MISSED, (1, 1): FAILED, (2, 1): PASSED})
    clock.advance(1)
    # The retry of a retry makes up for the original, too.
    second = retry(api, first["name"])
    assert row_of(services, second["id"]).retry_of_id == run["id"]
    assert row_of(services, second["id"]).retried == [[1, 1]]
    end_with(services, second["id"], {(1, 1): PASSED})
    replies = [api.get(f"{RUNS}/{each['id']}/merged").json() for each in (run, first, second)]
    assert replies[0] == replies[1] == replies[2]
    merged = replies[0]
    assert [(each["name"], each["samples"]) for each in merged["runs"]] == [
        (run["name"], 3),
        (first["name"], 2),
        (second["name"], 1),
    ]
    counts, rate = merged["estimates"]["counts"], merged["estimates"]["pass_rate"]
    assert (counts["planned"], counts["scored"], counts["skipped"], counts["pending"]) == (6, 5, 1, 0)
    # Attempts on one row are no independent samples: the rate and its interval stand on three rows.
    assert (rate["value"], rate["n"], rate["clusters"]) == (pytest.approx(2 / 3), 5, 3)
    assert "3 of 6 samples are of retries" in merged["estimates"]["warnings"][0]
    assert "has nothing to retry" in refused(api, run["name"], 409, "CONFLICT")
    # Without its original, a retry stands for itself, and says whose it was.
    assert api.delete(f"{RUNS}/{run['id']}").status_code == 200
    alone = api.get(f"{RUNS}/{first['id']}/merged").json()
    assert [each["samples"] for each in alone["runs"]] == [3] and alone["estimates"]["counts"]["planned"] == 3
    assert api.get(f"{RUNS}/{first['id']}").json()["retry_of"] == {"id": run["id"], "name": run["name"]}
    again = retry(api, first["id"])
    assert row_of(services, again["id"]).retried == [[1, 1]]


def test_what_cannot_be_retried_is_refused_with_the_reason(
    api: TestClient, services: PlatformServices, member: Member, stranger: Member, code: Code
) -> None:
    run = SUBMITS.taken(api)
    assert "it is pending" in refused(api, run["name"], 409, "CONFLICT")
    end_with(services, run["id"], {(row, attempt): PASSED for row in range(3) for attempt in range(2)})
    assert "every sample has a score" in refused(api, run["name"], 409, "CONFLICT")
    refused(api, "nobody", 404, "NOT_FOUND")
    foreign = api.post(f"{RUNS}/{run['id']}/retry", json={}, headers=stranger.headers)
    assert_flat_error(foreign, 404, "NOT_FOUND")
    imported = ended(api, services)
    with services.db.transaction() as session:
        session.execute(
            update(DbRun).where(DbRun.id == imported["id"]).values(imported={"sdk_version": "0.3"})
        )
    refusal = refused(api, imported["id"], 409, "CONFLICT")
    assert "was imported" in refusal and f"osmosis eval delete {imported['name']}" in refusal


def test_what_a_retry_needs_is_gone(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = ended(api, services)
    assert api.delete("/api/cli/datasets/multiply").status_code == 200
    assert "there is no dataset 'multiply'" in refused(api, run["id"], 404, "DATASET_NOT_FOUND")
    add_dataset(services, member, rows=[{"user_prompt": "2 x 3", "ground_truth": "6"}] * 5)
    assert "was replaced since" in refused(api, run["id"], 409, "CONFLICT")
    with services.db.transaction() as session:
        session.execute(update(DbDataset).values(sha256=row_of(services, run["id"]).selection["sha256"]))  # type: ignore[index]
        session.execute(update(DbRun).where(DbRun.id == run["id"]).values(commit_sha="f" * 40))
    told = refused(api, run["id"], 400, "INVALID_CONFIG")
    assert told.startswith("this run cannot be submitted")
    with services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == run["id"]).values(repository_id=None))
        assert session.scalars(select(DbRepository)).all()
    assert "its repository is not connected" in refused(api, run["id"], 409, "CONFLICT")


def test_a_retry_needs_the_secrets_of_its_original(api: TestClient, services: PlatformServices) -> None:
    given = {"required": ["SEARCH_KEY"], "provided": {"SEARCH_KEY": "sk-only-for-this"}}
    run = ended(api, services, secrets=given)
    assert "SEARCH_KEY" in refused(api, run["id"], 404, "SECRETS_NOT_FOUND")
    body = {"secrets": {"provided": {"SEARCH_KEY": "sk-again"}}}
    made = row_of(services, retry(api, run["id"], body)["id"])
    assert made.sealed_secrets is not None and "sk-again" not in str(made.request)
    assert made.secret_scopes == {"SEARCH_KEY": "run"}
    end_with(services, made.id, {})
    unlisted = {"secrets": {"provided": {"OTHER": "sk-canary"}}}
    assert "sk-canary" not in refused(api, run["id"], 400, "INVALID_CONFIG", unlisted)


@pytest.mark.parametrize("body", [[], {"secrets": {"provided": {"A": 3}}}, {"secrets": "x"}])
def test_a_body_that_is_none_is_refused(body: Any, api: TestClient, services: PlatformServices) -> None:
    run = ended(api, services)
    assert api.post(f"{RUNS}/{run['id']}/retry", json=body).status_code == 400

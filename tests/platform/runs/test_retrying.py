"""Retries of evaluation runs over HTTP, as far as that goes without a worker: what runs again, and what is refused."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, select, update

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.tables import DbJournalSegment, DbSample
from osmosis_ai.platform.runs.journal_segments import segment_bytes
from osmosis_ai.platform.runs.stored_journal import pack_journal
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record
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
    end_with_journal(services, run["id"], samples)
    return run


def end_with_journal(services: PlatformServices, run_id: str, samples: Samples) -> None:
    end_with(services, run_id, samples)
    lines = [
        record(row, attempt, **{"reward": None, **sample}).to_line()
        for (row, attempt), sample in samples.items()
    ]
    key = pack_journal(lines, run_id, services.blobs, Redactor([]))
    with services.db.transaction() as session:
        session.execute(
            update(DbRun).where(DbRun.id == run_id).values(journal_blob=key, error="it was cut short")
        )


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


def test_a_retry_reopens_the_run_for_what_has_no_score(
    api: TestClient, services: PlatformServices, clock: ManualClock, code: Code
) -> None:
    run = ended(api, services)
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
    before, first_journal = row_of(services, run["id"]), code.head
    code.commit("something else")
    clock.advance(60)
    made = retry(api, run["name"])
    assert (made["id"], made["name"], made["status"]) == (run["id"], run["name"], "pending")
    found = row_of(services, run["id"])
    assert (found.commit_sha, found.selection, found.seed) == (first_journal, before.selection, before.seed)
    assert (found.revision, found.error, found.completed_at) == (1, None, None)
    assert found.reopened_at == found.journal_bytes > 0
    detail = api.get(f"{RUNS}/{run['id']}").json()["eval_run"]
    assert (detail["status"], detail["revision"]) == ("pending", 1) and detail["retried_at"]
    assert [sample["status"] for sample in api.get(f"{RUNS}/{run['id']}/samples").json()["samples"]] == [
        *("success", "failed", "success", "success", "skipped")
    ]
    assert "it is pending" in refused(api, run["id"], 409, "CONFLICT")
    with services.db.session() as session:
        segment = session.scalars(select(DbJournalSegment)).one()
    lines = segment_bytes(services.blobs, segment).splitlines(keepends=True)
    assert [TerminalRecord.from_line(line).reward for line in lines] == [1.0, None, 0.0, None, None]


def test_a_run_is_retried_by_one_of_two_who_ask(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    run = ended(api, services)
    row = row_of(services, run["id"])
    first, second = (services.eval_retries.plan(row, member.user, {}) for _ in range(2))
    services.eval_retries.reopen(first, by="mara")
    with pytest.raises(ConflictError, match="it is pending"):
        services.eval_retries.reopen(second, by="kim")
    end_with_journal(services, run["id"], {})
    with pytest.raises(ConflictError, match="was retried meanwhile"):
        services.eval_retries.reopen(second, by="kim")
    assert row_of(services, run["id"]).revision == 1


def test_a_run_whose_journal_is_gone_keeps_its_scores(api: TestClient, services: PlatformServices) -> None:
    run = ended(api, services)
    key = row_of(services, run["id"]).journal_blob
    assert key is not None
    with services.blobs.open(key) as stored:
        packed = stored.read()
    for damaged in (b"no journal", packed[:-20], packed[:30] + b"\xff\xff" + packed[32:], gzip.compress(b"")):
        services.blobs.put(key, io.BytesIO(damaged))
        assert "its journal is damaged or was not kept" in refused(api, run["id"], 409, "CONFLICT")
    with services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == run["id"]).values(journal_blob=None))
    assert "its journal is damaged or was not kept" in refused(api, run["id"], 409, "CONFLICT")
    assert row_of(services, run["id"]).revision == 0


def test_a_retry_that_is_stopped_before_it_starts_can_be_retried(
    api: TestClient, services: PlatformServices
) -> None:
    run = ended(api, services)
    for revision in (1, 2, 3):
        retry(api, run["id"])
        assert api.post(f"{RUNS}/{run['id']}/stop", json={}).status_code == 200
        found = row_of(services, run["id"])
        assert (found.status, found.revision, found.journal_blob is not None) == ("stopped", revision, True)
        assert api.get(RUNS).json()["eval_runs"][0]["status"] == "stopped"
    with services.db.session() as session:
        assert len(session.scalars(select(DbJournalSegment)).all()) == 1


def test_a_dataset_that_was_uploaded_again_is_found(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    run = ended(api, services)
    assert api.delete("/api/cli/datasets/multiply").status_code == 200
    again = add_dataset(services, member)
    retry(api, run["id"])
    assert row_of(services, run["id"]).dataset_id == again.id


def test_another_member_does_not_spend_personal_secrets(
    api: TestClient, services: PlatformServices, member: Member, stranger: Member
) -> None:
    services.secrets.put(member.workspace.id, member.user.id, "SEARCH_KEY", "sk-of-mara", "user")
    run = ended(api, services, secrets={"required": ["SEARCH_KEY"]})
    row = row_of(services, run["id"])
    with pytest.raises(ConflictError, match=r"personal secrets of .* \(SEARCH_KEY\)"):
        services.eval_retries.plan(row, stranger.user, {})
    given = services.eval_retries.plan(row, stranger.user, {"SEARCH_KEY": "sk-of-kim"})
    assert given.checked.scopes == {"SEARCH_KEY": "run"}
    assert services.eval_retries.plan(row, member.user, {}).checked.scopes == {"SEARCH_KEY": "user"}


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
    assert "its dataset 'multiply' was deleted" in refused(api, run["id"], 409, "CONFLICT")
    add_dataset(services, member, rows=[{"user_prompt": "2 x 3", "ground_truth": "6"}] * 5)
    assert "its dataset 'multiply' was replaced" in refused(api, run["id"], 409, "CONFLICT")
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
    with services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == made.id).values(journal_blob=None))
        session.execute(delete(DbSample))
    unlisted = {"secrets": {"provided": {"OTHER": "sk-canary"}}}
    assert "sk-canary" not in refused(api, run["id"], 400, "INVALID_CONFIG", unlisted)


@pytest.mark.parametrize("body", [[], {"secrets": {"provided": {"A": 3}}}, {"secrets": "x"}])
def test_a_body_that_is_none_is_refused(body: Any, api: TestClient, services: PlatformServices) -> None:
    run = ended(api, services)
    assert api.post(f"{RUNS}/{run['id']}/retry", json=body).status_code == 400

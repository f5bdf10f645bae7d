"""Results of judging sessions over HTTP: kept whole or not at all, by name, each in its workspace."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.platform.db.tables import DbRubricResult
from osmosis_ai.platform.rubric_results import BLOB_PREFIX
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.rubric_documents import ROUTE, a_result


def upload(api: TestClient, name: str = "answers", **changes: Any) -> Any:
    return api.post(ROUTE, json={"name": name, "document": a_result(**changes)})


def kept(services: PlatformServices) -> list[str]:
    return list(services.blobs.keys(BLOB_PREFIX))


def test_a_result_is_kept_listed_read_and_deleted(api: TestClient, services: PlatformServices) -> None:
    reply = upload(api)
    assert reply.status_code == 200, reply.text
    made = reply.json()
    known = {
        "id": made["id"],
        "name": "answers",
        "status": "finished",
        "sha256": made["sha256"],
        "size": made["size"],
        "created_at": "2026-11-02T09:30:00.000Z",
        "generated_at": "2026-11-01T08:00:00.000Z",
        "creator_name": "Mara",
        "model": "openai/judge",
        "dataset": "answers.jsonl",
        "rubric_id": "clarity",
        "score": 0.75,
        "calls": {"planned": 2, "scored": 2, "failed": 0, "pending": 0},
        "cost_usd": 0.25,
        "duration_s": 12.5,
        "platform_url": "http://127.0.0.1:8733/fern/rubrics/answers",
    }
    assert made == {**known, "is_new": True}
    assert api.get(ROUTE).json() == {"rubric_results": [known]}
    for name in ("answers", made["id"]):
        assert api.get(f"{ROUTE}/{name}").json() == known
        assert api.get(f"{ROUTE}/{name}/document").json() == a_result()
    assert len(kept(services)) == 1
    assert api.delete(f"{ROUTE}/answers").json() == {}
    assert_flat_error(api.get(f"{ROUTE}/answers"), 404, "NOT_FOUND")
    assert kept(services) == [] and api.get(ROUTE).json() == {"rubric_results": []}


def test_a_packed_body_is_taken(api: TestClient) -> None:
    body = gzip.compress(json.dumps({"name": "answers", "document": a_result()}).encode())
    reply = api.post(ROUTE, content=body, headers={"Content-Encoding": "gzip"})
    assert reply.status_code == 200 and reply.json()["is_new"]


def test_the_same_document_again_changes_nothing_and_another_of_its_name_is_refused(
    api: TestClient, services: PlatformServices
) -> None:
    first, again = upload(api).json(), upload(api).json()
    assert again == {**first, "is_new": False}
    other = assert_flat_error(upload(api, seed=1), 409, "CONFLICT")
    assert "another rubric result of the name 'answers'" in other["error"]
    assert "osmosis eval delete --rubric answers" in other["error"]
    assert other["id"] == first["id"] and len(kept(services)) == 1
    assert api.get(f"{ROUTE}/answers/document").json() == a_result()
    assert upload(api, "others", seed=1).json()["is_new"]


def test_results_are_listed_by_pages_the_newest_first(api: TestClient, clock: ManualClock) -> None:
    for number in range(5):
        upload(api, f"r{number}")
        clock.advance(1)
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = api.get(ROUTE, params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        found += [each["name"] for each in page["rubric_results"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert found == ["r4", "r3", "r2", "r1", "r0"]
    for wrong in ({"cursor": "nonsense"}, {"limit": 51}, {"limit": 0}):
        assert api.get(ROUTE, params=wrong).status_code == 400


# Hostile


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        (b"", 400, "INVALID_JSON", "no valid JSON"),
        (b"[]", 400, "VALIDATION_FAILED", "the request is not valid"),
        (b'{"name": "x"}', 400, "VALIDATION_FAILED", "document: Field required"),
        (b'{"name": "x", "document": {}}', 400, "VALIDATION_FAILED", "document.generated_at: Field required"),
        (b'{"name": "x", "document": [1]}', 400, "VALIDATION_FAILED", "document"),
        ({"records": {"a": 1}}, 400, "VALIDATION_FAILED", "document.records"),
        ({"records": [1]}, 400, "VALIDATION_FAILED", "document.records.0"),
        ({"model": None}, 400, "VALIDATION_FAILED", "document.model"),
        ({"generated_at": "yesterday"}, 400, "VALIDATION_FAILED", "document.generated_at"),
        ({"generated_at": "0001-01-01T00:00:00+00:00"}, 400, "VALIDATION", "the year 1 is not that"),
        ({"generated_at": "9999-12-31T23:59:59-23:00"}, 400, "VALIDATION_FAILED", "generated_at"),
        ('"seed": NaN', 400, "INVALID_JSON", "NaN and Infinity are not allowed"),
        ('"seed": "\\ud800"', 400, "INVALID_JSON", "no valid JSON"),
        (f'"seed": {deep(10_000)}', 400, "INVALID_JSON", "no valid JSON"),
        (f'"seed": {deep(1_000)}', 400, "VALIDATION", "nested too deeply"),
    ],
)
def test_what_is_no_result_is_refused_and_nothing_of_it_is_kept(
    api: TestClient, services: PlatformServices, body: Any, status: int, code: str, said: str
) -> None:
    if isinstance(body, dict):
        body = json.dumps({"name": "x", "document": a_result(**body)}).encode()
    elif isinstance(body, str):
        body = json.dumps({"name": "x", "document": a_result()}).replace('"seed": 0', body).encode()
    error = assert_flat_error(api.post(ROUTE, content=body), status, code)
    assert said in error["error"]
    assert kept(services) == [] and api.get(ROUTE).json() == {"rubric_results": []}


@pytest.mark.parametrize(
    "records",
    [
        [{}] * 10_001,
        [{"judgements": [{}] * 50_001}],
        [{"runs": [{}] * 30_000}, {"judgements": [{}] * 20_001}],
    ],
    ids=["records", "calls", "calls of both forms"],
)
def test_more_records_or_calls_than_a_page_can_read_are_refused(
    api: TestClient, services: PlatformServices, records: list[dict[str, Any]]
) -> None:
    reply = upload(api, records=records)
    assert_flat_error(reply, 400, "VALIDATION")
    assert "10,000 with 50,000 at most" in reply.json()["error"] and kept(services) == []
    assert upload(api, records=[{"judgements": [{}] * 5}] * 10_000).status_code == 200


def test_an_upload_whose_name_was_taken_and_given_back_meanwhile_is_refused_and_keeps_nothing(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = upload(api).json()
    known = services.rubric_results._known
    monkeypatch.setattr(
        services.rubric_results, "_known", lambda *_: None
    )  # as another sees it before and after
    reply = upload(api, rubric="Another one.")
    assert_flat_error(reply, 409, "CONFLICT")
    assert "uploaded and deleted meanwhile" in reply.json()["error"] and len(kept(services)) == 1
    monkeypatch.setattr(services.rubric_results, "_known", known)
    assert upload(api).json()["id"] == made["id"]


def test_a_result_that_is_deleted_while_it_is_read_is_not_there(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(api)
    opened = services.blobs.open

    def deleted_meanwhile(key: str) -> Any:
        services.rubric_results.delete(row)
        return opened(key)

    with services.db.session() as session:
        row = session.scalars(select(DbRubricResult)).one()
    monkeypatch.setattr(type(services.blobs), "open", lambda _, key: deleted_meanwhile(key))
    assert_flat_error(api.get(f"{ROUTE}/answers/document"), 404, "NOT_FOUND")


@pytest.mark.parametrize("name", ["", " x", "a/b", "..", "x\0", "a\nb", "x" * 256, "rub_" + "a" * 24])
def test_a_name_that_has_no_page_is_refused(api: TestClient, services: PlatformServices, name: str) -> None:
    error = assert_flat_error(upload(api, name), 400, "VALIDATION")
    assert "its name must be 1 to 255 printable characters" in error["error"] and kept(services) == []


def test_what_is_too_large_is_refused_before_it_is_unpacked(
    api: TestClient, services: PlatformServices
) -> None:
    hundred_mb = gzip.compress(b" " * 100_000_000)
    bomb = api.post(ROUTE, content=hundred_mb, headers={"Content-Encoding": "gzip"})
    assert "at most 32 MiB" in assert_flat_error(bomb, 413, "BODY_TOO_LARGE")["error"]
    plain = api.post(ROUTE, content=b" " * (9 << 20))
    assert_flat_error(plain, 413, "BODY_TOO_LARGE")
    for content, encoding, status in (
        (b"no gzip", "gzip", 400),
        (hundred_mb[:50], "gzip", 400),
        (b"", "br", 415),
    ):
        reply = api.post(ROUTE, content=content, headers={"Content-Encoding": encoding})
        assert reply.status_code == status, reply.text
    assert kept(services) == []


def test_numbers_that_cannot_be_counted_with_are_left_out(api: TestClient) -> None:
    counts = {"calls": 10**300, "scored": -1, "failed": 0, "unscored": 0, "pending": 0}
    strange = upload(
        api, counts=counts, usage={"cost_usd": "much"}, overall_statistics=[], model="m" * 300, data_path=7
    )
    made = strange.json()
    assert strange.status_code == 200 and len(made["model"]) == 255
    assert {"calls", "cost_usd", "score", "dataset"}.isdisjoint(made)


# Whose they are


def test_another_workspace_s_results_are_not_there(
    client: TestClient, member: Member, stranger: Member
) -> None:
    client.headers.update(member.headers)
    upload(client)
    client.headers.update(stranger.headers)
    assert client.get(ROUTE).json() == {"rubric_results": []}
    for method in ("GET", "DELETE"):
        theirs = client.request(method, f"{ROUTE}/answers").json()
        none = client.request(method, f"{ROUTE}/nothing-x").json()
        assert theirs["error"].replace("answers", "*") == none["error"].replace("nothing-x", "*")
    assert client.get(f"{ROUTE}/answers/document").status_code == 404
    assert upload(client).json()["is_new"], "a name belongs to a workspace"
    client.headers.update(member.headers)
    assert client.get(f"{ROUTE}/answers").status_code == 200


def test_a_member_reads_what_others_uploaded_and_deletes_only_their_own(
    client: TestClient, world: World, member: Member
) -> None:
    client.headers.update(member.headers)
    upload(client, "hers")
    ada = world.member("ada", role="member")
    client.headers.update(ada.headers)
    assert upload(client, "adas").json()["creator_name"] == "Ada"
    assert client.get(f"{ROUTE}/hers/document").status_code == 200
    refused = assert_flat_error(client.delete(f"{ROUTE}/hers"), 403, "ROLE_REQUIRED")
    assert "a rubric result of somebody else" in refused["error"]
    assert client.delete(f"{ROUTE}/adas").status_code == 200
    client.headers.update(member.headers)
    assert client.delete(f"{ROUTE}/hers").status_code == 200


def test_without_a_token_nothing_is_read(client: TestClient, member: Member) -> None:
    assert_flat_error(client.post(ROUTE, content=b"x" * 100), 401, "AUTH_HEADER_MISSING")
    assert_flat_error(client.get(f"{ROUTE}/answers"), 401, "AUTH_HEADER_MISSING")


# What is left


def test_a_document_without_a_row_is_swept_an_hour_later(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(api)
    with monkeypatch.context() as killed:
        killed.setattr(type(services.blobs), "delete", lambda *_: None)
        api.delete(f"{ROUTE}/answers")
    upload(api, "stays")
    assert len(kept(services)) == 2
    services.rubric_results.sweep()
    assert len(kept(services)) == 2, "its row might still come"
    clock.advance(timedelta(hours=1, seconds=1).total_seconds())
    services.rubric_results.sweep()
    assert len(kept(services)) == 1 and api.get(f"{ROUTE}/stays/document").status_code == 200


def test_a_document_that_is_damaged_or_gone_is_said_to_be_so(
    api: TestClient, services: PlatformServices
) -> None:
    upload(api)
    (key,) = kept(services)
    services.blobs.put(key, BytesIO(b"{}"))
    damaged = assert_flat_error(api.get(f"{ROUTE}/answers/document"), 409, "CONFLICT")
    assert "is damaged: its SHA-256 has changed" in damaged["error"]
    services.blobs.delete(key)
    gone = assert_flat_error(api.get(f"{ROUTE}/answers/document"), 409, "CONFLICT")
    assert "is gone" in gone["error"] and key not in gone["error"]
    assert api.get(f"{ROUTE}/answers").status_code == 200

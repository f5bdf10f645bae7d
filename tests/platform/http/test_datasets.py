"""Datasets over HTTP, once they are there: overwritten, listed, read, and by whom."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.datasets_world import DATASETS, Uploads, rows

# Names that are taken, and overwriting


def test_a_name_that_is_taken_is_said_with_whose_it_is(uploads: Uploads) -> None:
    dataset = uploads.upload("multiply", rows())
    body = assert_flat_error(uploads.announce("multiply", 10), 409, "CONFLICT")
    assert body["existing_dataset_id"] == dataset["id"]


def test_an_upload_that_has_not_ended_keeps_its_name(uploads: Uploads, clock: ManualClock) -> None:
    dataset = uploads.begin("multiply", rows())
    body = assert_flat_error(uploads.announce("multiply", 10), 409, "CONFLICT")
    assert body["existing_dataset_id"] == dataset["id"] and "has begun" in body["error"]
    clock.advance(86_400)
    assert uploads.upload("multiply", rows())["status"] == "uploaded"


def test_an_overwrite_serves_the_old_bytes_until_the_new_ones_are_good(
    uploads: Uploads, clock: ManualClock
) -> None:
    old, new = rows(10, "old"), rows(20, "new")
    before = uploads.upload("multiply", old)
    begun = uploads.begin("multiply", new, overwrite_dataset_id=before["id"])

    assert begun["id"] == before["id"] and begun["status"] == "uploaded"
    assert uploads.fetch("multiply") == old
    uploads.send(begun, new)
    assert uploads.fetch("multiply") == old
    # The clock may have been set back meanwhile: the version changes all the same.
    clock.jump(-3600)
    uploads.complete(begun["id"])
    uploads.settle()

    after = uploads.get("multiply")
    assert uploads.fetch("multiply") == new
    assert (after["id"], after["row_count"], after["created_at"]) == (before["id"], 20, before["created_at"])
    assert after["updated_at"] > before["updated_at"]
    assert after["data_preview"][0]["user_prompt"] == "new 0"


def test_an_overwrite_that_is_refused_leaves_the_dataset_as_it_was(uploads: Uploads) -> None:
    before = uploads.upload("multiply", rows())
    after = uploads.upload("multiply", b"nonsense\n", overwrite_dataset_id=before["id"])

    assert "line 1" in after.pop("upload_error")
    assert after == before
    assert uploads.fetch("multiply") == rows()
    assert "keeps its former rows" in uploads.messages(before["id"], "error")[-1]
    mended = uploads.upload("multiply", rows(5), overwrite_dataset_id=before["id"])
    assert mended["row_count"] == 5 and "upload_error" not in mended


def test_an_overwrite_that_is_aborted_leaves_the_dataset_as_it_was(uploads: Uploads) -> None:
    before = uploads.upload("multiply", rows())
    uploads.begin("multiply", rows(5), overwrite_dataset_id=before["id"])
    uploads.request("POST", f"/{before['id']}/abort", json={})
    assert uploads.get("multiply") == before
    assert uploads.fetch("multiply") == rows()


def test_an_overwrite_must_name_a_dataset_of_that_name(uploads: Uploads) -> None:
    dataset = uploads.upload("multiply", rows())
    assert_flat_error(
        uploads.announce("other", 10, overwrite_dataset_id=dataset["id"]), 400, "INVALID_DATASET"
    )
    assert_flat_error(uploads.announce("multiply", 10, overwrite_dataset_id="ds_nobody"), 404, "NOT_FOUND")


def test_the_later_of_two_overwrites_wins(uploads: Uploads) -> None:
    before = uploads.upload("multiply", rows())
    first = uploads.begin("multiply", rows(11), overwrite_dataset_id=before["id"])
    second = uploads.begin("multiply", rows(12), overwrite_dataset_id=before["id"])
    late = uploads.client.put(first["upload"]["presigned_url"], content=rows(11))
    assert_flat_error(late, 404, "UPLOAD_NOT_FOUND")
    uploads.send(second, rows(12))
    uploads.complete(before["id"])
    uploads.settle()
    assert uploads.get("multiply")["row_count"] == 12


# Reading


def test_datasets_are_listed_newest_first_in_pages(uploads: Uploads, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        uploads.begin(name, rows())
        clock.advance(1)

    first = uploads.request("GET", params={"limit": 2}).json()
    assert [item["file_name"] for item in first["datasets"]] == ["c", "b"]
    assert (first["total_count"], first["has_more"], first["next_offset"]) == (3, True, 2)
    last = uploads.request("GET", params={"limit": 2, "offset": 2}).json()
    assert [item["file_name"] for item in last["datasets"]] == ["a"]
    assert (last["has_more"], last["next_offset"]) == (False, None)
    assert_flat_error(uploads.request("GET", params={"limit": 51}), 400, "VALIDATION_FAILED")


def test_a_list_never_has_nulls_where_the_contract_has_none(uploads: Uploads) -> None:
    uploads.begin("a", rows())
    uploads.upload("b", rows())
    uploads.upload("c", b"nonsense\n")
    for item in uploads.request("GET").json()["datasets"]:
        assert isinstance(item["id"], str) and isinstance(item["status"], str)
        assert isinstance(item["file_size"], int)
        assert None not in item.values() and "upload" not in item


@pytest.mark.parametrize("state", ["pending", "processing"])
def test_a_dataset_that_is_not_ready_cannot_be_downloaded(uploads: Uploads, state: str) -> None:
    dataset = uploads.begin("multiply", rows())
    if state == "processing":
        # The background is stopped, as on a platform that is just going down.
        uploads.services.datasets.ingest.close()
        uploads.send(dataset, rows())
        assert uploads.complete(dataset["id"]).json()["status"] == "processing"
    assert_flat_error(uploads.request("GET", "/multiply/download"), 409, "CONFLICT")


def test_a_dataset_nobody_has_heard_of_is_not_found(uploads: Uploads) -> None:
    for method, path in (
        ("GET", "/nope"),
        ("GET", "/nope/download"),
        ("GET", "/nope/logs"),
        ("POST", "/nope/abort"),
        ("GET", "/..%2f..%2fetc"),
        ("GET", "/" + "a" * 300),
        ("GET", "/%F0%9F%A6%A6"),
    ):
        assert_flat_error(uploads.request(method, path), 404, "NOT_FOUND")
    assert_flat_error(uploads.complete("nope"), 404, "NOT_FOUND")


def test_a_misspelled_dataset_is_suggested_to_members_of_its_workspace(
    uploads: Uploads, stranger: Member, client: TestClient, services: PlatformServices
) -> None:
    uploads.upload("multiply", rows())
    theirs = Uploads(client, services, stranger.headers)
    said = assert_flat_error(uploads.request("GET", "/multply"), 404, "NOT_FOUND")["error"]
    assert said == "there is no dataset 'multply' in this workspace; did you mean multiply?"
    said = assert_flat_error(theirs.request("GET", "/multply"), 404, "NOT_FOUND")["error"]
    assert said == "there is no dataset 'multply' in this workspace; see `osmosis dataset list`."


def test_a_log_is_read_in_pages_from_either_end(uploads: Uploads) -> None:
    dataset = uploads.upload("multiply", rows())
    everything = uploads.messages(dataset["id"])
    newest = uploads.request("GET", "/multiply/logs", params={"limit": 2, "direction": "older"}).json()
    assert [entry["message"] for entry in newest["logs"]] == everything[1:]
    rest = uploads.request(
        "GET", "/multiply/logs", params={"limit": 2, "cursor": newest["next_cursor"]}
    ).json()
    assert [entry["message"] for entry in rest["logs"]] == everything[:1] and rest["next_cursor"] is None
    assert_flat_error(
        uploads.request("GET", "/multiply/logs", params={"limit": 201}), 400, "VALIDATION_FAILED"
    )


def test_another_workspace_sees_and_touches_nothing(
    uploads: Uploads, stranger: Member, client: TestClient, services: PlatformServices
) -> None:
    mine = uploads.upload("multiply", rows())
    waiting = uploads.begin("waiting", rows())
    theirs = Uploads(client, services, stranger.headers)

    assert theirs.request("GET").json()["datasets"] == []
    for known in (mine["id"], "multiply"):
        for method, path in (("GET", ""), ("GET", "/download"), ("GET", "/logs"), ("POST", "/abort")):
            assert_flat_error(theirs.request(method, f"/{known}{path}"), 404, "NOT_FOUND")
        assert_flat_error(theirs.complete(known), 404, "NOT_FOUND")
    assert_flat_error(theirs.announce("multiply", 10, overwrite_dataset_id=mine["id"]), 404, "NOT_FOUND")
    assert_flat_error(theirs.request("POST", f"/{waiting['id']}/abort"), 404, "NOT_FOUND")

    assert theirs.upload("multiply", rows(5))["row_count"] == 5
    assert uploads.get("multiply") == mine
    assert uploads.get("waiting")["status"] == "pending"


def test_nothing_is_told_without_a_token_or_a_repository(client: TestClient, member: Member) -> None:
    assert_flat_error(client.get(DATASETS), 401, "AUTH_HEADER_MISSING")
    only_token = {"Authorization": member.headers["Authorization"]}
    assert_flat_error(client.get(DATASETS, headers=only_token), 400, "GIT_SCOPE_HEADER_REQUIRED")


def test_a_colleague_may_overwrite_and_becomes_who_uploaded_it(
    uploads: Uploads, world: World, client: TestClient, services: PlatformServices
) -> None:
    before = uploads.upload("multiply", rows())
    colleague = world.member("ada", role="member")
    theirs = Uploads(client, services, colleague.headers)
    after = theirs.upload("multiply", rows(6), overwrite_dataset_id=before["id"])
    assert (before["creator_name"], after["creator_name"]) == ("Mara", "Ada")

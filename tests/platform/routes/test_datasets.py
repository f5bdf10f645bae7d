"""Datasets over HTTP: announced, sent in parts, checked, overwritten, read, and by whom."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.datasets_world import DATASETS, Uploads, rows

# Names that are taken, and overwriting


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
    assert "keeps its previous rows" in uploads.messages(before["id"], "error")[-1]
    mended = uploads.upload("multiply", rows(5), overwrite_dataset_id=before["id"])
    assert mended["row_count"] == 5 and "upload_error" not in mended


def test_an_overwrite_must_name_a_dataset_of_that_name(uploads: Uploads) -> None:
    dataset = uploads.upload("multiply", rows())
    assert_flat_error(
        uploads.announce("other", 10, overwrite_dataset_id=dataset["id"]), 400, "INVALID_DATASET"
    )
    assert_flat_error(uploads.announce("multiply", 10, overwrite_dataset_id="ds_nobody"), 404, "NOT_FOUND")


def test_a_name_is_taken_in_its_workspace_only(
    uploads: Uploads, stranger: Member, client: TestClient, world: World
) -> None:
    mine = uploads.upload("multiply", rows())
    theirs = Uploads(client, world, stranger.headers)
    assert theirs.upload("multiply", rows(5))["row_count"] == 5
    assert uploads.get("multiply") == mine


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


@pytest.mark.parametrize("state", ["pending", "processing"])
def test_a_dataset_that_is_not_ready_cannot_be_downloaded(uploads: Uploads, state: str) -> None:
    dataset = uploads.begin("multiply", rows())
    if state == "processing":
        uploads.stop_checks()
        uploads.send(dataset, rows())
        assert uploads.complete(dataset["id"]).json()["status"] == "processing"
    assert_flat_error(uploads.request("GET", "/multiply/download"), 409, "CONFLICT")


GIB = 1 << 30


@pytest.fixture
def small_parts(world: World) -> None:
    """Files from 300 bytes on are sent in parts of 100."""
    world.services.datasets.max_bytes = 5000
    world.services.datasets.multipart_from_bytes, world.services.datasets.part_bytes = 300, 100


# Announcing


DIGEST = hashlib.sha256(b"x" * 350).hexdigest()


def intent(digest: str = DIGEST, number: int = 1) -> dict[str, str]:
    return {"X-Osmosis-Upload": f"{number:032x}; sha256={digest}"}


def announced(
    uploads: Uploads, name: str = "multiply", headers: dict[str, str] | None = None, **more: Any
) -> Any:
    body = {"file_name": name, "file_size": 350, "extension": "jsonl", **more}
    sent = {**uploads.headers, **(intent() if headers is None else headers)}
    return uploads.client.post(DATASETS, headers=sent, json=body)


def test_an_open_upload_of_the_same_bytes_is_handed_back_with_what_has_arrived(
    uploads: Uploads, small_parts: None, clock: ManualClock
) -> None:
    first = announced(uploads).json()
    assert "received_parts" not in first["upload"]
    part = first["upload"]["presigned_urls"][1]
    etag = uploads.client.put(part["presigned_url"], content=b"x" * 100).headers["ETag"].strip('"')
    clock.advance(20 * 3600)

    reply = announced(uploads, headers=intent(number=2))

    assert reply.status_code == 200
    again = reply.json()
    assert (again["id"], again["upload"]["upload_id"]) == (first["id"], first["upload"]["upload_id"])
    assert again["upload"]["received_parts"] == [{"PartNumber": 2, "ETag": etag}]
    assert "the upload resumes: 1 of 4 parts are stored" in uploads.messages(first["id"])
    # Its URLs are fresh: they work when the first ones have ended.
    clock.advance(5 * 3600)
    fresh = again["upload"]["presigned_urls"][0]["presigned_url"]
    assert uploads.client.put(fresh, content=b"x" * 100).status_code == 200


def test_only_the_same_user_and_bytes_go_on_and_only_while_the_upload_is_open(
    uploads: Uploads, small_parts: None, world: World, clock: ManualClock
) -> None:
    first = announced(uploads).json()
    for reply in (
        announced(uploads, headers=intent("0" * 64)),
        announced(uploads, headers={}),
        announced(uploads, headers={"X-Osmosis-Upload": "rubbish"}),
        announced(uploads, file_size=351),
        announced(uploads, headers={**intent(), **world.member("ben", role="member").headers}),
    ):
        assert assert_flat_error(reply, 409, "CONFLICT")["existing_dataset_id"] == first["id"]
    clock.advance(25 * 3600)
    anew = announced(uploads).json()
    assert anew["upload"]["upload_id"] != first["upload"]["upload_id"]
    uploads.request("POST", f"/{anew['id']}/abort", json={})
    assert announced(uploads).json()["upload"]["upload_id"] != anew["upload"]["upload_id"]


def test_bytes_that_are_not_those_announced_are_refused(uploads: Uploads, small_parts: None) -> None:
    data = rows(12)[:350].rpartition(b"\n")[0].ljust(350)
    begun = announced(uploads).json()
    assert uploads.complete(begun["id"], uploads.send(begun, data)).status_code == 200
    uploads.settle()
    assert "not those that were announced" in uploads.get(begun["id"])["upload_error"]


def test_announcing_a_small_file_gives_one_url(uploads: Uploads) -> None:
    dataset = uploads.begin("multiply", rows())
    upload = dataset["upload"]

    assert {key: dataset[key] for key in ("file_name", "file_size", "status", "file_format")} == {
        "file_name": "multiply",
        "file_size": len(rows()),
        "status": "pending",
        "file_format": "jsonl",
    }
    assert upload["method"] == "simple"
    assert upload["presigned_url"].startswith("http://127.0.0.1:8733/blobs/")
    assert upload["upload_headers"] == {}
    assert upload["expires_in"] == 86_400 and isinstance(upload["expires_in"], int)
    assert isinstance(upload["s3_key"], str) and isinstance(upload["upload_id"], str)


@pytest.mark.parametrize("size", [300, 301, 399, 400, 5000])
def test_a_larger_file_is_sent_in_parts_of_exact_sizes(
    uploads: Uploads, small_parts: None, size: int
) -> None:
    upload = uploads.begin("multiply", b"x" * size)["upload"]

    part_size, total = upload["part_size"], upload["total_parts"]
    assert upload["method"] == "multipart"
    assert part_size * (total - 1) < size <= part_size * total
    assert [part["part_number"] for part in upload["presigned_urls"]] == list(range(1, total + 1))
    assert sum(part["size"] for part in upload["presigned_urls"]) == size
    assert upload["s3_key"] and upload["upload_id"]


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a/b", "../a", "..", ".", "a..b", "a\\b", "a\nb", "a\x00b", "a\x7f", " a", "a "),
        *("\u202egpj", "a" * 300),
    ],
)
def test_a_name_that_is_no_files_name_is_refused(uploads: Uploads, name: str) -> None:
    body = assert_flat_error(uploads.announce(name, 100), 400, "INVALID_DATASET")
    assert body["field"] == "file_name"
    assert uploads.request("GET").json()["datasets"] == []


@pytest.mark.parametrize(
    "name", ["a b", "größe", "数学", "v1.2_x-y", "100%", "a?b#c&d", "🦦", "a" * 255, "-rf", "'; --"]
)
def test_a_name_with_spaces_or_any_letters_works_everywhere(uploads: Uploads, name: str) -> None:
    dataset = uploads.upload(name, rows())
    assert uploads.get(quote(name, safe=""))["id"] == dataset["id"]
    assert dataset["file_name"] == name and dataset["status"] == "uploaded"
    assert uploads.fetch(quote(name, safe="")) == rows()


def test_two_spellings_of_the_same_letters_are_one_name(uploads: Uploads) -> None:
    composed, decomposed = "gr\u00f6\u00dfe", "gro\u0308\u00dfe"
    dataset = uploads.upload(decomposed, rows())
    assert uploads.get(quote(composed))["id"] == uploads.get(quote(decomposed))["id"] == dataset["id"]
    assert uploads.announce(composed, 10).status_code == 409


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"file_size": 0}, "file_size"),
        ({"file_size": -1}, "file_size"),
        ({"file_size": 5 * GIB + 1}, "file_size"),
        ({"extension": "txt"}, "extension"),
        ({"extension": ""}, "extension"),
        ({"extension": "jsonl/../x"}, "extension"),
    ],
)
def test_a_file_the_platform_does_not_take_is_refused(
    uploads: Uploads, change: dict[str, Any], field: str
) -> None:
    body = {"file_name": "a", "file_size": 10, "extension": "jsonl", **change}
    refused = assert_flat_error(uploads.request("POST", json=body), 400, "INVALID_DATASET")
    assert refused["field"] == field


# Completing


def test_a_dataset_is_checked_and_can_then_be_read(
    uploads: Uploads, member: Member, clock: ManualClock
) -> None:
    data = rows(7)
    dataset = uploads.upload("multiply", data)

    assert dataset["status"] == "uploaded"
    assert dataset["row_count"] == 7
    assert dataset["file_size"] == len(data)
    assert dataset["creator_name"] == member.user.name
    assert dataset["created_at"].endswith("Z") and dataset["updated_at"] > dataset["created_at"]
    assert dataset["data_preview"][0] == {"user_prompt": "row 0", "ground_truth": "0"}
    assert len(dataset["data_preview"]) == 7
    assert uploads.get("multiply") == dataset
    assert uploads.fetch("multiply") == data
    assert uploads.messages(dataset["id"]) == [
        f"upload started: {len(data)} bytes (jsonl)",
        "upload complete; checking the file",
        "the dataset is ready: 7 rows",
    ]


def test_completing_again_changes_nothing(uploads: Uploads) -> None:
    dataset = uploads.begin("multiply", rows())
    uploads.send(dataset, rows())
    assert uploads.complete(dataset["id"]).status_code == 200
    assert uploads.complete(dataset["id"]).status_code == 200
    uploads.settle()
    settled = uploads.get("multiply")
    again = uploads.complete(dataset["id"])
    assert again.status_code == 200 and again.json()["status"] == "uploaded"
    assert uploads.get("multiply") == settled
    assert len(uploads.messages(dataset["id"], "info")) == 3


def test_parts_that_are_missing_wrong_or_out_of_order_are_refused(
    uploads: Uploads, small_parts: None
) -> None:
    data = rows(20)
    dataset = uploads.begin("multiply", data)
    first_url = dataset["upload"]["presigned_urls"].pop(0)
    late = uploads.send(dataset, data)
    assert late is not None

    def refusal(parts: list[dict[str, Any]] | None) -> str:
        return json.dumps(assert_flat_error(uploads.complete(dataset["id"], parts), 400, "INVALID_DATASET"))

    assert "part 1 has not arrived" in refusal([{"PartNumber": 1, "ETag": "a"}, *late])
    reply = uploads.client.put(first_url["presigned_url"], content=data[:100])
    good = [{"PartNumber": 1, "ETag": reply.headers["ETag"]}, *late]

    assert "`parts` is missing" in refusal(None)
    for named in (late, good[::-1], [good[0], *good], [*good, {"PartNumber": len(good) + 1, "ETag": "a"}]):
        assert "must name each of the" in refusal(named)
    assert "part 2 arrived with another ETag" in refusal([good[0], {**good[1], "ETag": "0" * 64}, *good[2:]])
    assert uploads.get("multiply")["status"] == "pending"
    assert uploads.complete(dataset["id"], good).status_code == 200
    uploads.settle()
    assert uploads.fetch("multiply") == data


def test_a_file_that_is_no_dataset_ends_in_error_with_every_problem_in_its_log(uploads: Uploads) -> None:
    good = json.dumps({"user_prompt": "a", "ground_truth": "b"})
    data = f"{good}\n{{]\n{good}\n[1]\n{good}\n{good}\n".encode()
    dataset = uploads.upload("multiply", data)

    assert dataset["status"] == "error"
    errors = uploads.messages(dataset["id"], "error")
    assert any("line 2" in message for message in errors) and any("line 4" in message for message in errors)
    assert "line 2" in dataset["upload_error"]
    assert "data_preview" not in dataset and "row_count" not in dataset
    refused = assert_flat_error(uploads.request("GET", "/multiply/download"), 409, "CONFLICT")
    assert "line 2" in refused["error"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("data", "extension", "problem"),
    [
        (b"\xff\xfe\n" * 10, "jsonl", "not UTF-8"),
        (rows(3), "jsonl", "at least 4"),
        (b"a,b\n1,2\n3,4\n5,6\n7,8\n", "csv", "missing column"),
        (b"PAR1 is not enough", "parquet", "not a Parquet file"),
        (b"[" * 100_000, "json", ""),
        (b'{"user_prompt": "a", "ground_truth": NaN}\n' * 5, "jsonl", "line 1"),
    ],
)
def test_bad_bytes_are_refused_with_the_reason(
    uploads: Uploads, data: bytes, extension: str, problem: str
) -> None:
    dataset = uploads.upload("bad", data, extension)
    assert dataset["status"] == "error"
    assert problem in " ".join(uploads.messages(dataset["id"], "error"))


def test_a_preview_shows_answers_as_the_file_has_them(uploads: Uploads) -> None:
    rows = [f'{{"user_prompt": "q", "ground_truth": {text}}}' for text in ("1.10", "0.5", "1e5", "true")]
    preview = uploads.upload("multiply", "\n".join(rows).encode())["data_preview"]
    assert [row["ground_truth"] for row in preview] == ["1.10", 0.5, "1e5", True]


def test_a_preview_is_bounded_and_plain_json(uploads: Uploads) -> None:
    record = {"user_prompt": "x" * 20_000, "ground_truth": "1\0", "extra": {"deep": [{"n": 2**70}]}}
    data = b"".join(json.dumps(record).encode() + b"\n" for _ in range(100))
    preview = uploads.upload("multiply", data)["data_preview"]
    assert 0 < len(preview) < 100
    assert len(json.dumps(preview)) < 200_000
    assert preview[0]["user_prompt"].endswith("x…") and len(preview[0]["user_prompt"]) < 5000
    assert preview[0]["extra"] == {"deep": [{"n": 2**70}]}
    assert preview[0]["ground_truth"] == "1\N{REPLACEMENT CHARACTER}"


# Aborting


def test_an_aborted_upload_frees_the_name_and_takes_no_bytes(uploads: Uploads) -> None:
    dataset = uploads.begin("multiply", rows())
    for _ in range(2):
        reply = uploads.request("POST", f"/{dataset['id']}/abort", json={})
        assert reply.status_code == 200 and reply.json()["status"] == "cancelled"

    late = uploads.client.put(dataset["upload"]["presigned_url"], content=rows())
    assert_flat_error(late, 404, "UPLOAD_NOT_FOUND")
    assert_flat_error(uploads.complete(dataset["id"]), 409, "CONFLICT")
    assert_flat_error(uploads.request("GET", "/multiply/download"), 409, "CONFLICT")
    assert uploads.upload("multiply", rows())["status"] == "uploaded"

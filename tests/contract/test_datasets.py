from __future__ import annotations

from datetime import datetime, timezone

import pytest

from tests.contract.conftest import CompletedPart, PlatformClient, PlatformError, Wire, nulled

DATASET = """{"id": "ds_31", "file_name": "maze-walks", "file_size": 2048, "status": "uploaded",
 "file_format": "parquet", "original_file_format": "csv", "row_count": 120, "original_file_size": 4096,
 "data_preview": [{"user_prompt": "go", "ground_truth": "left"}], "creator_name": "Mara",
 "created_at": "2026-11-03T08:12:44Z", "updated_at": "2026-11-03T08:12:59.250Z",
 "platform_url": "https://platform.osmosis.ai/fern-lab/datasets/ds_31", "is_internal_user": true, "later": 1}"""


def test_a_dataset_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/datasets/maze-walks", DATASET)
    found = client.datasets.get("maze-walks")
    assert (found.id, found.file_name, found.file_size, found.status) == (
        "ds_31",
        "maze-walks",
        2048,
        "uploaded",
    )
    assert (found.file_format, found.original_file_format) == ("parquet", "csv")
    assert (found.row_count, found.original_file_size) == (120, 4096)
    assert found.data_preview == [{"user_prompt": "go", "ground_truth": "left"}]
    assert found.updated_at == datetime(2026, 11, 3, 8, 12, 59, 250_000, tzinfo=timezone.utc)
    assert found.is_internal_user is True and found.creator_name == "Mara"


@pytest.mark.parametrize("reply", ['{"id": "ds_31"}', nulled(DATASET)])
def test_a_dataset_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/datasets/ds_31", reply)
    found = client.datasets.get("ds_31")
    assert (found.file_name, found.file_size, found.status) == (None, 0, "")
    assert (found.row_count, found.data_preview, found.created_at, found.upload) == (None, None, None, None)
    assert found.is_internal_user is False


@pytest.mark.parametrize(
    "name, path",
    [("a/b c", "a%2Fb%20c"), ("..", "%2E%2E"), ("größe", "gr%C3%B6%C3%9Fe"), ("x" * 300, "x" * 300)],
)
def test_a_name_of_any_kind_is_one_segment(client: PlatformClient, wire: Wire, name: str, path: str) -> None:
    wire.answers("GET", f"/api/cli/datasets/{path}/download", '{"presigned_url": "https://b.example/x"}')
    client.datasets.download(name)


def test_a_page_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/datasets?limit=2&offset=4",
        f'{{"datasets": [{DATASET}, {{"id": "ds_32"}}], "total_count": 7, "has_more": true, "next_offset": 6}}',
    )
    page = client.datasets.list(limit=2, offset=4)
    assert [dataset.id for dataset in page.datasets] == ["ds_31", "ds_32"]
    assert (page.total_count, page.has_more, page.next_offset) == (7, True, 6)


@pytest.mark.parametrize(
    "reply",
    ['{"datasets": []}', '{"datasets": [], "total_count": null, "has_more": null, "next_offset": null}'],
)
def test_a_page_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/datasets?limit=50&offset=0", reply)
    page = client.datasets.list()
    assert (page.datasets, page.total_count, page.has_more, page.next_offset) == ([], 0, False, None)


def test_an_upload_in_one_piece(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/datasets",
        """{"id": "ds_1", "status": "pending", "upload": {"method": "simple", "s3_key": "k/1", "upload_id": null,
            "presigned_url": "https://b.example/k?sig=canary", "upload_headers": {"Content-Type": "text/csv"},
            "expires_in": 900, "presigned_urls": null, "part_size": null}}""",
        status=201,
    )
    made = client.datasets.create("maze", size_bytes=2048, extension="csv")
    assert wire.sent == {"file_name": "maze", "file_size": 2048, "extension": "csv"}
    assert made.upload is not None
    assert (made.upload.method, made.upload.presigned_url) == ("simple", "https://b.example/k?sig=canary")
    assert made.upload.upload_headers == {"Content-Type": "text/csv"}
    assert "canary" not in repr(made)


def test_an_upload_without_a_method_is_in_one_piece(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST", "/api/cli/datasets", '{"id": "d", "upload": {"presigned_url": "u", "upload_headers": null}}'
    )
    made = client.datasets.create("maze", size_bytes=1, extension="csv")
    assert made.upload is not None and (made.upload.method, made.upload.upload_headers) == ("simple", {})


def test_an_upload_in_parts_over_a_former_one(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/datasets",
        """{"id": "ds_31", "upload": {"method": "multipart", "part_size": 5, "total_parts": 2, "s3_key": "k",
            "upload_id": "up", "presigned_urls": [
              {"part_number": 1, "presigned_url": "https://b.example/1", "size": 5},
              {"part_number": 2, "presigned_url": "https://b.example/2", "size": null}]}}""",
    )
    made = client.datasets.create("maze", size_bytes=8, extension="jsonl", overwrite_id="ds_31")
    assert wire.sent["overwrite_dataset_id"] == "ds_31"
    assert made.upload is not None
    assert [(part.part_number, part.size) for part in made.upload.presigned_urls] == [(1, 5), (2, None)]


def test_a_name_that_is_taken_says_by_which(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/datasets",
        '{"error": "This workspace already has a dataset called maze-walks", "code": "CONFLICT",'
        ' "existing_dataset_id": "ds_31"}',
        status=409,
    )
    with pytest.raises(PlatformError) as caught:
        client.datasets.create("maze-walks", size_bytes=1, extension="csv")
    assert caught.value.code == "CONFLICT"
    assert caught.value.details["existing_dataset_id"] == "ds_31"


def test_completing_says_parts_only_when_there_are_any(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/datasets/ds_1/complete", '{"id": "ds_1", "status": "processing"}')
    client.datasets.complete("ds_1", extension="csv")
    assert wire.sent == {"file_extension": "csv"}
    client.datasets.complete("ds_1", extension="csv", parts=[CompletedPart(PartNumber=1, ETag="abc")])
    assert wire.sent == {"file_extension": "csv", "parts": [{"PartNumber": 1, "ETag": "abc"}]}


def test_aborting(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/datasets/ds_1/abort", "", status=204)
    client.datasets.abort("ds_1")
    assert wire.sent == {}


@pytest.mark.parametrize(
    "reply",
    [
        '{"presigned_url": "https://b.example/x?sig=canary", "expires_in": 60, "file_name": "maze.csv"}',
        '{"presignedUrl": "https://b.example/x?sig=canary", "expiresIn": 60, "fileName": "maze.csv"}',
        '{"presigned_url": null, "presignedUrl": "https://b.example/x?sig=canary", "expires_in": 60,'
        ' "file_name": null, "download_file_name": "maze.csv"}',
        '{"presigned_url": "https://b.example/x?sig=canary", "expires_in": 60, "downloadFileName": "maze.csv"}',
    ],
)
def test_where_to_download_in_every_spelling(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/datasets/maze/download", reply)
    found = client.datasets.download("maze")
    assert found.presigned_url == "https://b.example/x?sig=canary"
    assert (found.expires_in, found.file_name) == (60, "maze.csv")
    assert "canary" not in repr(found)


@pytest.mark.parametrize("reply", ["{}", '{"presigned_url": null}'])
def test_a_download_without_a_url_is_none(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/datasets/maze/download", reply)
    with pytest.raises(PlatformError, match="presigned_url"):
        client.datasets.download("maze")


def test_logs(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/datasets/maze/logs?limit=20&direction=newer&cursor=2026-11-03T08%3A12%3A44Z%7C7",
        """{"logs": [{"timestamp": "2026-11-03T08:12:45Z", "level": "error", "step": "validate",
                      "message": "row 3: no prompt", "details": {"row": 3}},
                     {"timestamp": null, "level": null, "step": null, "message": null, "details": null}, {}],
            "next_cursor": "2026-11-03T08:12:45Z|8"}""",
    )
    page = client.datasets.logs("maze", limit=20, direction="newer", cursor="2026-11-03T08:12:44Z|7")
    assert (page.logs[0].message, page.logs[0].details) == ("row 3: no prompt", {"row": 3})
    assert page.logs[1].message is None and page.logs[2].level is None
    assert page.next_cursor == "2026-11-03T08:12:45Z|8"


def test_log_details_that_are_no_object_are_dropped(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/datasets/maze/logs?limit=50&direction=older",
        '{"logs": [{"message": "a", "details": "text"}, {"message": "b", "details": [1]}]}',
    )
    page = client.datasets.logs("maze")
    assert [(line.message, line.details) for line in page.logs] == [("a", None), ("b", None)]


@pytest.mark.parametrize("reply", ["{}", '{"logs": null, "next_cursor": null}'])
def test_no_logs(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/datasets/maze/logs?limit=50&direction=older", reply)
    page = client.datasets.logs("maze")
    assert (page.logs, page.next_cursor) == ([], None)

"""Uploads of datasets."""

from __future__ import annotations

import pytest

from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.datasets import (
    CompletedPart,
    Dataset,
    DatasetCompleteRequest,
    DatasetCreateRequest,
    DatasetDownload,
)
from tests.contract.conftest import Wire


def create(client: PlatformClient, name: str, size: int, extension: str, **more: str) -> Dataset:
    request = DatasetCreateRequest(file_name=name, file_size=size, extension=extension, **more)
    return client.post("/api/cli/datasets", request, model=Dataset)


@pytest.mark.parametrize(
    "name, path",
    [("a/b c", "a%2Fb%20c"), ("..", "%2E%2E"), ("größe", "gr%C3%B6%C3%9Fe"), ("x" * 300, "x" * 300)],
)
def test_a_name_is_one_path_segment(client: PlatformClient, wire: Wire, name: str, path: str) -> None:
    wire.answers("GET", f"/api/cli/datasets/{path}/download", '{"presigned_url": "https://b.example/x"}')
    client.get(f"/api/cli/datasets/{segment(name)}/download", model=DatasetDownload)


def test_simple_upload(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/datasets",
        """{"id": "ds_1", "status": "pending", "upload": {"method": "simple", "s3_key": "k/1", "upload_id": null,
            "presigned_url": "https://b.example/k?sig=canary", "upload_headers": {"Content-Type": "text/csv"},
            "expires_in": 900, "presigned_urls": null, "part_size": null}}""",
        status=201,
    )
    made = create(client, "maze", 2048, "csv")
    assert wire.sent == {"file_name": "maze", "file_size": 2048, "extension": "csv"}
    assert made.upload is not None
    assert (made.upload.method, made.upload.presigned_url) == ("simple", "https://b.example/k?sig=canary")
    assert made.upload.upload_headers == {"Content-Type": "text/csv"}
    assert "canary" not in repr(made)


def test_an_upload_without_a_method_is_simple(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST", "/api/cli/datasets", '{"id": "d", "upload": {"presigned_url": "u", "upload_headers": null}}'
    )
    made = create(client, "maze", 1, "csv")
    assert made.upload is not None and (made.upload.method, made.upload.upload_headers) == ("simple", {})


def test_multipart_upload_over_an_existing_dataset(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/datasets",
        """{"id": "ds_31", "upload": {"method": "multipart", "part_size": 5, "total_parts": 2, "s3_key": "k",
            "upload_id": "up", "presigned_urls": [
              {"part_number": 1, "presigned_url": "https://b.example/1", "size": 5},
              {"part_number": 2, "presigned_url": "https://b.example/2", "size": null}]}}""",
    )
    made = create(client, "maze", 8, "jsonl", overwrite_dataset_id="ds_31")
    assert wire.sent["overwrite_dataset_id"] == "ds_31"
    assert made.upload is not None
    assert [(part.part_number, part.size) for part in made.upload.presigned_urls] == [(1, 5), (2, None)]


def test_a_conflict_names_the_existing_dataset(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/datasets",
        '{"error": "This workspace already has a dataset called maze-walks", "code": "CONFLICT",'
        ' "existing_dataset_id": "ds_31"}',
        status=409,
    )
    with pytest.raises(PlatformError) as caught:
        create(client, "maze-walks", 1, "csv")
    assert caught.value.code == "CONFLICT"
    assert caught.value.details["existing_dataset_id"] == "ds_31"


def test_completing_an_upload(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/datasets/ds_1/complete", '{"id": "ds_1", "status": "processing"}')
    path, request = "/api/cli/datasets/ds_1/complete", DatasetCompleteRequest(file_extension="csv")
    client.post(path, request, model=Dataset)
    assert wire.sent == {"file_extension": "csv"}
    request.parts = [CompletedPart(PartNumber=1, ETag="abc")]
    client.post(path, request, model=Dataset)
    assert wire.sent == {"file_extension": "csv", "parts": [{"PartNumber": 1, "ETag": "abc"}]}


def test_aborting_an_upload(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/datasets/ds_1/abort", "", status=204)
    client.post("/api/cli/datasets/ds_1/abort", model=WireModel)
    assert wire.sent == {}

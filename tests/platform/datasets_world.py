"""What tests of datasets share: files, and a client that announces, sends and completes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from fastapi.testclient import TestClient

if TYPE_CHECKING:
    from tests.platform.conftest import World

DATASETS = "/api/cli/datasets"


def rows(count: int = 10, word: str = "row") -> bytes:
    """Return a JSON Lines file that is a good dataset."""
    return b"".join(
        json.dumps({"user_prompt": f"{word} {n}", "ground_truth": str(n)}).encode() + b"\n"
        for n in range(count)
    )


@dataclass
class Uploads:
    """A member who uploads datasets."""

    client: TestClient
    world: World
    headers: dict[str, str] = field(repr=False)

    def request(self, method: str, path: str = "", **options: Any) -> httpx.Response:
        response: httpx.Response = self.client.request(
            method, f"{DATASETS}{path}", headers=self.headers, **options
        )
        return response

    def announce(self, name: str, size: int, extension: str = "jsonl", **more: Any) -> httpx.Response:
        body = {"file_name": name, "file_size": size, "extension": extension, **more}
        return self.request("POST", json=body)

    def begin(self, name: str, data: bytes, extension: str = "jsonl", **more: Any) -> dict[str, Any]:
        reply = self.announce(name, len(data), extension, **more)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def send(self, dataset: dict[str, Any], data: bytes) -> list[dict[str, Any]] | None:
        """PUT all bytes as the instructions say; returns what to complete a multipart upload with."""
        upload = dataset["upload"]
        if upload["method"] == "simple":
            assert self.client.put(upload["presigned_url"], content=data).status_code == 200
            return None
        size = upload["part_size"]
        parts = []
        for part in upload["presigned_urls"]:
            number = part["part_number"]
            reply = self.client.put(part["presigned_url"], content=data[(number - 1) * size : number * size])
            assert reply.status_code == 200, reply.text
            parts.append({"PartNumber": number, "ETag": reply.headers["ETag"].strip('"')})
        return parts

    def complete(
        self, dataset_id: str, parts: list[dict[str, Any]] | None = None, extension: str = "jsonl"
    ) -> httpx.Response:
        body: dict[str, Any] = {"file_extension": extension}
        if parts is not None:
            body["parts"] = parts
        return self.request("POST", f"/{dataset_id}/complete", json=body)

    def upload(self, name: str, data: bytes, extension: str = "jsonl", **more: Any) -> dict[str, Any]:
        """Upload a file and return its dataset when it has been checked."""
        dataset = self.begin(name, data, extension, **more)
        reply = self.complete(dataset["id"], self.send(dataset, data), extension)
        assert reply.status_code == 200, reply.text
        self.settle()
        return self.get(dataset["id"])

    def settle(self) -> None:
        assert self.world.services.datasets.ingest.wait_idle(300)

    def stop_checks(self) -> None:
        """Check no more files, like a platform that is just going down."""
        self.world.services.datasets.ingest.close()

    def get(self, name_or_id: str) -> dict[str, Any]:
        reply = self.request("GET", f"/{name_or_id}")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def messages(self, dataset_id: str, level: str | None = None) -> list[str]:
        entries = self.request("GET", f"/{dataset_id}/logs").json()["logs"]
        return [entry["message"] for entry in entries if level in (None, entry["level"])]

    def fetch(self, name_or_id: str) -> bytes:
        reply = self.request("GET", f"/{name_or_id}/download")
        assert reply.status_code == 200, reply.text
        content: bytes = self.client.get(reply.json()["presigned_url"]).content
        return content

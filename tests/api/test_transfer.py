"""Uploads and downloads of blobs: whole files, interruptions, hostile stores."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.models.datasets import CompletedPart, UploadInstructions, UploadIntent
from osmosis_ai.api.transfer import BlobClient, Progress, TransferError, download, upload_file
from osmosis_ai.api.upload_records import find_unfinished_upload, note_intent, open_upload
from osmosis_ai.errors import OsmosisError
from tests.api.blob_server import SIGNATURE, BlobServer, cut_after, serve, status

CONTENT = os.urandom(2_500)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as server:
        yield server


def _refused(call: Any) -> OsmosisError:
    with pytest.raises(OsmosisError) as caught:
        call()
    assert SIGNATURE not in f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    assert caught.value.__cause__ is None
    return caught.value


@dataclass
class Uploads:
    """Uploads of one file to a store."""

    store: BlobServer
    client: BlobClient
    source: Path

    def simple(self, **changes: Any) -> UploadInstructions:
        given = {"method": "simple", "presigned_url": self.store.signed("whole"), "s3_key": "k", **changes}
        return UploadInstructions.model_validate(given)

    def parts(self, **changes: Any) -> UploadInstructions:
        urls = [{"part_number": n, "presigned_url": self.store.signed(f"part{n}")} for n in (1, 2, 3)]
        given = {"method": "multipart", "part_size": 1_000, "total_parts": 3, "upload_id": "up_1"}
        return UploadInstructions.model_validate(
            {**given, "presigned_urls": urls, "expires_in": 3600, **changes}
        )

    def send(
        self,
        instructions: UploadInstructions,
        *,
        progress: Progress | None = None,
        state_dir: Path | None = None,
        **record: str,
    ) -> list[CompletedPart] | None:
        """Upload the file, with a record if there is a directory for it."""
        given = {"dataset_id": "d", "digest": DIGEST, "scope": "a", **record}
        kept = open_upload(state_dir, instructions=instructions, **given) if state_dir else None
        return upload_file(self.source, instructions, progress=progress, client=self.client, record=kept)

    def refused(self, instructions: UploadInstructions, **options: Any) -> OsmosisError:
        return _refused(lambda: self.send(instructions, **options))


@pytest.fixture
def uploads(store: BlobServer, blobs: BlobClient, tmp_path: Path) -> Uploads:
    source = tmp_path / "maze.csv"
    source.write_bytes(CONTENT)
    return Uploads(store, blobs, source)


def test_single_upload_headers(store: BlobServer, uploads: Uploads) -> None:
    seen: list[int] = []
    framing = {"content-length": "5", "Transfer-Encoding": "chunked", "Host": "evil.example"}
    given = {"Content-Type": "text/csv", "x-amz-meta-a": "b", **framing}
    done = uploads.send(uploads.simple(upload_headers=given), progress=seen.append)
    assert store.blobs["whole"] == CONTENT
    assert done is None
    headers = store.seen[0].headers
    assert headers["content-length"] == "2500" and "transfer-encoding" not in headers
    assert headers["host"] == store.url.removeprefix("http://")
    assert headers["content-type"] == "text/csv" and headers["x-amz-meta-a"] == "b"
    assert "authorization" not in headers
    assert seen[-1] == len(CONTENT)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_busy_store_is_retried(store: BlobServer, uploads: Uploads, slept: list[float], code: int) -> None:
    store.answers = [status(code)] * 4
    uploads.send(uploads.simple())
    assert store.blobs["whole"] == CONTENT and slept == [1, 2, 4, 8]
    store.answers = [status(code)] * 5
    error = uploads.refused(uploads.simple())
    assert isinstance(error, TransferError) and error.status == code
    assert error.message == f"{store.url}/<redacted URL> returned HTTP {code}."


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_upload_follows_no_redirect(store: BlobServer, uploads: Uploads, code: int) -> None:
    store.answers = [status(code, Location=store.signed("elsewhere"))]
    assert "redirected" in uploads.refused(uploads.simple()).message
    assert store.blobs == {}


@pytest.mark.parametrize(
    "url",
    [
        f"http://blobs.example/b?{SIGNATURE}",
        f"ftp://127.0.0.1/b?{SIGNATURE}",
        f"file:///etc/passwd?{SIGNATURE}",
        f"//blobs.example/{SIGNATURE}",
        f"https://[::1/{SIGNATURE}",
        "",
    ],
)
def test_insecure_upload_urls(uploads: Uploads, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OSMOSIS_ALLOW_INSECURE_PLATFORM_URL", "1")
    uploads.refused(UploadInstructions(presigned_url=url))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"method": "carrier-pigeon"}, "no upload method 'carrier-pigeon'"),
        ({"part_size": None}, "`part_size` and `total_parts` are missing"),
        ({"part_size": 1250}, "are not the 2500 bytes"),
        ({"part_size": 833}, "are not the 2500 bytes"),
        ({"part_size": 0}, "are not the 2500 bytes"),
        ({"total_parts": 2}, "are not the 2500 bytes"),
        ({"presigned_urls": []}, "one URL for each of the parts 1 to 3"),
        ({"presigned_urls": [{"part_number": 1, "presigned_url": "https://x"}] * 3}, "one URL for each"),
        (
            {
                "presigned_urls": [
                    {"part_number": n, "presigned_url": "https://x", "size": 1000} for n in (1, 2, 3)
                ]
            },
            "part 3 has 500 bytes, not 1000",
        ),
        ({"method": "simple"}, "`presigned_url` is missing"),
    ],
)
def test_invalid_upload_instructions(
    store: BlobServer, uploads: Uploads, changes: dict[str, Any], words: str
) -> None:
    assert words in uploads.refused(uploads.parts(**changes)).message
    assert store.seen == []


def test_file_changed_during_upload(store: BlobServer, uploads: Uploads) -> None:
    def grow(done: int) -> None:
        if done == 1000:
            with uploads.source.open("ab") as handle:
                handle.write(b"more")

    error = uploads.refused(uploads.parts(), progress=grow)
    assert "changed during the upload" in error.message
    assert store.asked("PUT") == ["part1"]


def test_urls_are_not_logged(uploads: Uploads, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    uploads.send(uploads.parts())
    assert SIGNATURE not in caplog.text
    assert SIGNATURE not in repr(uploads.parts())


# Resume


@pytest.mark.parametrize(
    "dataset_id, changes", [("d", {"upload_id": "up_2"}), ("other", {}), ("d", {"s3_key": "another"})]
)
def test_record_of_another_upload_is_not_used(
    store: BlobServer, uploads: Uploads, tmp_path: Path, dataset_id: str, changes: dict[str, Any]
) -> None:
    store.answers = [None, status(403)]
    uploads.refused(uploads.parts(), state_dir=tmp_path, dataset_id="d")
    uploads.send(uploads.parts(**changes), state_dir=tmp_path, dataset_id=dataset_id)
    assert store.asked("PUT")[2:] == ["part1", "part2", "part3"]


def test_unusable_upload_records(uploads: Uploads, tmp_path: Path) -> None:
    state = tmp_path / "s"
    uploads.send(uploads.parts(), state_dir=state, dataset_id="d", scope="a")
    (record,) = state.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state, record)] == [0o700, 0o600]
    assert find_unfinished_upload(state, digest=DIGEST, scope="b") is None
    assert find_unfinished_upload(state, digest="0" * 64, scope="a") is None
    later = datetime.now(timezone.utc) + timedelta(seconds=3590)
    assert find_unfinished_upload(state, digest=DIGEST, scope="a") is not None
    whole = record.read_text()
    for damage in ("", "{", "[]", whole.replace('"version": 1', '"version": 9'), json.dumps({"version": 1})):
        record.write_text(damage)
        assert find_unfinished_upload(state, digest=DIGEST, scope="a") is None
    record.write_text(whole)
    assert find_unfinished_upload(state, digest=DIGEST, scope="a", now=later) is None
    assert not record.exists()


INTENDED = "a" * 64


def test_upload_intent(tmp_path: Path) -> None:
    first, file = note_intent(tmp_path / "state", digest=INTENDED, scope="here fern/agents sums")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert note_intent(tmp_path / "state", digest=INTENDED, scope="here fern/agents sums") == (first, file)
    for other, _ in (
        note_intent(tmp_path / "state", digest="b" * 64, scope="here fern/agents sums"),
        note_intent(tmp_path / "state", digest=INTENDED, scope="there fern/agents sums"),
    ):
        assert other.id != first.id
    file.unlink()
    assert note_intent(tmp_path / "state", digest=INTENDED, scope="here fern/agents sums")[0] != first


def test_upload_intent_header() -> None:
    intent = UploadIntent("1" * 32, INTENDED)
    assert UploadIntent.of(intent.header) == intent
    for header in (None, "", "x", intent.header.upper(), intent.header + "0", f"; sha256={INTENDED}"):
        assert UploadIntent.of(header) is None


SMALL = b"a,b\n1,2\n"
LARGE = os.urandom(3_000_000)
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()


@dataclass
class Downloads:
    """Downloads of blobs to one file."""

    store: BlobServer
    client: BlobClient
    path: Path

    def get(self, blob: str, **options: Any) -> str | None:
        return download(self.store.signed(blob), self.path, client=self.client, **options)

    def refused(self, blob: str, **options: Any) -> OsmosisError:
        return _refused(lambda: self.get(blob, **options))

    def left(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())

    def ranges(self) -> list[str | None]:
        return [request.headers.get("range") for request in self.store.seen]


@pytest.fixture
def downloads(store: BlobServer, blobs: BlobClient, tmp_path: Path) -> Downloads:
    store.blobs.update(small=SMALL, large=LARGE)
    return Downloads(store, blobs, tmp_path / "x")


def test_failed_download_keeps_the_file(downloads: Downloads) -> None:
    downloads.path.write_bytes(b"old")
    downloads.store.answers = [status(404)]
    downloads.refused("small")
    assert downloads.path.read_bytes() == b"old"
    downloads.get("small")
    assert downloads.path.read_bytes() == SMALL


def test_interrupted_download_continues(downloads: Downloads, slept: list[float]) -> None:
    downloads.store.answers = [cut_after(2_000_000), cut_after(500_000)]
    downloads.get("large", expected_sha256=LARGE_SHA256)
    assert downloads.path.read_bytes() == LARGE
    assert downloads.ranges() == [None, "bytes=2000000-", "bytes=2500000-"]
    assert slept == [0.5, 1]


@pytest.mark.parametrize(
    ("begins", "of"), [(2_000_000, b"another"), (1_999_999, LARGE)], ids=["etag", "range"]
)
def test_inconsistent_range_reply(downloads: Downloads, begins: int, of: bytes) -> None:
    def lie(handler: Any) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begins}-2999999/3000000")
        handler.send_header("ETag", f'"{hashlib.md5(of).hexdigest()}"')
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"x" * 1_000_000)

    downloads.store.answers = [cut_after(2_000_000), lie]
    downloads.get("large")
    assert downloads.path.read_bytes() == LARGE


def test_download_without_etag_restarts(downloads: Downloads) -> None:
    downloads.store.etags = False
    downloads.store.answers = [cut_after(2_000_000)] * 3
    downloads.refused("large")
    assert downloads.left() == []
    downloads.store.answers = [cut_after(2_000_000)]
    downloads.get("large")
    assert downloads.ranges() == [None] * 5


@pytest.mark.parametrize("expected", [len(LARGE) - 1, len(LARGE) + 1, 0])
def test_unexpected_size(downloads: Downloads, expected: int) -> None:
    error = downloads.refused("large", expected_size=expected)
    assert f"has 3000000 bytes instead of {expected}" in error.message
    assert downloads.left() == []


def test_endless_reply(downloads: Downloads) -> None:
    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    downloads.store.answers = [endless]
    assert "more than 1000 bytes" in downloads.refused("large", expected_size=1000).message
    assert downloads.left() == []


def test_unexpected_digest(downloads: Downloads, slept: list[float]) -> None:
    error = downloads.refused("large", expected_sha256="0" * 64)
    assert isinstance(error, TransferError)
    assert error.details["sha256"] == LARGE_SHA256
    assert downloads.left() == [] and slept == []


def test_damaged_partial_file(downloads: Downloads) -> None:
    downloads.store.answers = [cut_after(2_000_000), status(503), status(503)]
    downloads.refused("large")
    with downloads.path.with_name("x.partial").open("r+b") as handle:
        handle.write(b"damage")
    downloads.get("large", expected_sha256=LARGE_SHA256)
    assert downloads.path.read_bytes() == LARGE


@pytest.mark.parametrize("code, calls", [(404, 1), (403, 1), (400, 1), (500, 3), (503, 3), (429, 3)])
def test_download_retries(downloads: Downloads, code: int, calls: int) -> None:
    downloads.store.answers = [status(code)] * calls
    error = downloads.refused("small")
    assert error.message == f"{downloads.store.url}/<redacted URL> returned HTTP {code}."
    assert len(downloads.store.seen) == calls and downloads.left() == []


def test_download_redirects(downloads: Downloads) -> None:
    store = downloads.store
    store.answers = [status(302, Location=store.signed("small")), status(307, Location="/small")]
    downloads.get("other")
    assert downloads.path.read_bytes() == SMALL
    store.answers = [status(302, Location=f"http://blobs.example/{SIGNATURE}")]
    assert "URL is not HTTPS" in downloads.refused("a").message
    store.answers = [status(302, Location=store.signed("loop"))] * 30
    assert "endlessly" in downloads.refused("a").message


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "a/b", "a\\b"])
def test_suggested_name_with_a_path(downloads: Downloads, name: str) -> None:
    downloads.store.answers = [status(200, Content_Disposition=f'attachment; filename="{name}"')]
    assert downloads.get("small") is None


def test_concurrent_downloads_to_one_file(downloads: Downloads) -> None:
    errors: list[OsmosisError] = []
    downloads.get("small", progress=lambda _: errors.append(downloads.refused("small")))
    assert [error.code for error in errors] == ["CONFLICT"]
    assert downloads.path.read_bytes() == SMALL


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from osmosis_ai.api.transfer import download
from osmosis_ai.errors import OsmosisError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
try:
    download(sys.argv[1], Path(sys.argv[2]))
except OsmosisError as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.integration
def test_full_disk(downloads: Downloads) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _LIMITED, downloads.store.signed("large"), str(downloads.path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cannot be written" in said and "run the command again" in said
    assert downloads.left() == ["x.partial", "x.partial.json"]
    downloads.get("large", expected_sha256=LARGE_SHA256)
    assert downloads.store.seen[-1].headers["range"] == "bytes=2000000-"


_DOWNLOADS = """
import sys
from pathlib import Path
from osmosis_ai.api.transfer import download
download(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.integration
def test_killed_download(downloads: Downloads) -> None:
    half, release = threading.Event(), threading.Event()

    def hold(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("ETag", f'"{hashlib.md5(LARGE).hexdigest()}"')
        handler.send_header("Content-Length", str(len(LARGE)))
        handler.end_headers()
        handler.wfile.write(LARGE[:2_000_000])
        half.set()
        release.wait(300)
        handler.hang_up()

    downloads.store.answers = [hold]
    target = downloads.path
    child = subprocess.Popen([sys.executable, "-c", _DOWNLOADS, downloads.store.signed("large"), str(target)])
    try:
        assert half.wait(300)
        partial = target.with_name("x.partial")
        while not partial.exists() or partial.stat().st_size < 1_000_000:
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        release.set()
    assert not target.exists()
    downloads.get("large", expected_sha256=LARGE_SHA256)
    assert target.read_bytes() == LARGE
    assert downloads.store.seen[-1].headers["range"].startswith("bytes=")

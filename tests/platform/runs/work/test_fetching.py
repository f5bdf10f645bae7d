"""What a worker fetches and sends comes from a store and goes there; others may stand in its place for a while, and say anything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from osmosis_ai.api.retrying import Waits
from osmosis_ai.api.transfer.client import TransferError
from osmosis_ai.api.wire.workers import InputDownload, JournalSegment, UploadGrant
from osmosis_ai.platform.runs.work import http_link
from osmosis_ai.platform.runs.work.http_link import HttpLink, StoredBytesError
from osmosis_ai.platform.runs.work.platform_link import PlatformUnreachableError, StoreAwayError
from tests.platform.runs.work.socket_server import SocketServer

CONTENT = b"rows"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ROWS = InputDownload(url="/blobs/rows", size=len(CONTENT), sha256=DIGEST)


class Bucket:
    """Gives its answers one after the other; the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Response] = []
        self.asked = 0
        self.app = Starlette(routes=[Route("/blobs/{name}", self.blob, methods=["GET", "PUT"])])

    async def blob(self, asked: Request) -> Response:
        self.asked += 1
        await asked.body()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def link(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpLink]:
    monkeypatch.setattr(http_link, "_BLOB_WAITS", Waits((0.0, 0.0)))
    with SocketServer(bucket.app) as server:
        made = HttpLink(server.address, "ticket")
        # As often as there are waits, and no longer.
        monkeypatch.setattr(made, "_term_s", 1e-6)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("status", "body"),
    [(403, b""), (403, b"<Error>no</Error>"), (500, b""), (501, b""), (507, b""), (200, b""), (200, b"ro")],
)
def test_what_no_store_says_of_bytes_that_it_has_is_waited_for(
    link: HttpLink, bucket: Bucket, tmp_path: Path, status: int, body: bytes
) -> None:
    def answer() -> Response:
        return Response(body, status_code=status)

    bucket.answers = [answer(), answer(), Response(CONTENT)]
    link.fetch(ROWS, tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == CONTENT and bucket.asked == 3

    bucket.answers, bucket.asked = [answer()], 0
    words = "no ETag: what answers is no store just now" if status == 200 else f"answered HTTP {status}"
    with pytest.raises(PlatformUnreachableError, match=words) as said:
        link.fetch(ROWS, tmp_path / "others")
    assert said.value.hint is None, "no command is to be run again"
    assert isinstance(said.value, StoreAwayError) is (status in (200, 500)), "a refusal is counted"
    assert bucket.asked == 3 and [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_a_store_that_was_waited_for_is_not_slow(
    link: HttpLink, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package has a function of the module's name.
    fetching = import_module("osmosis_ai.api.transfer.download")
    monkeypatch.setattr(fetching, "time", SimpleNamespace(monotonic=lambda: 3600.0 * bucket.asked))
    bucket.answers = [Response(status_code=503), Response(CONTENT)]
    link.fetch(ROWS, tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == CONTENT


def test_nothing_is_no_packed_part_of_a_journal(link: HttpLink, bucket: Bucket, tmp_path: Path) -> None:
    bucket.answers = [Response(b""), Response(b"packed")]
    part = JournalSegment(url="/blobs/part", size=9, sha256=DIGEST, offset=0, packed=True)
    link.fetch(part, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == b"packed"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Response(b"ro", headers={"ETag": '"tag"'}), "has 2 bytes instead of 4"),
        (Response(b"sowr", headers={"ETag": '"tag"'}), "has other bytes than announced"),
        (Response(b"", status_code=404), "answered HTTP 404"),
    ],
)
def test_what_a_store_has_not_is_said_at_once(
    link: HttpLink, bucket: Bucket, tmp_path: Path, answer: Response, words: str
) -> None:
    bucket.answers = [answer]
    with pytest.raises(StoredBytesError, match=words):
        link.fetch(ROWS, tmp_path / "rows")
    assert bucket.asked == 1


@pytest.mark.parametrize(
    ("status", "tries"), [(403, 1), (404, 1), (405, 1), (410, 1), (500, 3), (501, 1), (503, 3), (507, 1)]
)
def test_bytes_that_a_store_does_not_take_for_now_fail_no_run_and_are_sent_to_a_new_place(
    link: HttpLink, bucket: Bucket, status: int, tries: int
) -> None:
    grant, content = UploadGrant(name="files/a", id="upload", url="/blobs/a"), BytesIO(CONTENT)
    bucket.answers = [Response(status_code=status)]
    with pytest.raises(PlatformUnreachableError, match=f"answered HTTP {status}") as said:
        link.send(grant, content, len(CONTENT))
    assert said.value.hint is None, "no command is to be run again"
    assert isinstance(said.value, StoreAwayError) is (tries > 1), "a refusal is counted"
    assert bucket.asked == tries, "a URL whose time is over is asked for anew, by whoever says it again"
    bucket.answers = [Response(headers={"ETag": '"tag"'})]
    assert link.send(grant, content, len(CONTENT)) == "tag"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_bytes_that_a_store_never_takes_are_said_to_be_so_at_once(
    link: HttpLink, bucket: Bucket, status: int
) -> None:
    bucket.answers = [Response(status_code=status)]
    with pytest.raises(TransferError, match=f"answered HTTP {status}"):
        link.send(UploadGrant(name="files/a", id="upload", url="/blobs/a"), BytesIO(CONTENT), len(CONTENT))
    assert bucket.asked == 1

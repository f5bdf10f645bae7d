"""Whatever answers in a store's place: byte by byte, broken off, or with a page, it holds nobody and is said in a sentence."""

from __future__ import annotations

import io
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from osmosis_ai.api import retrying
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreSilent, BlobUpload
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.s3_address import parse_s3_address

OBJECT = b'HTTP/1.1 206 Partial Content\r\nETag: "1"\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n\r\n'
XHTML = b"<html><body>Please pay!</body></html>"


def _closing(body: bytes, headers: bytes = b"") -> bytes:
    described = headers + b"Content-Length: %d\r\nConnection: close\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\n" + described + b"\r\n" + body


PAGES = {
    "nothing": _closing(b""),
    "a page that is XML": _closing(XHTML, b"Content-Type: text/html\r\n"),
    "a file of a web server": _closing(XHTML, b'Content-Type: text/html\r\nETag: "1"\r\n'),
}
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\n\r\nPlease pay! "
Answer = Callable[[Callable[[bytes], None]], None]


class Pretended:
    """A store that answers every request in one way.

    Attributes:
        asked: how often it was.
        ended: set when the answer to one was cut off by whoever asked.
    """

    def __init__(self, answer: Answer) -> None:
        self.asked = 0
        self.ended = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                headers = dict[bytes, bytes]()
                while line := self.rfile.readline().strip():
                    name, _, value = line.partition(b": ")
                    headers[name.lower()] = value
                outer.asked += 1
                if b"expect" in headers:
                    self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                # Closed with bytes unread, a connection breaks off before its answer is heard.
                self.rfile.read(int(headers.get(b"content-length", b"0")))
                with suppress(OSError):
                    answer(lambda words: (self.wfile.write(words), self.wfile.flush())[1])
                    return
                outer.ended.set()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Answer], tuple[Pretended, S3BlobStore]]]:
    """Gives a store that answers so, and the platform's side of it."""
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "osmosis-test-key-0001")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "osmosis-test-secret-0001")
    pretended: list[Pretended] = []

    def make(answer: Answer) -> tuple[Pretended, S3BlobStore]:
        pretended.append(Pretended(answer))
        address = parse_s3_address(f"s3://bucket?endpoint={pretended[-1].url}")
        return pretended[-1], S3BlobStore(address, SystemClock(), BlobCopies(tmp_path), attempts=1)

    yield make
    for each in pretended:
        each.close()


def test_a_store_that_sends_a_byte_now_and_then_is_given_up_and_kept_from_others(
    answering: Callable[[Answer], tuple[Pretended, S3BlobStore]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "AT_LEAST_S", 0.2)
    given_up = threading.Event()

    def trickle(send: Callable[[bytes], None]) -> None:
        send(OBJECT)
        while not given_up.wait(0.02):
            send(b"x")

    server, store = answering(trickle)
    try:
        with pytest.raises(BlobStoreSilent, match=r"is too slow: of 1000 bytes \d+ came in"):
            store.open("runs/a")
        assert server.ended.wait(60), "it is not listened to any more"
        with pytest.raises(BlobStoreSilent):
            store.open("runs/a")
        assert server.asked == 1
    finally:
        given_up.set()


def test_a_body_that_breaks_off_is_asked_for_again(
    answering: Callable[[Answer], tuple[Pretended, S3BlobStore]],
) -> None:
    server, store = answering(
        lambda send: send(OBJECT + b"x" * 400) if server.asked < 3 else send(OBJECT + b"x" * 1000)
    )
    with store.open("runs/a") as stored:
        assert stored.read() == b"x" * 1000
    assert server.asked == 3


def test_a_page_in_a_stores_place_is_no_file_and_passes(
    answering: Callable[[Answer], tuple[Pretended, S3BlobStore]],
) -> None:
    _, store = answering(lambda send: send(PAGE))
    for asked in (lambda: store.open("runs/a"), lambda: store.size("runs/a")):
        with pytest.raises(BlobStoreBusy, match="is no store just now"):
            asked()


@pytest.mark.parametrize("page", list(PAGES))
def test_nothing_is_taken_for_stored_read_or_listed_that_a_page_in_a_stores_place_says_is_well(
    answering: Callable[[Answer], tuple[Pretended, S3BlobStore]], page: str
) -> None:
    _, store = answering(lambda send: send(PAGES[page]))
    upload = BlobUpload("upload", "runs/a")
    asked: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("runs/a", io.BytesIO(b"a journal that is deleted when it was stored")),
        "put in parts": lambda: store.put("runs/a", io.BytesIO(bytes(17 << 20))),
        "read": lambda: store.read("runs/a", 0, 1000),
        "open": lambda: store.open("runs/a"),
        "keys": lambda: list(store.keys("runs")),
        "begin": lambda: store.begin_upload("runs/a"),
        "parts": lambda: store.parts(upload),
        "complete": lambda: store.complete_upload(upload, ["1"]),
        "unfinished": lambda: list(store.unfinished_uploads()),
        "delete": lambda: store.delete("runs/a"),
        "delete below": lambda: store.delete_below("runs"),
    }
    for what, ask in asked.items():
        with pytest.raises(BlobStoreBusy, match="is no store just now"):
            raise AssertionError(f"{what}: {ask()}")


THERE = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 9\r\nConnection: close\r\n\r\n'
GONE = b"<Error><Code>NoSuchKey</Code></Error>"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


def test_a_deletion_that_is_not_said_as_stores_do_is_believed_when_nothing_is_there_any_more(
    answering: Callable[[Answer], tuple[Pretended, S3BlobStore]],
) -> None:
    answers = [_closing(b""), NOT_FOUND % 0, NOT_FOUND % len(GONE) + GONE]
    server, store = answering(lambda send: send(answers[server.asked - 1]))
    store.delete("runs/a")
    assert server.asked == 3

    kept, other = answering(lambda send: send(_closing(b"") if kept.asked == 1 else THERE))
    with pytest.raises(BlobStoreBusy, match="has deleted nothing just now; it is asked again later"):
        other.delete("runs/a")

    plain, real = answering(lambda send: send(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"))
    real.delete("runs/a")
    assert plain.asked == 1, "what a store says itself is not asked about"


NO_UPLOAD = b"<Error><Code>NoSuchUpload</Code></Error>"
LISTED = b"<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>"


def test_an_upload_is_given_up_when_a_store_says_so_or_has_it_no_more(
    answering: Callable[[Answer], tuple[Pretended, S3BlobStore]],
) -> None:
    upload = BlobUpload("upload", "runs/a")
    gone, store = answering(
        lambda send: send(_closing(b"") if gone.asked == 1 else NOT_FOUND % len(NO_UPLOAD) + NO_UPLOAD)
    )
    store.abort_upload(upload)
    assert gone.asked == 2

    kept, other = answering(lambda send: send(_closing(b"" if kept.asked == 1 else LISTED)))
    with pytest.raises(BlobStoreBusy, match="has deleted nothing just now; it is asked again later"):
        other.abort_upload(upload)

    plain, real = answering(lambda send: send(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"))
    real.abort_upload(upload)
    assert plain.asked == 1, "what a store says itself is not asked about"

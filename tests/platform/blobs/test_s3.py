"""The store in a bucket, where the bucket is not as it should be: one sentence each, and never a secret in it."""

from __future__ import annotations

import io
import json
import logging
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs import s3
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.incoming import IncomingFile
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import (
    BlobStoreBusy,
    BlobStoreError,
    BlobUpload,
)
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.s3_address import S3Address, parse_s3_address
from osmosis_ai.platform.worker.process import worker_environment

pytestmark = pytest.mark.integration
KEY, SECRET = "AKIAPLANTED00000001", "planted-secret-0001"


@dataclass
class Scripted:
    """A store that says what it is told to say."""

    endpoint: str = ""
    status: int = 200
    code: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def fails(self, status: int, code: str) -> None:
        self.status, self.headers = status, {}
        # What a store says may repeat what was signed.
        said = f"{SECRET} {KEY}"
        self.body = f"<Error><Code>{code}</Code><Message>{said}</Message></Error>".encode()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            script.seen.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(script.status)
            for name, value in ({"Content-Length": str(len(script.body))} | script.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(script.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    script.endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    yield script
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(scripted: Scripted, tmp_path: Path) -> S3BlobStore:
    address = S3Address("models", "osmosis", scripted.endpoint, path_style=True)
    return S3BlobStore(address, SystemClock(), BlobCopies(tmp_path / "copies"), attempts=1)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "NoSuchBucket", "does not exist"),
        (403, "AccessDenied", "may not write in the bucket 'models'"),
        (403, "InvalidAccessKeyId", "refuses the platform's credentials"),
        (507, "XMinioStorageFull", "is full: nothing was stored"),
        (403, "RequestTimeTooSkewed", "clock is wrong"),
        (400, "AuthorizationHeaderMalformed", "another region"),
        (503, "SlowDown", "asked again later"),
        (500, "InternalError", "asked again later"),
    ],
)
def test_a_refusal_is_a_sentence_that_holds_no_secret(
    store: S3BlobStore,
    scripted: Scripted,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
    says: str,
) -> None:
    scripted.fails(status, code)
    with caplog.at_level(logging.DEBUG), pytest.raises(BlobStoreError) as failed:
        store.put("runs/a", io.BytesIO(b"x"))
    assert says in failed.value.message and failed.value.is_infrastructure
    assert isinstance(failed.value, BlobStoreBusy) == (status in (500, 503))
    told = f"{failed.value.message} {failed.value.hint} {caplog.text}"
    assert SECRET not in told and KEY not in told and "Signature=" not in told


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"ETag": '"e"', "Content-Range": "bytes 0-4/9"}, b"12345"),
        ({"ETag": '"e"', "Content-Range": "bytes 0-4/nine"}, b"12345"),
    ],
)
def test_an_object_that_was_cut_off_is_not_taken_for_whole(
    store: S3BlobStore, scripted: Scripted, headers: dict[str, str], body: bytes
) -> None:
    scripted.headers, scripted.body = headers, body
    with pytest.raises(BlobStoreError, match="changed or cut off"):
        store.open("runs/a")


def test_an_object_that_changes_while_it_is_read_is_refused(
    store: S3BlobStore, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RANGE_BYTES", 5)
    scripted.headers, scripted.body = {"ETag": '"one"', "Content-Range": "bytes 0-4/10"}, b"12345"
    real = store._read_range

    def then_changed(*asked: object) -> object:
        found = real(*asked)  # type: ignore[arg-type]
        scripted.headers = {"ETag": '"two"', "Content-Range": "bytes 5-9/10"}
        return found

    monkeypatch.setattr(store, "_read_range", then_changed)
    with pytest.raises(BlobStoreError, match="changed or cut off"):
        store.open("runs/a")


def test_a_body_that_breaks_off_is_asked_for_again_and_not_for_ever(
    store: S3BlobStore, scripted: Scripted
) -> None:
    scripted.headers, scripted.body = {"ETag": '"e"', "Content-Length": "9"}, b"12345"
    with pytest.raises(BlobStoreBusy):
        store.open("runs/a")
    assert len(scripted.seen) == 3


def test_urls_of_clients_name_the_address_that_clients_reach(
    scripted: Scripted, store: S3BlobStore, tmp_path: Path
) -> None:
    address = S3Address(
        "models", "", scripted.endpoint, path_style=True, public_endpoint="https://files.example"
    )
    public = S3BlobStore(address, SystemClock(), BlobCopies(tmp_path))
    url = public.signed_get_url("a/b", filename="b", ttl=timedelta(hours=1))
    assert url.startswith("https://files.example/models/a/b?")
    assert store.signed_get_url("a", filename="b", ttl=timedelta(0)).startswith(scripted.endpoint)
    assert scripted.seen == []


def test_a_worker_knows_neither_the_bucket_nor_its_credentials(tmp_path: Path) -> None:
    environ = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "PATH": "/bin", "OTHER": "x"}
    url = "s3://models/osmosis"
    config = from_environment({"OSMOSIS_HOME": str(tmp_path), "OSMOSIS_BLOBS_URL": url})
    given = worker_environment(environ, config)
    assert not [name for name in given if name.startswith("AWS_")] and url not in given.values()


# Addresses


def test_an_address_says_all_there_is_to_say() -> None:
    assert parse_s3_address("s3://my-bucket") == S3Address("my-bucket")
    assert parse_s3_address(
        "s3://b.x/a/b/?endpoint=https://s3.example:9000/&region=eu-1&path_style=0&public_endpoint=https://f.example"
    ) == S3Address("b.x", "a/b", "https://s3.example:9000", "eu-1", False, "https://f.example")
    assert parse_s3_address("s3://my-bucket?endpoint=http://127.0.0.1:9000").path_style


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://planted", "does not begin with s3"),
        ("s3://AKIAPLANTED:planted@bucket/x", "credentials do not belong"),
        ("s3://", "names no bucket"),
        ("s3://Planted_Bucket", "a bucket's name has 3 to 63 lower-case letters"),
        ("s3://bucket/../x", "its path may hold"),
        ("s3://bucket?endpoint=http://planted.example", "plain http beyond this machine"),
        ("s3://bucket?public_endpoint=http://10.0.0.1", "plain http beyond this machine"),
        ("s3://bucket?endpoint=https://planted:pw@s3.example", "nothing else"),
        ("s3://bucket?endpoint=https://s3.example/planted", "nothing else"),
        ("s3://bucket?endpoint=planted", "not an address such as"),
        ("s3://bucket?secret_key=planted", "it has no setting secret_key"),
        ("s3://bucket?region=Planted!", "its region is none"),
        ("s3://bucket?path_style=planted", "path_style is 1 or 0"),
        ("s3://[planted", "it is no URL"),
    ],
)
def test_a_bad_address_is_refused_and_not_repeated(url: str, says: str) -> None:
    with pytest.raises(OsmosisError) as refused:
        from_environment({"OSMOSIS_BLOBS_URL": url})
    assert says in refused.value.message and "OSMOSIS_BLOBS_URL" in refused.value.message
    assert "planted:" not in refused.value.message and "AKIA" not in refused.value.message


# Copies


def test_copies_take_no_more_room_than_they_may_and_those_in_use_stay(tmp_path: Path) -> None:
    copies = BlobCopies(tmp_path, limit_bytes=25)

    def fetch(incoming: IncomingFile) -> None:
        incoming.write(b"0123456789")

    with copies.open("a", fetch) as (used, _):
        for name in "bcd":
            with copies.open(name, fetch):
                pass
        assert used.exists()
        kept = {path.name for path in (tmp_path / "copies").iterdir()}
    assert kept == {"a", "d"}


class _Metadata(BaseHTTPRequestHandler):
    """A cloud's metadata address, as far as boto3 asks it for a role's credentials."""

    def do_PUT(self) -> None:
        self._say(b"token")

    def do_GET(self) -> None:
        role = {"Code": "Success", "AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": "t"}
        role["Expiration"] = "2099-01-01T00:00:00Z"
        self._say(b"role" if self.path.endswith("/security-credentials/") else json.dumps(role).encode())

    def _say(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("given", ["by the operator", "by the machine", "by the machine, for a role"])
def test_credentials_that_the_machine_gives_to_everybody_are_told_from_the_operators(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        if given == "by the machine, for a role":
            (tmp_path / "none").write_text(
                "[default]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Ec2InstanceMetadata\n"
            )
        if given == "by the operator":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        address = parse_s3_address("s3://bucket?endpoint=http://127.0.0.1:9&path_style=true")
        store = S3BlobStore(address, SystemClock(), BlobCopies(tmp_path / "copies"))
        assert store.has_credentials_of_machine() == (given != "by the operator")
        server.shutdown()
        thread.join()


XHTML = b"<html><body>Please pay!</body></html>"


def _closing(body: bytes, headers: bytes = b"") -> bytes:
    described = headers + b"Content-Length: %d\r\nConnection: close\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\n" + described + b"\r\n" + body


PAGES = {
    "nothing": _closing(b""),
    "a page that is XML": _closing(XHTML, b"Content-Type: text/html\r\n"),
    "a file of a web server": _closing(XHTML, b'Content-Type: text/html\r\nETag: "1"\r\n'),
}
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
        with pytest.raises(BlobStoreBusy, match="is not a store just now"):
            raise AssertionError(f"{what}: {ask()}")


# What somebody else does to the bucket

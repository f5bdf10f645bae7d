"""The store in a bucket, where the bucket is not as it should be: one sentence each, and never a secret in it."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from osmosis_ai.api import retrying
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs import s3, store_gate
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.incoming import IncomingFile
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.shards import ShardWriter, read_piece
from osmosis_ai.platform.blobs.store import (
    BlobError,
    BlobNotFound,
    BlobStore,
    BlobStoreBusy,
    BlobStoreError,
    BlobStoreSilent,
    BlobUpload,
)
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.runs.execute.worker_process import worker_environment
from osmosis_ai.platform.s3_address import S3Address, parse_s3_address
from tests.platform import s3_server
from tests.platform.s3_server import CREDENTIALS, OTHER_STORE, S3Server

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
        (405, "MethodNotAllowed", "may not write"),
        (403, "InvalidAccessKeyId", "refuses the platform's credentials"),
        (403, "SignatureDoesNotMatch", "refuses the platform's credentials"),
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


def test_a_store_that_serves_no_parts_is_refused_before_everything_is_in_memory(
    store: S3BlobStore, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RANGE_BYTES", 5)
    scripted.headers, scripted.body = {"ETag": '"e"'}, b"1234567890"
    with pytest.raises(BlobStoreError, match="does not serve parts"):
        store.open("runs/a")


def test_nobody_there_and_no_credentials_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = BlobCopies(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    address = S3Address("models", "", "http://127.0.0.1:9", path_style=True)
    with pytest.raises(BlobStoreError, match="no credentials"):
        S3BlobStore(address, SystemClock(), copies, attempts=1).size("a")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(BlobStoreBusy, match="cannot be reached"):
        S3BlobStore(address, SystemClock(), copies, attempts=1).size("a")


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
    ) == S3Address(
        "b.x".replace("b.x", "b.x"), "a/b", "https://s3.example:9000", "eu-1", False, "https://f.example"
    )
    assert parse_s3_address("s3://my-bucket?endpoint=http://127.0.0.1:9000").path_style


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://planted", "does not begin with s3"),
        ("s3://AKIAPLANTED:planted@bucket/x", "credentials do not belong"),
        ("s3://", "names no bucket"),
        ("s3://Planted_Bucket", "a bucket's name has 3 to 63 lower-case letters"),
        ("s3://b/x", "a bucket's name has 3 to 63 lower-case letters"),
        ("s3://bucket:9000/x", "a bucket's name has 3 to 63 lower-case letters"),
        ("s3://bucket/../x", "its path may hold"),
        ("s3://bucket?endpoint=http://planted.example", "plain http beyond this machine"),
        ("s3://bucket?public_endpoint=http://10.0.0.1", "plain http beyond this machine"),
        ("s3://bucket?endpoint=https://planted:pw@s3.example", "nothing else"),
        ("s3://bucket?endpoint=https://s3.example/planted", "nothing else"),
        ("s3://bucket?endpoint=planted", "no address such as"),
        ("s3://bucket?secret_key=planted", "it has no setting secret_key"),
        ("s3://bucket?region=a&region=b", "a setting twice"),
        ("s3://bucket?region=Planted!", "its region is none"),
        ("s3://bucket?path_style=planted", "path_style is 1 or 0"),
        ("s3://bucket?planted", "it is no URL"),
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


def fetch_ten(incoming: IncomingFile) -> None:
    incoming.write(b"0123456789")


def test_a_copy_in_use_is_not_replaced_by_one_that_another_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, used = IncomingFile.move_to_free, list[int]()
    with ExitStack() as users:

        def be_late(incoming: IncomingFile, target: Path) -> None:
            if not used:
                used.append(0)
                path, _ = users.enter_context(BlobCopies(tmp_path).open("a", fetch_ten))
                used[0] = path.stat().st_ino
            move(incoming, target)

        monkeypatch.setattr(IncomingFile, "move_to_free", be_late)
        with BlobCopies(tmp_path).open("a", fetch_ten) as (path, _):
            assert path.stat().st_ino == used[0]
    assert [entry.name for entry in (tmp_path / "incoming").iterdir()] == []


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


own_store = pytest.mark.skipif(bool(OTHER_STORE), reason="another one's store is not stopped")
Opened = Callable[[S3Server, str], S3BlobStore]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    def make(server: S3Server, bucket: str = "osmosis-tests") -> S3BlobStore:
        address = parse_s3_address(server.bucket_named(bucket))
        return S3BlobStore(address, SystemClock(), BlobCopies(tmp_path / "copies"), attempts=1)

    return make


@pytest.fixture
def serving() -> Iterator[Callable[..., S3Server]]:
    """Starts stores that end with the test."""
    servers: list[S3Server] = []

    def start(*options: str, prepare: Callable[[S3Server], None] = lambda _: None) -> S3Server:
        server = S3Server(*options)
        servers.append(server)
        prepare(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


def on_a_disk_of_its_own(server: S3Server, *, readable_only: bool = False) -> None:
    """Give a server 4 MiB of disk with its bucket; skips where that can not be."""
    place = server.data / "buckets"
    words = f"mount -t tmpfs -o size=4m none {place} && mkdir {place}/osmosis-tests"
    if readable_only:
        words += f" && mount -o remount,ro {place}"
    server.before = ("unshare", "-rm", "sh", "-c", f'{words} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*server.before, "true"], check=False).returncode:
        pytest.skip("no disk of a test's own: this machine lets nobody make user namespaces")


@own_store
def test_what_a_full_store_does_not_take_leaves_nothing_and_goes_when_there_is_room(
    serving: Callable[..., S3Server], opened: Opened
) -> None:
    store = opened(serving(prepare=on_a_disk_of_its_own), "osmosis-tests")
    store.put("runs/first", io.BytesIO(bytes(2 << 20)))
    with pytest.raises(BlobStoreBusy, match="stored nothing: it fails, is full") as failed:
        store.put("runs/second", io.BytesIO(bytes(3 << 20)))
    assert failed.value.is_infrastructure and s3_server.SECRET not in failed.value.message
    with pytest.raises(BlobNotFound):
        store.size("runs/second")
    assert store.size("runs/first") == 2 << 20
    store.delete("runs/first")
    assert store.put("runs/second", io.BytesIO(bytes(3 << 20))).size == 3 << 20


@own_store
def test_a_store_that_was_stopped_is_used_when_it_is_back_and_not_asked_by_everybody_meanwhile(
    serving: Callable[..., S3Server], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving()
    store = opened(server, "osmosis-tests")
    store.put("runs/a", io.BytesIO(b"kept"))
    monkeypatch.setattr(store_gate, "AGAIN_AFTER_S", 3600.0)
    server.kill()
    for _ in range(2):
        with pytest.raises(BlobStoreSilent, match="cannot be reached"):
            store.open("runs/a")
    server.start()
    with pytest.raises(BlobStoreSilent):
        store.open("runs/a")  # nobody has found out yet
    monkeypatch.setattr(store_gate, "AGAIN_AFTER_S", 0.0)
    store._gate._ask_at_s = 0.0
    with store.open("runs/a") as stored:
        assert stored.read() == b"kept"


# What somebody else does to the bucket


def theirs(server: S3Server) -> S3BlobStore:
    """The same bucket, as whoever else has its credentials uses it."""
    copies = BlobCopies(server.data / "their-copies")
    return S3BlobStore(parse_s3_address(server.bucket), SystemClock(), copies)


def put(store: BlobStore, key: str, content: bytes) -> None:
    store.put(key, io.BytesIO(content))


@own_store
def test_a_file_that_somebody_deleted_is_gone_and_its_copy_is_not_served_for_it(
    serving: Callable[..., S3Server], opened: Opened
) -> None:
    server = serving()
    store, other = opened(server, "osmosis-tests"), theirs(server)
    put(store, "runs/a", b"kept")
    with store.local_copy("runs/a") as path:
        assert path.read_bytes() == b"kept"
    other.delete("runs/a")
    for asked in (
        lambda: store.open("runs/a"),
        lambda: store.size("runs/a"),
        lambda: store.local_copy("runs/a").__enter__(),
    ):
        with pytest.raises(BlobNotFound, match="runs/a is gone"):
            asked()


@own_store
@pytest.mark.parametrize("change", ["altered", "truncated", "emptied"])
def test_a_conversation_in_a_shard_that_somebody_changed_is_not_served(
    serving: Callable[..., S3Server], opened: Opened, tmp_path: Path, change: str
) -> None:
    server = serving()
    store, other = opened(server, "osmosis-tests"), theirs(server)
    writer = ShardWriter(tmp_path)
    pieces = [writer.add(bytes([65 + n]) * 500 + os.urandom(500)) for n in range(3)]
    content = writer.content().read()
    put(store, "runs/shard", content)
    assert len(read_piece(store, "runs/shard", pieces[2])) == 1000
    changed = {"altered": content[:-40] + bytes(40), "truncated": content[:-40], "emptied": b""}
    put(other, "runs/shard", changed[change])
    with pytest.raises(BlobError, match=r"damaged|is gone|changed or cut off"):
        read_piece(store, "runs/shard", pieces[2])

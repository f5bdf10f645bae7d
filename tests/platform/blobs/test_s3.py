"""The store in a bucket, where the bucket is not as it should be: one sentence each, and never a secret in it."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs import s3
from osmosis_ai.platform.blobs.local import IncomingFile
from osmosis_ai.platform.blobs.s3 import BlobCopies, S3BlobStore
from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError, BlobStoreSilent, BlobUpload
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.s3_address import S3Address, parse_s3_address

pytestmark = pytest.mark.integration
KEY, SECRET = "AKIAPLANTED00000001", "planted-secret-0001"


@dataclass
class Scripted:
    """A server that gives every request the same reply; ``body`` may depend on the path."""

    endpoint: str = ""
    status: int = 200
    body: bytes | Callable[[str], bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    requests: int = 0


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            script.requests += 1
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = script.body(self.path) if callable(script.body) else script.body
            self.send_response(script.status)
            headers = {"Content-Length": str(len(body)), "Connection": "close"} | script.headers
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

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
    return S3BlobStore(address, SystemClock(), tmp_path / "copies", attempts=1)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "NoSuchBucket", "does not exist"),
        (403, "AccessDenied", "have no permission to write in the bucket 'models'"),
        (403, "InvalidAccessKeyId", "refuses the platform's credentials"),
        (507, "XMinioStorageFull", "is full: nothing was stored"),
        (403, "RequestTimeTooSkewed", "clock is wrong"),
        (400, "AuthorizationHeaderMalformed", "another region"),
        (503, "SlowDown", "retries later"),
        (500, "InternalError", "retries later"),
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
    scripted.status = status
    # A message of the store may repeat what was signed.
    scripted.body = f"<Error><Code>{code}</Code><Message>{SECRET} {KEY}</Message></Error>".encode()
    with caplog.at_level(logging.DEBUG), pytest.raises(BlobStoreError) as failed:
        store.put("runs/a", io.BytesIO(b"x"))
    assert says in failed.value.message and failed.value.is_infrastructure
    assert isinstance(failed.value, BlobStoreBusy) == (status in (500, 503))
    told = f"{failed.value.message} {failed.value.hint} {caplog.text}"
    assert SECRET not in told and KEY not in told and "Signature=" not in told


@pytest.mark.parametrize("total", ["9", "nine"])
def test_an_object_that_was_cut_off_is_not_taken_for_whole(
    store: S3BlobStore, scripted: Scripted, total: str
) -> None:
    scripted.headers, scripted.body = {"ETag": '"e"', "Content-Range": f"bytes 0-4/{total}"}, b"12345"
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
    assert scripted.requests == 3


def test_urls_of_clients_name_the_address_that_clients_reach(
    scripted: Scripted, store: S3BlobStore, tmp_path: Path
) -> None:
    address = S3Address("models", "", scripted.endpoint, path_style=True, public_endpoint="https://x.example")
    public = S3BlobStore(address, SystemClock(), tmp_path)
    url = public.signed_get_url("a/b", filename="b", ttl=timedelta(hours=1))
    assert url.startswith("https://x.example/models/a/b?")
    assert store.signed_get_url("a", filename="b", ttl=timedelta(0)).startswith(scripted.endpoint)
    assert scripted.requests == 0


def test_a_store_that_does_not_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = s3._StoreGate("the bucket")
    silence = BlobStoreSilent("the bucket cannot be reached.")
    for _ in range(2):
        with pytest.raises(BlobStoreSilent), gate.passing():
            raise silence
        for _ in range(2):
            with pytest.raises(BlobStoreSilent, match="cannot be reached"), gate.passing():
                pytest.fail("a request was sent")
        now = time.monotonic() + s3._RETRY_AFTER_S
        monkeypatch.setattr(s3.time, "monotonic", lambda now=now: now)
    # The probe was answered.
    with gate.passing():
        pass
    with gate.passing():
        pass


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
        ("s3://AKIAPLANTED:planted@bucket/x", "must not contain credentials"),
        ("s3://", "has no bucket name"),
        ("s3://Planted_Bucket", "a bucket name must have 3 to 63 lowercase letters"),
        ("s3://bucket/../x", "its path may contain"),
        ("s3://bucket?endpoint=http://planted.example", "plain http to another machine"),
        ("s3://bucket?public_endpoint=http://10.0.0.1", "plain http to another machine"),
        ("s3://bucket?endpoint=https://planted:pw@s3.example", "must consist of scheme, host and port"),
        ("s3://bucket?endpoint=https://s3.example/planted", "must consist of scheme, host and port"),
        ("s3://bucket?endpoint=planted", "not an address such as"),
        ("s3://bucket?secret_key=planted", "unknown setting secret_key"),
        ("s3://bucket?region=Planted!", "its region is invalid"),
        ("s3://bucket?path_style=planted", "path_style must be 1 or 0"),
        ("s3://[planted", "it is not a URL"),
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

    with copies.open("a", fetch) as used:
        for name in "bcd":
            with copies.open(name, fetch):
                pass
        assert used.exists()
        kept = {path.name for path in (tmp_path / "copies").iterdir()}
    assert kept == {"a", "d"}


def metadata(path: str) -> bytes:
    """A cloud's replies to boto3 when it asks for a role's credentials."""
    if path.endswith("/token"):
        return b"token"
    if path.endswith("/security-credentials/"):
        return b"role"
    role = {"Code": "Success", "AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": "t"}
    return json.dumps({**role, "Expiration": "2099-01-01T00:00:00Z"}).encode()


@pytest.mark.parametrize("given", ["by the operator", "by the machine", "by the machine, for a role"])
def test_credentials_that_the_machine_gives_to_everybody_are_told_from_the_operators(
    given: str, scripted: Scripted, store: S3BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.body = metadata
    files = tmp_path / "aws"
    if given == "by the machine, for a role":
        files.write_text(
            "[default]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Ec2InstanceMetadata\n"
        )
    if given != "by the operator":
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(files))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", scripted.endpoint)
    assert store.has_credentials_of_machine() == (given != "by the operator")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({"Content-Type": "text/html"}, b"<html><body>Please pay!</body></html>"),
        ({"Content-Type": "text/html", "ETag": '"1"'}, b"<html><body>Please pay!</body></html>"),
    ],
    ids=["nothing", "a page", "a file of a web server"],
)
def test_nothing_is_taken_for_stored_read_or_listed_that_a_page_in_a_stores_place_says_is_well(
    store: S3BlobStore, scripted: Scripted, headers: dict[str, str], body: bytes
) -> None:
    scripted.headers, scripted.body = headers, body
    upload = BlobUpload("upload", "runs/a")
    requests: dict[str, Callable[[], object]] = {
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
    for what, send in requests.items():
        with pytest.raises(BlobStoreBusy, match="did not reply like an S3 store"):
            raise AssertionError(f"{what}: {send()}")

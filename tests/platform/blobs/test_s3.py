"""The store in a bucket, where the bucket is not as it should be: one sentence each, and never a secret in it."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest

from osmosis_ai.errors import MissingExtraError, OsmosisError
from osmosis_ai.platform.blobs import s3
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.incoming import IncomingFile
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStoreBusy, BlobStoreError
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.runs.execute.worker_process import worker_environment
from osmosis_ai.platform.s3_address import S3Address, parse_s3_address

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


def test_a_store_that_was_away_is_used_again_when_it_is_back(store: S3BlobStore, scripted: Scripted) -> None:
    scripted.fails(503, "SlowDown")
    with pytest.raises(BlobStoreBusy):
        store.put("runs/a", io.BytesIO(b"x"))
    scripted.status, scripted.body, scripted.headers = 200, b"", {"ETag": '"e"'}
    assert store.put("runs/a", io.BytesIO(b"x")).size == 1


def test_what_gives_back_other_bytes_fails_its_check(store: S3BlobStore, scripted: Scripted) -> None:
    scripted.body = b"<a/>"
    scripted.headers = {"ETag": '"e"', "Content-Range": "bytes 0-3/4"}
    with pytest.raises(BlobStoreError, match="does not give back"):
        store.check()


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


def test_an_object_that_is_gone_is_not_found(store: S3BlobStore, scripted: Scripted) -> None:
    scripted.fails(404, "NoSuchKey")
    with pytest.raises(BlobNotFound, match="runs/a is gone"):
        store.open("runs/a")


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


def test_a_bucket_without_its_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = PlatformConfig(home=tmp_path, blobs_url="s3://models/osmosis")
    with pytest.raises(MissingExtraError, match="boto3") as missing:
        open_blob_store(config, SystemClock())
    assert "s3" in str(missing.value.hint)
    assert isinstance(open_blob_store(PlatformConfig(home=tmp_path), SystemClock()), LocalBlobStore)


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


@pytest.mark.parametrize(("since_s", "is_noted"), [(299, False), (300, True), (-299, False), (-300, True)])
def test_the_file_of_a_copy_changes_at_most_every_five_minutes_however_often_it_is_used(
    tmp_path: Path, since_s: int, is_noted: bool
) -> None:
    used_at = 1_700_000_000
    copies = BlobCopies(tmp_path, now=lambda: used_at + since_s)
    with copies.open("a", fetch_ten) as (path, _):
        pass
    os.utime(path, (used_at, used_at))
    before = path.stat()
    with copies.open("a", fetch_ten):
        pass
    after = path.stat()
    assert (after.st_mtime != used_at) is is_noted
    assert is_noted or after.st_ctime_ns == before.st_ctime_ns


def test_a_copy_whose_use_was_noted_goes_after_those_that_nobody_used(tmp_path: Path) -> None:
    copies = BlobCopies(tmp_path, limit_bytes=25)
    for name, age_s in (("a", 1200), ("b", 600)):
        with copies.open(name, fetch_ten) as (path, _):
            pass
        made = time.time() - age_s
        os.utime(path, (made, made))
    with copies.open("a", fetch_ten):
        pass
    with copies.open("c", fetch_ten):
        pass
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {"a", "c"}


def test_a_copy_that_was_made_anew_meanwhile_is_not_removed_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = BlobCopies(tmp_path, limit_bytes=15)
    with copies.open("a", fetch_ten) as (path, _):
        pass
    lock = fcntl.flock
    with ExitStack() as users:

        def lock_late(handle: IO[bytes] | int, operation: int) -> None:
            """Whoever is to be locked out has it removed first, and made anew."""
            if operation & fcntl.LOCK_NB and not again:
                path.unlink()
                again.append(users.enter_context(BlobCopies(tmp_path).open("a", fetch_ten)))
            lock(handle, operation)

        again: list[object] = []
        monkeypatch.setattr(fcntl, "flock", lock_late)
        with copies.open("b", fetch_ten):
            assert again and path.exists()


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


def test_a_copy_is_made_where_no_file_has_a_second_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        with BlobCopies(tmp_path).open("a", fetch_ten) as (path, _):
            assert path.read_bytes() == b"0123456789"


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

"""A real store whose bucket is missing, full, read-only, gone for a while or changed by somebody else."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from osmosis_ai.platform.blobs import s3, s3_clients, store_gate
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.shards import ShardWriter, read_piece
from osmosis_ai.platform.blobs.store import (
    BlobError,
    BlobNotFound,
    BlobStore,
    BlobStoreBusy,
    BlobStoreError,
    BlobStoreSilent,
)
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.s3_address import parse_s3_address
from tests.platform.s3_server import CREDENTIALS, KEY, OTHER_STORE, SECRET, S3Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(OTHER_STORE), reason="another one's store is not stopped"),
]
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


def keep_a_file(server: S3Server) -> None:
    kept = server.data / "buckets" / "osmosis-tests" / "runs"
    kept.mkdir()
    (kept / "a").write_bytes(b"kept")


def test_of_a_bucket_that_is_missing_every_request_says_so(
    serving: Callable[..., S3Server], opened: Opened
) -> None:
    store = opened(serving(), "no-such-bucket")
    for asked in (
        store.check,
        lambda: store.put("runs/a", io.BytesIO(b"x")),
        lambda: store.open("runs/a"),
        lambda: store.size("runs/a"),  # a HEAD, whose answer has no words
        lambda: store.local_copy("runs/a").__enter__(),
        lambda: store.begin_upload("runs/a"),
        lambda: list(store.keys("runs")),
    ):
        with pytest.raises(BlobStoreError, match=r"'no-such-bucket' at .* does not exist") as failed:
            asked()
        assert not isinstance(failed.value, BlobStoreBusy) and "OSMOSIS_BLOBS_URL" in str(failed.value.hint)


def test_wrong_credentials_are_told_from_missing_files(
    serving: Callable[..., S3Server], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-elses-key-1")
    store = opened(server, "osmosis-tests")
    with pytest.raises(BlobStoreError, match="refuses the platform's credentials"):
        store.size("runs/a")


def test_what_a_full_store_does_not_take_leaves_nothing_and_goes_when_there_is_room(
    serving: Callable[..., S3Server], opened: Opened
) -> None:
    store = opened(serving(prepare=on_a_disk_of_its_own), "osmosis-tests")
    store.put("runs/first", io.BytesIO(bytes(2 << 20)))
    with pytest.raises(BlobStoreBusy, match="stored nothing: it fails, is full") as failed:
        store.put("runs/second", io.BytesIO(bytes(3 << 20)))
    assert failed.value.is_infrastructure and SECRET not in failed.value.message
    with pytest.raises(BlobNotFound):
        store.size("runs/second")
    assert store.size("runs/first") == 2 << 20
    store.delete("runs/first")
    assert store.put("runs/second", io.BytesIO(bytes(3 << 20))).size == 3 << 20


@pytest.mark.parametrize("how", ["an option", "the disk"])
def test_a_store_that_may_not_be_written_to_is_read_and_says_so_of_writes(
    serving: Callable[..., S3Server], opened: Opened, how: str
) -> None:
    if how == "an option":
        server = serving("--read-only", prepare=keep_a_file)
    else:
        server = serving(prepare=partial(on_a_disk_of_its_own, readable_only=True))
    store = opened(server, "osmosis-tests")
    for asked in (store.check, lambda: store.put("runs/b", io.BytesIO(b"x"))):
        with pytest.raises(BlobStoreBusy, match="or takes no files, and its own log says which"):
            asked()
    if how == "an option":
        with store.open("runs/a") as stored:
            assert stored.read() == b"kept"


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


def test_a_store_that_hangs_is_given_up_soon_and_kept_from_others(
    serving: Callable[..., S3Server], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving()
    put(theirs(server), "runs/a", b"kept")
    # Only of the store that hangs: another one may take longer to answer.
    monkeypatch.setattr(s3_clients, "_SILENCE_S", 1)
    store = opened(server, "osmosis-tests")
    server.say(signal.SIGSTOP)
    try:
        with pytest.raises(BlobStoreSilent, match="ReadTimeoutError"):
            store.open("runs/a")
        with pytest.raises(BlobStoreSilent):
            store.size("runs/a")
    finally:
        server.say(signal.SIGCONT)


# What somebody else does to the bucket


def theirs(server: S3Server) -> S3BlobStore:
    """The same bucket, as whoever else has its credentials uses it."""
    copies = BlobCopies(server.data / "their-copies")
    return S3BlobStore(parse_s3_address(server.bucket), SystemClock(), copies)


def put(store: BlobStore, key: str, content: bytes) -> None:
    store.put(key, io.BytesIO(content))


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


def test_what_was_altered_while_it_was_read_is_refused(
    serving: Callable[..., S3Server], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RANGE_BYTES", 1000)
    server = serving()
    store, other = opened(server, "osmosis-tests"), theirs(server)
    put(store, "runs/a", b"a" * 4000)
    real = store._read_range

    def then_altered(key: str, offset: int, length: int) -> object:
        if offset == 2000:
            put(other, "runs/a", b"b" * 4000)
        return real(key, offset, length)

    monkeypatch.setattr(store, "_read_range", then_altered)
    with pytest.raises(BlobStoreError, match="changed or cut off in the bucket"):
        store.open("runs/a")


def test_no_failure_of_a_real_store_says_a_secret(
    serving: Callable[..., S3Server], opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    server = serving()
    missing, store = opened(server, "no-such-bucket"), opened(server, "osmosis-tests")
    server.kill()
    told = ""
    for each in (missing, store):
        with caplog.at_level("DEBUG"), pytest.raises(BlobStoreError) as failed:
            each.put("runs/a", io.BytesIO(b"x"))
        told += f"{failed.value.message} {failed.value.hint}"
    for secret in (KEY, SECRET, "X-Amz-Signature"):
        assert secret not in told and secret not in caplog.text

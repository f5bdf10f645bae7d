"""What survives: a platform that is killed, two requests at once, a full disk, bytes that rot."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.models.datasets import CompletedPart, DatasetCreateRequest
from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobUpload
from osmosis_ai.platform.blobs.upload_session import UPLOAD_TTL
from osmosis_ai.platform.datasets import check as checking
from osmosis_ai.platform.datasets.check import Check, check_dataset, check_in_process
from osmosis_ai.platform.datasets.store import PendingUpload, find_dataset
from osmosis_ai.platform.db.tables import DbDataset
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.datasets_world import rows


class Shop:
    """A member at the platform's own interface, without HTTP; the background starts when asked."""

    def __init__(self, world: World, member: Member) -> None:
        self.world = world
        self.datasets = world.services.datasets
        self.workspace, self.user = member.workspace.id, member.user.id

    def begin(self, name: str, data: bytes, overwrite_id: str | None = None) -> DbDataset:
        announced = DatasetCreateRequest(
            file_name=name, extension="jsonl", file_size=len(data), overwrite_dataset_id=overwrite_id
        )
        return self.datasets.create(self.workspace, self.user, announced)[0]

    def send(self, row: DbDataset, data: bytes) -> list[CompletedPart]:
        store: Any = self.world.services.blobs
        url = store.signed_part_url(self.pending(row).upload, 1, size=len(data), ttl=UPLOAD_TTL)
        grant = store.signer.part(url.rpartition("/")[2])
        with store.receive_part(grant) as incoming:
            incoming.write(data)
            return [CompletedPart(PartNumber=1, ETag=store.keep_part(grant, incoming).etag)]

    def received(self, name: str, data: bytes, overwrite_id: str | None = None) -> DbDataset:
        """Upload and complete; the check is left to the background."""
        row = self.begin(name, data, overwrite_id)
        return self.datasets.complete(self.workspace, row.id, "jsonl", self.send(row, data))

    def upload(self, name: str, data: bytes, overwrite_id: str | None = None) -> DbDataset:
        row = self.received(name, data, overwrite_id)
        self.work()
        return self.get(row.id)

    def work(self) -> None:
        """Let the background do what there is to do."""
        self.datasets.ingest.start()
        self.datasets.ingest.recover()
        assert self.datasets.ingest.wait_idle(300)
        self.datasets.ingest.close()

    def get(self, name_or_id: str) -> DbDataset:
        return self.datasets.get(self.workspace, name_or_id)

    def pending(self, row: DbDataset) -> PendingUpload:
        found = PendingUpload.of(self.get(row.id))
        assert found is not None
        return found

    def blob_keys(self) -> set[str]:
        return set(self.world.stored("datasets"))

    def sessions(self) -> list[BlobUpload]:
        return [upload for upload, _ in self.world.services.blobs.unfinished_uploads()]

    def messages(self, row: DbDataset) -> list[str]:
        page = self.world.services.logs.page(row.id)
        return [entry.message or "" for entry in page.logs]


@pytest.fixture
def shop(world: World, member: Member) -> Iterator[Shop]:
    opened = Shop(world, member)
    yield opened
    opened.datasets.ingest.close()


# A platform that ends at the wrong moment


@pytest.mark.parametrize("step", ["complete_upload", "local_copy"])
def test_what_a_store_that_is_away_interrupts_is_checked_when_it_is_back(
    shop: Shop, world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def away(*_: object) -> None:
        raise BlobStoreBusy("the bucket 'models' answered 503; it is asked again later.")

    row = shop.received("multiply", rows())
    assert row.status == "processing"
    with monkeypatch.context() as patch:
        patch.setattr(world.services.blobs, step, away)
        shop.work()
    assert shop.get(row.id).status == "processing"
    shop.work()
    assert shop.get(row.id).status == "uploaded"


def test_an_upload_nobody_completes_ends_with_its_urls(shop: Shop, clock: ManualClock) -> None:
    fresh = shop.begin("fresh", rows())
    before = shop.upload("known", rows())
    shop.begin("known", rows(5), before.id)
    shop.send(fresh, rows())

    clock.advance(86_399)
    shop.work()
    assert shop.get("fresh").status == "pending" and len(shop.sessions()) == 2

    clock.advance(1)
    shop.work()
    assert shop.get("fresh").status == "cancelled" and shop.sessions() == []
    assert "not completed in time" in shop.messages(fresh)[-1]
    known = shop.get("known")
    assert (known.status, known.pending_upload, known.blob_key) == ("uploaded", None, before.blob_key)


def test_what_a_killed_request_left_in_the_store_is_removed_and_nothing_else(
    shop: Shop, clock: ManualClock
) -> None:
    kept = shop.upload("kept", rows())
    waiting = shop.begin("waiting", rows())
    received = shop.received("received", rows())
    orphan = shop.world.services.blobs.begin_upload("datasets/orphan.csv")
    foreign = shop.world.services.blobs.begin_upload("runs/elsewhere.csv")
    shop.world.store("datasets/nobody.csv", b"x")
    shop.world.store("runs/elsewhere.json", b"x")

    clock.advance(3601)
    shop.work()

    assert shop.blob_keys() == {kept.blob_key, shop.get(received.id).blob_key}
    assert set(shop.sessions()) == {shop.pending(waiting).upload, foreign}
    assert orphan not in shop.sessions()
    assert shop.world.services.blobs.size("runs/elsewhere.json") == 1


def test_neither_overwritten_nor_refused_bytes_are_kept(shop: Shop) -> None:
    before = shop.upload("multiply", rows())
    after = shop.upload("multiply", rows(5), before.id)
    assert shop.upload("bad", b"nonsense\n").status == "error"
    assert shop.blob_keys() == {after.blob_key} != {before.blob_key}
    assert shop.sessions() == []


@pytest.mark.parametrize("is_aborted", [True, False])
def test_an_abort_or_a_newer_upload_during_a_check_wins(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, is_aborted: bool
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def check_slowly(path: Path, *, stopping: threading.Event) -> Check:
        has_begun.set()
        assert may_end.wait(300)
        return check_in_process(path)

    monkeypatch.setattr("osmosis_ai.platform.datasets.store.check_dataset", check_slowly)
    row = shop.received("multiply", rows(10))
    shop.datasets.ingest.start()
    shop.datasets.ingest.recover()
    assert has_begun.wait(300)
    if is_aborted:
        shop.datasets.abort(shop.workspace, row.id)
    else:
        assert shop.received("multiply", rows(20), row.id).id == row.id
    may_end.set()
    assert shop.datasets.ingest.wait_idle(300)

    after = shop.get(row.id)
    assert (after.status, after.row_count) == (("cancelled", None) if is_aborted else ("uploaded", 20))
    assert shop.blob_keys() == ({after.blob_key} - {None}) and shop.sessions() == []


# Reading files away from the platform


def test_a_reader_that_crashes_is_a_refusal_and_not_a_crash_of_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(rows())
    monkeypatch.setattr(checking, "_SMALL_BYTES", 0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = check_dataset(path, stopping=threading.Event())
    assert "reading the file failed" in found.errors[0]


def test_a_name_that_looks_like_an_id_does_not_hide_the_dataset_of_that_id(shop: Shop, world: World) -> None:
    real = shop.begin("multiply", rows())
    shop.begin(real.id, rows())
    with world.services.db.session() as session:
        found = find_dataset(session, shop.workspace, real.id)
        assert found is not None and found.name == "multiply"
        assert find_dataset(session, "wsp_other", real.id) is None

"""What survives: a platform that is killed, two requests at once, a full disk, bytes that rot."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.datasets.check import Check, check_in_process
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.datasets_world import Uploads, rows


class Shop(Uploads):
    """A member whose files are checked when the test says so."""

    def received(self, name: str, data: bytes, **more: Any) -> dict[str, Any]:
        """Upload and complete; the check is left to the background."""
        dataset = self.begin(name, data, **more)
        reply = self.complete(dataset["id"], self.send(dataset, data))
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def start_checks(self) -> None:
        self.world.services.datasets.ingest.start()
        self.world.services.datasets.ingest.recover()

    def settle(self) -> None:
        """Let the background do what there is to do."""
        self.start_checks()
        super().settle()
        self.stop_checks()

    def sessions(self) -> int:
        """Return how many uploads to the store are open."""
        return len(list(self.world.services.blobs.unfinished_uploads()))

    def stored(self) -> list[str]:
        return self.world.stored("datasets")


@pytest.fixture
def shop(uploads: Uploads, world: World, member: Member) -> Shop:
    uploads.stop_checks()
    return Shop(uploads.client, world, member.headers)


# A platform that ends at the wrong moment


@pytest.mark.parametrize("step", ["complete_upload", "local_copy"])
def test_what_a_store_that_is_away_interrupts_is_checked_when_it_is_back(
    shop: Shop, world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def away(*_: object) -> None:
        raise BlobStoreBusy("the bucket 'models' answered 503; it is asked again later.")

    assert shop.received("multiply", rows())["status"] == "processing"
    with monkeypatch.context() as patch:
        patch.setattr(world.services.blobs, step, away)
        shop.settle()
    assert shop.get("multiply")["status"] == "processing"
    shop.settle()
    assert shop.get("multiply")["status"] == "uploaded"


def test_an_upload_nobody_completes_ends_with_its_urls(shop: Shop, clock: ManualClock) -> None:
    fresh = shop.begin("fresh", rows())
    before = shop.upload("known", rows())
    shop.begin("known", rows(5), overwrite_dataset_id=before["id"])
    shop.send(fresh, rows())

    clock.advance(86_399)
    shop.settle()
    assert shop.get("fresh")["status"] == "pending" and shop.sessions() == 2

    clock.advance(1)
    shop.settle()
    assert shop.get("fresh")["status"] == "cancelled" and shop.sessions() == 0
    assert "not completed in time" in shop.messages(fresh["id"])[-1]
    assert shop.get("known")["status"] == "uploaded" and shop.fetch("known") == rows()


def test_what_a_killed_request_left_in_the_store_is_removed_and_nothing_else(
    shop: Shop, world: World, clock: ManualClock
) -> None:
    kept = shop.upload("kept", rows())
    waiting = shop.begin("waiting", rows())
    shop.received("received", rows(7))
    world.services.blobs.begin_upload("datasets/orphan.csv")
    world.services.blobs.begin_upload("runs/elsewhere.csv")
    for key in ("datasets/nobody.csv", "runs/elsewhere.json"):
        world.store(key, b"x")

    clock.advance(3601)
    shop.settle()

    assert len(shop.stored()) == 2 and "datasets/nobody.csv" not in shop.stored()
    assert (shop.fetch(kept["id"]), shop.fetch("received")) == (rows(), rows(7))
    assert shop.sessions() == 2, "of the dataset that waits, and of something else than a dataset"
    assert world.stored("runs") == ["runs/elsewhere.json"]
    assert shop.complete(waiting["id"], shop.send(waiting, rows())).status_code == 200


def test_neither_overwritten_nor_refused_bytes_are_kept(shop: Shop) -> None:
    before = shop.upload("multiply", rows())
    former = shop.stored()
    shop.upload("multiply", rows(5), overwrite_dataset_id=before["id"])
    newer = shop.stored()
    assert len(newer) == 1 and newer != former
    assert shop.upload("bad", b"nonsense\n")["status"] == "error"
    assert shop.stored() == newer
    assert shop.sessions() == 0


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
    dataset = shop.received("multiply", rows(10))
    shop.start_checks()
    assert has_begun.wait(300)
    if is_aborted:
        assert shop.request("POST", f"/{dataset['id']}/abort", json={}).status_code == 200
    else:
        newer = shop.received("multiply", rows(20), overwrite_dataset_id=dataset["id"])
        assert newer["id"] == dataset["id"]
    may_end.set()
    shop.settle()

    after = shop.get(dataset["id"])
    assert (after["status"], after.get("row_count")) == (
        ("cancelled", None) if is_aborted else ("uploaded", 20)
    )
    assert (len(shop.stored()), shop.sessions()) == (0 if is_aborted else 1, 0)


# Reading files away from the platform


def test_a_reader_that_crashes_is_a_refusal_and_not_a_crash_of_the_platform(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.datasets.check._SMALL_BYTES", 0)
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert "reading the file failed" in shop.upload("multiply", rows())["upload_error"]


def test_a_name_that_looks_like_an_id_does_not_hide_the_dataset_of_that_id(
    shop: Shop, stranger: Member
) -> None:
    real = shop.begin("multiply", rows())
    shop.begin(real["id"], rows())
    assert shop.get(real["id"])["file_name"] == "multiply"
    elsewhere = Uploads(shop.client, shop.world, stranger.headers)
    assert elsewhere.request("GET", f"/{real['id']}").status_code == 404

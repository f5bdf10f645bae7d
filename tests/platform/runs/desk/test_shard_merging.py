"""Small shards become large ones behind the backs of all who read: on either engine, in either store, whoever is killed."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStoreBusy, BlobStoreError, BlobStoreSilent
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbRunShard, DbRunUpload
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk import shard_merging
from osmosis_ai.platform.runs.desk.run_shards import MERGED_FOLDER, JoinedShards
from osmosis_ai.platform.runs.desk.shard_merging import KEPT_FOR
from osmosis_ai.platform.runs.desk.shard_policy import FAN
from osmosis_ai.platform.runs.imports.sessions import EvalImportStore
from osmosis_ai.platform.runs.read.downloads import LINK_TTL
from osmosis_ai.platform.runs.read.run_counts import RunCounts
from tests.platform.databases import platform_database, postgres_database
from tests.platform.runs.desk.sharded_runs import ShardedRun
from tests.platform.s3_server import CREDENTIALS, new_bucket


class Killed(BaseException):
    """The process ends here."""


def begun(config: PlatformConfig, scratch: Path) -> Iterator[ShardedRun]:
    config.prepare_home()
    db = Database(config.database_url)
    db.migrate()
    yield ShardedRun(db, open_blob_store(config, SystemClock()), scratch)
    db.dispose()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ShardedRun]:
    """A run that goes on, in files."""
    home = tmp_path / "home"
    with platform_database(home) as url:
        yield from begun(PlatformConfig(home=home, database_url=url), tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardedRun]:
    """A run that goes on, on PostgreSQL and in a bucket."""
    for name, secret in CREDENTIALS.items():
        monkeypatch.setenv(name, secret)
    bucket = new_bucket()
    with postgres_database() as url:
        home = tmp_path / "home"
        yield from begun(PlatformConfig(home=home, database_url=url, blobs_url=bucket), tmp_path)


def another_run(run: ShardedRun, scratch: Path) -> ShardedRun:
    with run.db.transaction() as session:
        told = {"kind": "eval", "status": "running", "request": {}, "created_at": run.clock.now()}
        names = {"rollout_name": "multiply", "dataset_name": "multiply", "model_path": "osmosis/tiny"}
        session.add(DbRun(id="run_2", name="run_2", workspace_id="wsp_1", **told, **names))
    return ShardedRun(run.db, run.blobs, scratch, "run_2", run.clock)


def goes_on_and_ends(run: ShardedRun) -> None:
    names = run.shards(FAN - 1)
    run.merging.merge_due()
    assert len(run.named()) == FAN - 1, "it is young"
    names += run.shards(1)
    seen = run.places()
    run.merging.merge_due()
    assert len(run.named()) == 1 and run.states() == {"stored": 1, "replaced": FAN}
    run.check()
    assert run.read(seen) == run.contents, "who looked before reads where it was"
    # The reply was lost: the worker says again what has been merged meanwhile.
    run.tell(names[0])
    run.tell(names[-1])
    run.check()
    assert len(run.named()) == 1
    run.later()
    run.merging.merge_due()
    assert run.kept() == run.named() and run.states() == {"stored": 1, "gone": FAN}
    run.tell(names[5])
    run.check()
    run.shards(5, size=2000)
    run.end()
    run.settle()
    run.check()
    assert run.kept() == run.named() and len(run.kept()) == 1, "one file is left of it"
    assert run.states() == {}, "and nothing to be remembered"


def test_shards_of_a_run_are_merged_while_it_goes_on_and_when_it_has_ended(run: ShardedRun) -> None:
    goes_on_and_ends(run)


@pytest.mark.integration
def test_and_so_they_are_on_postgresql_and_in_a_bucket(elsewhere: ShardedRun) -> None:
    goes_on_and_ends(elsewhere)


@pytest.mark.integration
def test_a_merge_may_be_what_finds_out_that_a_silent_bucket_answers_again(elsewhere: ShardedRun) -> None:
    elsewhere.shards(FAN)
    assert isinstance(elsewhere.blobs, S3BlobStore)
    gate = elsewhere.blobs._gate
    gate._heard(BlobStoreSilent("no answer"))
    with pytest.raises(BlobStoreSilent):
        elsewhere.merging.merge_due()
    gate._ask_at_s = 0.0
    elsewhere.merging.merge_due()
    assert len(elsewhere.named()) == 1
    elsewhere.check()


@pytest.mark.integration
def test_a_merge_in_a_bucket_is_read_and_written_in_parts(
    elsewhere: ShardedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.shards(3, files=8, size=1_000_000)
    asked: list[int] = []
    read = elsewhere.blobs.read

    def noted(key: str, offset: int, length: int) -> bytes:
        asked.append(length)
        return read(key, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(elsewhere.blobs, "read", noted)
        elsewhere.end()
        elsewhere.merging.merge_due()
    (key,) = elsewhere.named()
    assert elsewhere.blobs.size(key) > 20_000_000, "of more than one part"
    assert len(asked) > 5 and max(asked) <= 4 << 20
    elsewhere.check()


def test_a_shard_outlives_every_url_to_it() -> None:
    assert KEPT_FOR > LINK_TTL


def test_only_then_it_goes(run: ShardedRun) -> None:
    run.shards(FAN)
    seen = run.places()
    run.merging.merge_due()
    run.clock.advance(KEPT_FOR.total_seconds())
    run.merging.merge_due()
    assert run.read(seen) == run.contents
    run.clock.advance(1)
    run.merging.merge_due()
    with pytest.raises(BlobNotFound):
        run.read(seen)
    run.check()


Step = Callable[[ShardedRun, pytest.MonkeyPatch], None]


def while_reading(run: ShardedRun, patch: pytest.MonkeyPatch) -> None:
    def killed(self: JoinedShards, buffer: object) -> int:
        raise Killed

    patch.setattr(JoinedShards, "readinto", killed)
    # Nobody who is killed cleans up.
    patch.setattr(run.merging, "_take_back", lambda key: None)


def before_it_counts(run: ShardedRun, patch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    patch.setattr(run.merging, "_take", killed)
    patch.setattr(run.merging, "_take_back", lambda key: None)


def before_files_are_found_there(run: ShardedRun, patch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> int:
        raise Killed

    patch.setattr(run.merging, "_move_some", killed)


def between_files_of_one_shard(run: ShardedRun, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_merging, "_ROWS", 1)
    moving, left = run.merging._move_some, [9]

    def killed(session: Any, shard: DbRunShard) -> int:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return moving(session, shard)

    patch.setattr(run.merging, "_move_some", killed)


@pytest.mark.parametrize(
    "step", [while_reading, before_it_counts, before_files_are_found_there, between_files_of_one_shard]
)
def test_who_is_killed_in_a_merge_loses_nothing_and_leaves_nothing(
    run: ShardedRun, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    run.shards(FAN)
    with monkeypatch.context() as patch:
        step(run, patch)
        with pytest.raises(Killed):
            run.merging.merge_due()
    run.check()
    run.shards(2)
    run.merging.merge_due()
    run.check()
    run.end()
    run.settle()
    # The clock went on by hours in the meantime.
    run.clock.advance(3600)
    run.merging.tidy()
    run.settle()
    run.check()
    assert run.kept() == run.named() and len(run.named()) == 1
    assert run.states() == {}


def test_a_file_that_is_told_while_its_shard_is_merged_is_found(
    run: ShardedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run.shards(FAN)
    with run.db.transaction() as session:
        # Of the last shard nothing but one file is told so far.
        session.execute(
            delete(DbRunFile).where(DbRunFile.path == f"trajectories/row_{2 * FAN - 1}_run_0.json")
        )
    taking = run.merging._take

    def told_meanwhile(*merge: Any) -> bool:
        run.tell(names[-1])  # not merged yet, as far as anybody knows
        taken = taking(*merge)
        run.tell(names[0])  # merged, and its files not moved yet
        return taken

    monkeypatch.setattr(run.merging, "_take", told_meanwhile)
    run.merging.merge_due()
    run.check()
    assert len(run.named()) == 1


def test_what_a_worker_did_not_live_to_tell_goes_with_the_end_of_its_run(run: ShardedRun) -> None:
    run.shards(2)
    run.blobs.put("runs/run_1/shards/untold", io.BytesIO(b"abc"))
    run.blobs.put("runs/run_1/files/untold", io.BytesIO(b"an artifact of somebody's"))
    run.merging.merge_due()
    assert "runs/run_1/shards/untold" in run.kept(), "it may be told yet"
    run.end()
    run.settle()
    assert run.kept() == run.named() | {"runs/run_1/files/untold"}


@pytest.mark.parametrize("harm", ["deleted", "cut off", "altered"])
def test_a_shard_that_was_harmed_behind_our_back_is_left_as_it_is_and_holds_up_no_other(
    run: ShardedRun, harm: str
) -> None:
    names = run.shards(FAN + 1)
    key = f"runs/run_1/{names[7]}"
    with run.blobs.open(key) as blob:
        content = blob.read()
    changed = {"cut off": content[:-1], "altered": b"\0" + content[1:]}
    if harm == "deleted":
        run.blobs.delete(key)
    else:
        run.blobs.put(key, io.BytesIO(changed[harm]))
    run.merging.merge_due()
    assert len(run.named()) == 2 and key in run.named()
    run.end()
    run.settle()
    readable = {path: place for path, place in run.places().items() if place.blob_key != key}  # type: ignore[attr-defined]
    assert len(readable) == 2 * FAN
    assert run.read(readable) == {path: run.contents[path] for path in readable}
    assert run.states() == {}


def test_a_run_that_is_deleted_in_mid_merge_leaves_no_file(
    run: ShardedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.shards(FAN)
    run.end()
    taking = run.merging._take

    def deleted(*merge: Any) -> bool:
        with run.db.transaction() as session:
            session.execute(delete(DbRun).where(DbRun.id == run.id))
        run.blobs.delete_below(f"runs/{run.id}")
        # As the one that was being written comes after that.
        run.blobs.put(merge[0], io.BytesIO(b"merged"))
        return taking(*merge)

    monkeypatch.setattr(run.merging, "_take", deleted)
    run.merging.merge_due()
    assert run.kept() == set()
    run.merging.tidy()
    assert run.states() == {}


def test_files_of_a_run_that_was_deleted_before_a_kill_go_later(run: ShardedRun) -> None:
    run.shards(2)
    with run.db.transaction() as session:
        session.execute(update(DbRunShard).values(state="writing"))
        session.execute(delete(DbRun).where(DbRun.id == run.id))
    run.merging.merge_due()
    run.merging.tidy()
    assert (run.kept(), run.states()) == (set(), {})


def test_a_store_that_is_away_is_asked_again(run: ShardedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.shards(FAN)

    def away(*_: Any) -> None:
        raise BlobStoreBusy("the bucket answered 503; it is asked again later.")

    with monkeypatch.context() as patch:
        patch.setattr(run.blobs, "put", away)
        with pytest.raises(BlobStoreBusy):
            run.merging.merge_due()
    assert run.states() == {"stored": FAN}
    run.merging.merge_due()
    run.check()
    assert len(run.named()) == 1


@pytest.mark.integration
def test_parts_that_a_killed_process_has_sent_to_a_bucket_are_forgotten_and_a_workers_are_not(
    elsewhere: ShardedRun,
) -> None:
    db, blobs, clock = elsewhere.db, elsewhere.blobs, elsewhere.clock
    blobs.begin_upload(f"runs/run_1/{MERGED_FOLDER}/abc")
    known = blobs.begin_upload("runs/run_1/files/abc")
    with db.transaction() as session:
        described = {"upload_id": known.id, "size": 1, "sha256": "0" * 64}
        session.add(DbRunUpload(run_id="run_1", name="files/abc", **described))
    clock.moment = SystemClock().now()
    clock.advance(2 * 3600)
    EvalImportStore(db, blobs, clock, LogStore(db, clock), RunCounts("eval", clock)).tidy()
    assert {upload.id for upload, _ in blobs.unfinished_uploads()} == {known.id}


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EIO, "the disk: it cannot be read"),
        BlobStoreBusy("the bucket answered 500: it cannot be read."),
    ],
)
def test_a_run_whose_shards_cannot_be_read_now_keeps_no_other_from_being_merged(
    run: ShardedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    other = another_run(run, tmp_path)
    run.shards(FAN)
    other.shards(FAN)
    read = run.blobs.read

    def damaged(key: str, offset: int, length: int) -> bytes:
        if key.startswith(f"runs/{run.id}/"):
            raise failure
        return read(key, offset, length)

    monkeypatch.setattr(run.blobs, "read", damaged)
    with pytest.raises(type(failure), match="cannot be read"):
        run.merging.merge_due()
    assert other.states() == {"stored": 1, "replaced": FAN}
    assert run.states() == {"stored": FAN}, "and of the other one nothing is left half done"


def test_a_shard_that_the_store_does_not_delete_keeps_no_other_from_it(
    run: ShardedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_merging, "_DELETIONS", 8)
    names = run.shards(FAN)
    run.merging.merge_due()
    deleted, stuck = run.blobs.delete, {f"runs/{run.id}/{name}" for name in names[:8]}

    def refused(key: str) -> None:
        if key in stuck:
            raise BlobStoreError("the platform's credentials may not delete it.")
        deleted(key)

    monkeypatch.setattr(run.blobs, "delete", refused)
    run.later()
    for _ in range(FAN // 8):
        with suppress(BlobStoreError):
            run.merging.merge_due()
    assert run.kept() == run.named() | stuck
    with run.db.transaction() as session:
        session.execute(delete(DbRun).where(DbRun.id == run.id))
    with pytest.raises(BlobStoreError):
        run.merging.tidy()
    assert run.kept() == stuck
    stuck.clear()
    run.merging.tidy()
    assert (run.kept(), run.states()) == (set(), {})


def test_a_run_that_is_resumed_while_it_is_tidied_up_loses_nothing(
    run: ShardedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.shard()
    run.end()
    listed = run.blobs.keys

    def resumed(prefix: str) -> Iterator[str]:
        with run.db.transaction() as session:
            session.get_one(DbRun, run.id).status = "running"
        run.shard()
        run.blobs.put(f"runs/{run.id}/shards/new", io.BytesIO(b"sent by its worker, and not told yet"))
        return listed(prefix)

    monkeypatch.setattr(run.blobs, "keys", resumed)
    run.merging.merge_due()
    monkeypatch.undo()
    run.check()
    assert f"runs/{run.id}/shards/new" in run.kept()
    assert run.states() == {"stored": 2}, "to be merged when it has ended"

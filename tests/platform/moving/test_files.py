"""Files that move from one store to another, and the whole command, with what it refuses."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.backup import create_backup, restore_backup
from osmosis_ai.platform.blobs.move_marks import read_file_marks, stored_keys
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.store import BlobStore, BlobStoreError
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.moving.files_move import FilesMove, StorePlace
from osmosis_ai.platform.moving.sides import Stage
from osmosis_ai.platform.services import PlatformServices
from tests.cli.conftest import Cli
from tests.platform.conftest import Member
from tests.platform.databases import postgres_database
from tests.platform.moving.test_rows import Ended, Shown
from tests.platform.s3_server import CREDENTIALS, new_bucket

pytestmark = pytest.mark.integration
CONTENT = {f"runs/r{number}/file-{number}.json": b"%d" % number * number for number in range(12)}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StorePlace, StorePlace]:
    """A directory with files in it, and a bucket with none."""
    for name, secret in CREDENTIALS.items():
        monkeypatch.setenv(name, secret)
    places = []
    for url in ("", new_bucket()):
        config = PlatformConfig(home=tmp_path / "home", blobs_url=url)
        config.prepare_home()
        places.append(StorePlace(open_blob_store(config, SystemClock()), config.blobs_shown))
    for key, content in CONTENT.items():
        places[0].store.put(key, io.BytesIO(content))
    return places[0], places[1]


def held(store: BlobStore) -> dict[str, bytes]:
    found = {}
    for key in stored_keys(store):
        with store.open(key) as stream:
            found[key] = stream.read()
    return found


def move(source: StorePlace, target: StorePlace, home: Path, *, ends_after: int | None = None) -> FilesMove:
    going = FilesMove(source, target, home)
    going.prepare()
    going.begin()
    if going.stage not in (Stage.DEPARTED, Stage.DONE):
        going.copy(Shown(ends_after))
        going.depart(Shown())
    going.arrive()
    return going


def test_files_arrive_in_a_bucket_through_kills_and_go_back(
    stores: tuple[StorePlace, StorePlace], tmp_path: Path
) -> None:
    local, bucket = stores
    home = tmp_path / "home"
    for updates in (0, 3, 4):
        with pytest.raises(Ended):
            move(local, bucket, home, ends_after=updates)
    (notes,) = home.glob("moved-files-*")
    with notes.open("a") as cut_off:
        cut_off.write('["runs/r1')
    # What is done on the source in between: one is gone, one is new.
    local.store.delete("runs/r1/file-1.json")
    local.store.put("datasets/new", io.BytesIO(b"new"))
    move(local, bucket, home)
    expected = {**CONTENT, "datasets/new": b"new"}
    del expected["runs/r1/file-1.json"]
    assert held(bucket.store) == held(local.store) == expected
    assert not list(home.glob("moved-files-*"))
    with pytest.raises(ConflictError, match=r"files moved to the bucket"):
        read_file_marks(local.store).require_here("files", local.shown, "OSMOSIS_BLOBS_URL")
    read_file_marks(bucket.store).require_here("files", bucket.shown, "OSMOSIS_BLOBS_URL")
    assert move(local, bucket, home).stage is Stage.DONE

    bucket.store.delete("datasets/new")
    assert move(bucket, local, home).stage is Stage.REPLACES
    del expected["datasets/new"]
    assert held(local.store) == expected
    bucket.store.delete_below("runs")


def test_what_a_store_does_not_give_back_is_not_moved(
    stores: tuple[StorePlace, StorePlace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, bucket = stores
    put = type(bucket.store).put

    def put_other_bytes(store: BlobStore, key: str, stream: io.BytesIO) -> object:
        altered = key.startswith("runs/r7")
        return put(bucket.store, key, io.BytesIO(b"altered") if altered else stream)

    with monkeypatch.context() as patch:
        patch.setattr(type(bucket.store), "put", put_other_bytes)
        with pytest.raises(BlobStoreError, match="does not give back what was put there: runs/r7"):
            move(local, bucket, tmp_path / "home")
    read_file_marks(local.store).require_here("files", local.shown, "OSMOSIS_BLOBS_URL")
    move(local, bucket, tmp_path / "home")
    assert held(bucket.store) == CONTENT


def test_a_bucket_that_holds_something_is_not_taken(
    stores: tuple[StorePlace, StorePlace], tmp_path: Path
) -> None:
    local, bucket = stores
    bucket.store.put("theirs", io.BytesIO(b"x"))
    with pytest.raises(ConflictError, match="is not empty: it holds theirs"):
        move(local, bucket, tmp_path / "home")
    bucket.store.delete("theirs")


def test_a_backup_of_postgresql_and_a_bucket_is_restored_onto_either(
    services: PlatformServices, member: Member, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, secret in CREDENTIALS.items():
        monkeypatch.setenv(name, secret)
    services.blobs.put("datasets/one", io.BytesIO(b"rows"))
    services.vault.seal(b"a key is made", context="secrets:1")
    monkeypatch.setenv("OSMOSIS_HOME", str(services.config.home))
    bucket = new_bucket()
    with postgres_database() as url, postgres_database() as other:
        file = tmp_path / "url"
        file.write_text(f"{url}\n")
        assert cli("platform", "move", "--database-file", str(file), "--blobs", bucket).status == 0
        refused = cli("platform", "user", "list")
        assert refused.status == 1 and "database moved to postgresql://" in refused.err

        there = PlatformConfig(home=services.config.home, database_url=url, blobs_url=bucket)
        lean = create_backup(there, tmp_path / "lean.tar")
        full = create_backup(there, tmp_path / "full.tar", with_bucket=True)
        assert (full.files - lean.files, full.missing_blobs) == (1, 0)

        # Into a data directory without a server, and from there with one.
        restore_backup(PlatformConfig(home=tmp_path / "alone"), full.path)
        assert (tmp_path / "alone" / "blobs" / "objects" / "datasets" / "one").read_bytes() == b"rows"
        monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "alone"))
        listed = cli("platform", "user", "list", "--json")
        assert listed.status == 0 and member.user.email in listed.out

        again = PlatformConfig(home=tmp_path / "again", database_url=other, blobs_url=bucket)
        with pytest.raises(OsmosisError, match="this backup holds files"):
            restore_backup(again, full.path)
        restore_backup(again, lean.path)
        assert not (tmp_path / "again" / "platform.db").exists()
        monkeypatch.setenv("OSMOSIS_HOME", str(again.home))
        monkeypatch.setenv("OSMOSIS_DATABASE_URL", other)
        monkeypatch.setenv("OSMOSIS_BLOBS_URL", bucket)
        assert member.user.email in cli("platform", "user", "list", "--json").out
        with pytest.raises(ConflictError, match="is not empty"):
            restore_backup(PlatformConfig(home=tmp_path / "third", database_url=other), lean.path)
        assert not (tmp_path / "third").exists()


def test_a_wrong_bucket_is_corrected_where_it_was_named(
    services: PlatformServices, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    for name, secret in CREDENTIALS.items():
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("OSMOSIS_HOME", str(services.config.home))
    wrong = f"s3://no-such-bucket/x?{new_bucket().partition('?')[2]}"
    refused = cli("platform", "move", "--blobs", wrong)
    assert refused.status == 1 and "'no-such-bucket'" in refused.err
    assert "correct --blobs" in refused.err and "OSMOSIS_BLOBS_URL" not in refused.err


def test_no_password_is_taken_from_a_command_line_and_none_is_shown(
    services: PlatformServices, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(services.config.home))
    file = tmp_path / "url"
    for url, says in (
        ("postgresql://u:canary-4711@127.0.0.1:1/x", "does not answer"),
        ("postgresql://u@127.0.0.1:1/x?password=canary-4711", "does not answer"),
        ("postgresql://u:p@127.0.0.1:canary-4711/x", "is no database URL"),
        ("canary-4711", "is no database URL"),
        ("two canary-4711", "holds 2 lines or words"),
    ):
        file.write_text(url)
        for mode in ("--json", "--plain"):
            refused = cli("platform", "move", "--database-file", str(file), mode)
            assert refused.status == 1 and says in refused.err, refused.err
            assert "canary" not in refused.out + refused.err and "Traceback" not in refused.err
    for url in ("postgresql://u:canary-4711@h/x", "postgresql://h/x?user=u&password=canary-4711"):
        refused = cli("platform", "move", "--database", url)
        assert refused.status == 1 and "--database-file" in refused.err and "canary" not in refused.err
    for words, says in (
        ((), "name --database, --blobs or both"),
        (
            ("--blobs", "local"),
            f"{services.config.home / 'blobs'} is already where this platform's files are.",
        ),
        (("--database", "sqlite"), "already"),
        (("--blobs", "s3://b/x"), "3 to 63"),
        (("--database", "mysql://h/x"), "SQLite and PostgreSQL"),
        (("--database", "mysql://h/x"), "hint: write it as sqlite:////path/to/platform.db or postgresql://"),
    ):
        refused = cli("platform", "move", *words)
        assert refused.status == 1 and says in refused.err


def test_a_bucket_that_has_the_files_already_and_one_inside_it_are_told_apart(
    services: PlatformServices, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(services.config.home))
    at = "endpoint=http://127.0.0.1:9&region=eu-central-1"
    for prefix, named, inside in (("/fern", ", prefix 'fern',", "/fern/x"), ("", "", "/x")):
        monkeypatch.setenv("OSMOSIS_BLOBS_URL", f"s3://agents{prefix}?{at}")
        same = cli("platform", "move", "--blobs", f"s3://agents{prefix}/?{at}")
        place = f"the bucket 'agents' at http://127.0.0.1:9{named}"
        assert same.status == 1 and f"{place} is already where this platform's files are." in same.err
        other = cli("platform", "move", "--blobs", f"s3://agents{inside}?{at}")
        assert other.status == 1 and "one of both places" in other.err and "another prefix" in other.err


def test_a_file_for_a_backup_of_nothing_is_refused_before_anything_moves(
    services: PlatformServices, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(services.config.home))
    other, kept = tmp_path / "other.db", tmp_path / "kept.tar.gz"
    move = ("platform", "move", "--database", f"sqlite:///{other}", "--backup", str(kept))
    refused = cli(*move)
    assert refused.status == 1 and "there is no --replace" in refused.err
    assert not other.exists() and not kept.exists()
    done = cli(*move, "--replace", "--json")
    assert done.status == 0, done.err
    assert other.exists()

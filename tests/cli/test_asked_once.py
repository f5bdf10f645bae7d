"""What commands on a platform's machine say of a bucket that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from osmosis_ai.platform.blobs.s3_failures import refusal
from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError, BlobStoreSilent
from osmosis_ai.platform.s3_address import parse_s3_address
from tests.cli.conftest import Cli

ADDRESS = "s3://my-bucket/osmosis"
SILENT = BlobStoreSilent("the bucket 'my-bucket' cannot be reached (X); it is asked again later.")


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (("backup", "all.tar.gz", "--with-bucket"), "backup.create_backup"),
        (("restore", "all.tar.gz"), "backup.restore_backup"),
    ],
)
def test_a_command_that_found_no_bucket_says_what_to_do_and_promises_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], work: str
) -> None:
    def silent(*_: object, **__: object) -> NoReturn:
        raise SILENT

    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setattr(f"osmosis_ai.platform.{work}", silent)
    done = cli("platform", *words)
    said = " ".join(done.err.split())
    assert done.status == 1 and "the bucket 'my-bucket' cannot be reached (X)." in said
    assert "check that the store runs at OSMOSIS_BLOBS_URL, then run the command again" in said
    assert "asked again" not in said


@pytest.mark.parametrize("doing", ["read", "write"])
def test_a_bucket_that_is_busy_is_no_wrong_address(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, doing: str
) -> None:
    busy = refusal(parse_s3_address(ADDRESS), doing, "", 500)
    assert isinstance(busy, BlobStoreBusy) and "asked again later" in busy.message, (
        "as the platform's log has it"
    )

    def refused(*_: object, **__: object) -> NoReturn:
        raise busy

    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setattr("osmosis_ai.platform.backup.restore_backup", refused)
    done = cli("platform", "restore", "all.tar.gz")
    said = " ".join(done.err.split())
    assert done.status == 1 and "answered 500" in said and "run the command again later" in said
    assert "asked again" not in said


def test_what_a_command_can_not_mend_by_waiting_is_said_as_it_is(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise BlobStoreError("the bucket 'my-bucket' is full: nothing was stored.", hint="make room in it")

    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setattr("osmosis_ai.platform.backup.restore_backup", refused)
    done = cli("platform", "restore", "all.tar.gz")
    assert done.status == 1 and "make room in it" in done.err and "again" not in done.err

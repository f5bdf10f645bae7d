"""A commit's archive is a stranger's: nothing of it gets out of its directory."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from osmosis_ai.platform.runs.work import source_archive
from osmosis_ai.platform.runs.work.source_archive import SourceArchiveError, unpack_source


def archive_of(path: Path, *entries: tuple[str, str, str | bytes]) -> Path:
    """Write an archive of (kind, name, content or destination)."""
    kinds = {
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "pipe": tarfile.FIFOTYPE,
        "device": tarfile.CHRTYPE,
    }
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for kind, name, content in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size, entry.mode = len(content), 0o755 if kind == "program" else 0o4644
                archive.addfile(entry, io.BytesIO(content))
                continue
            entry.type, entry.linkname = kinds[kind], content
            archive.addfile(entry)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "run" / "source"


def test_files_programs_and_links_inside_are_there_and_what_was_there_is_not(
    tmp_path: Path, target: Path
) -> None:
    target.mkdir(parents=True)
    (target / "left.txt").write_text("of an agent")
    archive = archive_of(
        tmp_path / "a.tar.gz",
        ("link", "rollouts/a/shared", "../../shared"),
        ("file", "rollouts/a/main.py", b"print()"),
        ("program", "run.sh", b"#!/bin/sh"),
        ("file", "shared/x.txt", b"x"),
    )
    unpack_source(archive, target)
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == ["main.py", "run.sh", "x.txt"]
    assert (target / "rollouts/a/shared/x.txt").read_bytes() == b"x"
    assert (target / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (target / "shared/x.txt").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize(
    "entry",
    [
        ("file", "../out.txt", b"x"),
        ("file", "/tmp/out.txt", b"x"),
        ("file", "a/../../out.txt", b"x"),
        ("file", "a//b", b"x"),
        ("link", "out", "/etc"),
        ("link", "out", "../.."),
        ("hard", "passwd", "/etc/passwd"),
        ("pipe", "pipe", ""),
        ("device", "null", ""),
    ],
)
def test_what_no_checkout_may_have_leaves_everything_as_it_was(
    tmp_path: Path, target: Path, entry: tuple[str, str, str | bytes]
) -> None:
    target.mkdir(parents=True)
    (target / "before").touch()
    archive = archive_of(tmp_path / "a.tar.gz", ("file", "fine", b"x"), entry)
    with pytest.raises(SourceArchiveError):
        unpack_source(archive, target)
    assert [path.name for path in target.iterdir()] == ["before"]
    assert not (tmp_path / "out.txt").exists() and not (target.parent / "out.txt").exists()


def test_no_file_goes_through_a_link_and_no_path_is_there_twice(tmp_path: Path, target: Path) -> None:
    through = archive_of(tmp_path / "a.tar.gz", ("link", "d", ".."), ("file", "d/out.txt", b"x"))
    twice = archive_of(tmp_path / "b.tar.gz", ("file", "a", b"x"), ("file", "a", b"y"))
    for archive in (through, twice):
        with pytest.raises(SourceArchiveError):
            unpack_source(archive, target)
        assert not target.exists() and not (tmp_path / "run" / "out.txt").exists()


def test_what_is_no_archive_or_too_much_is_refused(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"x" * 5000)[:-20])
    monkeypatch.setattr(source_archive, "MAX_SOURCE_BYTES", 1000)
    archive_of(tmp_path / "c.tar.gz", ("file", "a", b"x" * 600), ("file", "b", b"x" * 600))
    for name in "abc":
        with pytest.raises(SourceArchiveError):
            unpack_source(tmp_path / f"{name}.tar.gz", target)
        assert not target.exists()

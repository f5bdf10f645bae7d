from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from osmosis_ai import files
from osmosis_ai.files import cache_dir, sync_directory, write_atomic, write_json
from tests.full_disk import files_of_at_most


def test_atomic_private_write(tmp_path: Path) -> None:
    path = tmp_path / "new" / "directory" / "file.txt"
    write_atomic(path, "grüezi")
    assert path.read_bytes() == "grüezi".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_atomic(path, b"\x00\x01", mode=0o644, durable=False)
    assert path.read_bytes() == b"\x00\x01"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_failed_write_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")

    def refuse(descriptor: int) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="input/output error"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_full_disk_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_atomic(path, "x" * 100_000)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_link_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("target")
    link.symlink_to(target)
    write_atomic(link, "new")
    assert target.read_text() == "target"
    assert link.read_text() == "new" and not link.is_symlink()


def test_json_format(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"name": "größe", "values": [1, None]})
    assert path.read_text(encoding="utf-8") == (
        '{\n  "name": "größe",\n  "values": [\n    1,\n    null\n  ]\n}\n'
    )


def test_non_finite_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "value.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_missing_directory_cannot_be_synced(tmp_path: Path) -> None:
    sync_directory(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "missing")


def test_cache_directory_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", "~/somewhere")
    assert cache_dir() == Path.home() / "somewhere"
    monkeypatch.delenv("OSMOSIS_CACHE_DIR")
    assert cache_dir().name == "osmosis"


def test_streams_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.require_writable(pipe)
    write_json(pipe, {"said": "yes"})
    assert os.read(reading, 100) == b'{\n  "said": "yes"\n}\n'
    os.close(reading)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
    with (tmp_path / "file").open("wb") as file:
        assert files.is_stream(Path(f"/dev/fd/{file.fileno()}")) and files.is_stream(Path("/dev/null"))
    assert not files.is_stream(tmp_path / "file")


def test_lone_surrogate_in_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"said": "\ud83d"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"said": "\ud83d"}

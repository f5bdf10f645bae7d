"""Unpack a commit's files from the platform's archive.

The archive is untrusted: only regular files, directories and internal links are written, all below one new directory.
Links come last, so that no file is written through one.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from osmosis_ai.errors import OsmosisError

MAX_SOURCE_BYTES = 4 * 1024**3
_MOST_ENTRIES = 1_000_000


class SourceArchiveError(OsmosisError):
    """The archive of a commit is invalid."""


def unpack_source(archive: Path, target: Path) -> None:
    """Replace ``target`` by the files of an archive (tar, gzip), all or none."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:gz") as files:
            _unpack(files, partial)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        name = os.path.relpath(error.filename or target, partial)
        raise SourceArchiveError(
            f"two paths of the commit are the same file on this machine: {name!r}."
        ) from None
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        raise SourceArchiveError(f"the archive of the run's commit cannot be read: {error}.") from None
    else:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(files: tarfile.TarFile, root: Path) -> None:
    links: list[tuple[str, str]] = []
    room = MAX_SOURCE_BYTES
    for number, entry in enumerate(files):
        room -= entry.size
        if room < 0 or number >= _MOST_ENTRIES:
            raise SourceArchiveError(
                "the archive of the run's commit has more than 4 GiB or 1,000,000 files."
            )
        path = root / _checked(entry.name)
        if entry.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif entry.issym():
            links.append((entry.name, entry.linkname))
        elif entry.isreg():
            _write(files, entry, path)
        else:
            raise SourceArchiveError(
                f"the archive of the run's commit has an entry that is not a file: {entry.name!r}."
            )
    _link(root, links)


def _write(files: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o755 if entry.mode & 0o100 else 0o644
    content = files.extractfile(entry)
    assert content is not None  # a regular file has content
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file)


def _link(root: Path, links: list[tuple[str, str]]) -> None:
    for name, destination in links:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(destination)
    inside = root.resolve()
    for name, destination in links:
        # Judged only when all of them are there: a link may lead outside by way of another one.
        found = Path(os.path.realpath(root / name))
        if Path(destination).is_absolute() or not found.is_relative_to(inside):
            raise SourceArchiveError(f"a link of the commit leads out of it: {name!r}.")


def _checked(name: str) -> str:
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise SourceArchiveError(f"the archive of the run's commit has an invalid path: {name!r}.")
    return name

"""Export a commit to a directory that contains exactly its files, with no links out of it.

Contents are written as stored: no filter, no line-end conversion, no ``export-ignore``. Regular
files are written first, into newly created directories. Symbolic links come last and are kept only if their target is
inside. The directory appears atomically.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from osmosis_ai.platform.gitsync.git import Git, GitError
from osmosis_ai.platform.gitsync.tree import (
    EXECUTABLE,
    REGULAR,
    SUBMODULE,
    SYMLINK,
    ObjectReader,
    TreeEntry,
    list_tree,
    read_objects,
)

MAX_EXPORT_BYTES = 4 * 1024**3
EXPORT_TIMEOUT_S = 600.0
_LONGEST_LINK = 4096
_DEEPEST = 256


@dataclass(frozen=True)
class ExportedTree:
    """What was written."""

    path: Path
    sha: str
    left_out: tuple[str, ...]


def export_commit(git: Git, mirror: Path, sha: str, target: Path) -> ExportedTree:
    """Write the tree of ``sha`` to ``target``, which must not exist yet."""
    entries = list(list_tree(git, mirror, sha))
    _refuse_unsafe_paths(entries)
    size = sum(entry.size for entry in entries)
    if size > MAX_EXPORT_BYTES:
        raise GitError(
            f"the commit {sha} holds {size / 1024**3:.1f} GiB of files, and {MAX_EXPORT_BYTES // 1024**3} GiB is "
            "the most a run can take.",
            hint="keep data in datasets rather than in the repository",
        )
    if os.path.lexists(target):
        raise GitError(f"{target} already exists.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        with read_objects(git, mirror, timeout_s=EXPORT_TIMEOUT_S) as reader:
            _write_files(reader, partial, entries)
            left_out = [*_submodules(entries), *_write_links(reader, partial, entries)]
        partial.rename(target)
    except FileExistsError as error:  # a file system for which `A` and `a` are one
        shutil.rmtree(partial, ignore_errors=True)
        raise _clash(os.path.relpath(error.filename or target, partial)) from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return ExportedTree(target, sha, tuple(left_out))


def _refuse_unsafe_paths(entries: Iterable[TreeEntry]) -> None:
    """Only a crafted repository fails here: Git itself writes no such tree."""
    files = Counter(entry.path for entry in entries)
    for path, times in files.items():
        if path.count("/") > _DEEPEST:
            # Python before 3.13 neither walks nor deletes a tree that is as deep as it may call itself.
            raise GitError(
                f"the repository holds a file below more than {_DEEPEST} directories: {path[:80]!r}…"
            )
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        if times > 1 or not files.keys().isdisjoint(parents):
            raise _clash(path)
        for part in path.split("/"):
            # `.git` in the spellings that case-folding and Windows-like file systems take for it.
            folded = part.casefold().rstrip(" .").replace("\u200c", "")
            if part in ("", ".", "..") or folded in (".git", "git~1"):
                raise GitError(f"the repository holds a path that no checkout may have: {path!r}.")


def _write_files(reader: ObjectReader, root: Path, entries: Iterable[TreeEntry]) -> None:
    for entry in entries:
        path = root / entry.path
        if entry.mode == SYMLINK:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif entry.mode in REGULAR:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o755 if entry.mode == EXECUTABLE else 0o644
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with os.fdopen(descriptor, "wb") as file:
                for chunk in reader.chunks(entry):
                    file.write(chunk)


def _submodules(entries: Iterable[TreeEntry]) -> list[str]:
    return [f"{entry.path}: submodules are not fetched" for entry in entries if entry.mode == SUBMODULE]


def _write_links(reader: ObjectReader, root: Path, entries: Iterable[TreeEntry]) -> list[str]:
    """Write the symbolic links and take those back that lead outside; return what was left out."""
    written: list[tuple[TreeEntry, Path]] = []
    left_out: list[str] = []
    for entry in entries:
        if entry.mode != SYMLINK:
            continue
        destination = reader.read(entry) if entry.size <= _LONGEST_LINK else b""
        if not destination or b"\0" in destination:
            left_out.append(f"{entry.path}: a symbolic link that leads nowhere")
            continue
        link = root / entry.path
        link.symlink_to(os.fsdecode(destination))
        written.append((entry, link))
    # Judged only when all of them are there: a link may lead outside by way of another one.
    for entry, link in [(entry, link) for entry, link in written if not _stays_inside(link, root)]:
        link.unlink()
        left_out.append(f"{entry.path}: a symbolic link that leads out of the repository")
    return left_out


def _stays_inside(link: Path, root: Path) -> bool:
    if link.readlink().is_absolute():
        return False
    return Path(os.path.realpath(link)).is_relative_to(root.resolve())


def _clash(path: str) -> GitError:
    return GitError(f"two paths of the repository are the same file here: {path!r}.")

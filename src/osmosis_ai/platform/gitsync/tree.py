"""Read a commit from a mirror: list its files and rollouts, read contents, export it to a directory.

Names are untrusted bytes. Contents are read by object id, so file and branch names never become arguments of Git.

An export contains exactly the commit's files, with no links out of it. Contents are written as stored: no filter, no
line-end conversion, no ``export-ignore``. Regular files are written first, into newly created directories. Symbolic
links come last and are kept only if their target is inside. The directory appears atomically.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from osmosis_ai.platform.gitsync.git import LOCAL_TIMEOUT_S, Git, GitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_EXPORT_BYTES = 4 * 1024**3
EXPORT_TIMEOUT_S = 600.0
MAX_PYPROJECT_BYTES = 1024 * 1024
MOST_FILES = 250_000
"""Maximum number of files of a commit, or of one of its directories."""
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CHUNK_BYTES = 1024 * 1024
_MOST_LISTED_BYTES = 64 << 20
_LONGEST_LINK = 4096
_DEEPEST = 256
_LONGEST_NAME = 255
_LONGEST_DESCRIPTION = 1000

REGULAR = frozenset({"100644", "100755", "100664"})
_EXECUTABLE = "100755"
_SYMLINK = "120000"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file of a commit."""

    mode: str
    object_id: str
    size: int
    path: str


def list_tree(git: Git, mirror: Path, sha: str, path: str = "") -> Iterator[TreeEntry]:
    """Yield the files of the commit ``sha``: all, those below the directory ``path/``, or the file ``path``."""
    if not _SHA.fullmatch(sha):
        raise GitError(f"'{sha}' is not a full commit id.")
    only = ["--", path] if path else []
    asked = [f"--git-dir={mirror}", "ls-tree", "-r", "-z", "-l", "--full-tree", sha, *only]
    try:
        listed = git.run(asked, most_bytes=_MOST_LISTED_BYTES)
    except GitError as error:
        raise GitError(f"the files of the commit {sha} cannot be listed: {error.message}") from None
    if listed.exit_status != 0:
        raise GitError(f"the commit {sha} cannot be read: {listed.reason}.")
    if listed.output.count(b"\0") > MOST_FILES:
        raise GitError(
            f"the commit {sha} holds more than {MOST_FILES:,} files, which is the most a run can take.",
            hint="keep data in datasets rather than in the repository",
        )
    for record in listed.output.split(b"\0"):
        if record:
            facts, _, name = record.partition(b"\t")
            mode, _kind, object_id, size = facts.decode("ascii").split()
            yield TreeEntry(mode, object_id, int(size) if size.isdigit() else 0, os.fsdecode(name))


class ObjectReader:
    """Reads contents by object id; see :func:`read_objects`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._requests: IO[bytes] = process.stdin
        self._replies: IO[bytes] = process.stdout

    def read(self, entry: TreeEntry) -> bytes:
        """Return the content of a file that fits into memory."""
        return b"".join(self.chunks(entry))

    def chunks(self, entry: TreeEntry) -> Iterator[bytes]:
        """Yield the content in pieces; read all of them before the next file."""
        try:
            self._requests.write(entry.object_id.encode("ascii") + b"\n")
            self._requests.flush()
            header = self._replies.readline().split()
        except OSError:
            header = []
        if len(header) != 3 or header[1] != b"blob":
            raise GitError(f"the content of {entry.path!r} cannot be read: the mirror is damaged.")
        left = int(header[2])
        while left:
            chunk = self._replies.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise GitError(f"reading {entry.path!r} did not finish in time.")
            left -= len(chunk)
            yield chunk
        self._replies.read(1)  # the newline that ends every reply


@contextmanager
def read_objects(git: Git, mirror: Path, *, timeout_s: float = LOCAL_TIMEOUT_S) -> Iterator[ObjectReader]:
    """Read many objects with one process while the block lasts."""
    arguments = [f"--git-dir={mirror}", "cat-file", "--batch"]
    with git.conversation(arguments, timeout_s=timeout_s) as process:
        yield ObjectReader(process)


# -- rollouts ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RolloutDirectory:
    """A rollout: the name of its directory, and the description in its ``pyproject.toml``."""

    name: str
    description: str | None


def find_rollouts(git: Git, mirror: Path, sha: str) -> list[RolloutDirectory]:
    """Return the rollouts of a commit by name: the directories under ``rollouts/`` that contain a file."""
    projects: dict[str, TreeEntry | None] = {}
    for entry in list_tree(git, mirror, sha, "rollouts/"):
        _, name, *inside = entry.path.split("/", 2)
        if not inside or not _is_name(name):
            continue
        projects.setdefault(name, None)
        if inside == ["pyproject.toml"] and entry.mode in REGULAR and entry.size <= MAX_PYPROJECT_BYTES:
            projects[name] = entry
    with read_objects(git, mirror) as reader:
        return [RolloutDirectory(name, _description(reader, projects[name])) for name in sorted(projects)]


def _is_name(name: str) -> bool:
    """Exclude directories of tools and names that a config cannot contain."""
    return not name.startswith((".", "__")) and name.isprintable() and len(name) <= _LONGEST_NAME


def _description(reader: ObjectReader, project: TreeEntry | None) -> str | None:
    if project is None:
        return None
    try:
        document: dict[str, Any] = tomllib.loads(reader.read(project).decode("utf-8"))
        text = document["project"]["description"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return text.strip()[:_LONGEST_DESCRIPTION] or None if isinstance(text, str) else None


# -- export --------------------------------------------------------------------------------------------


def export_commit(git: Git, mirror: Path, sha: str, target: Path) -> None:
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
            _write_links(reader, partial, entries)
        partial.rename(target)
    except FileExistsError as error:  # a file system for which `A` and `a` are one
        shutil.rmtree(partial, ignore_errors=True)
        raise _clash(os.path.relpath(error.filename or target, partial)) from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _refuse_unsafe_paths(entries: Iterable[TreeEntry]) -> None:
    """Refuse crafted trees, which Git itself does not write."""
    files = Counter(entry.path for entry in entries)
    for path, times in files.items():
        if path.count("/") > _DEEPEST:
            # Python before 3.13 cannot walk or delete a tree deeper than its recursion limit.
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
        if entry.mode == _SYMLINK:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif entry.mode in REGULAR:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o755 if entry.mode == _EXECUTABLE else 0o644
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with os.fdopen(descriptor, "wb") as file:
                for chunk in reader.chunks(entry):
                    file.write(chunk)


def _write_links(reader: ObjectReader, root: Path, entries: Iterable[TreeEntry]) -> None:
    links: list[Path] = []
    for entry in entries:
        if entry.mode != _SYMLINK:
            continue
        destination = reader.read(entry) if entry.size <= _LONGEST_LINK else b""
        if destination and b"\0" not in destination:
            links.append(root / entry.path)
            links[-1].symlink_to(os.fsdecode(destination))
    # Checked when all of them are there: a link may lead outside by way of another one.
    for link in [link for link in links if not _stays_inside(link, root)]:
        link.unlink()


def _stays_inside(link: Path, root: Path) -> bool:
    if link.readlink().is_absolute():
        return False
    return Path(os.path.realpath(link)).is_relative_to(root.resolve())


def _clash(path: str) -> GitError:
    return GitError(f"two paths of the repository are the same file here: {path!r}.")

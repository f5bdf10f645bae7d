"""Read a commit from a mirror. Names are untrusted bytes and never used as paths.

Contents are read by object id, so file and branch names never become arguments of Git.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from osmosis_ai.platform.gitsync.git import LOCAL_TIMEOUT_S, Git, GitError

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CHUNK_BYTES = 1024 * 1024
MOST_FILES = 250_000
"""Of a commit, or of the directory of it that is asked for."""
_MOST_LISTED_BYTES = 64 << 20

REGULAR = frozenset({"100644", "100755", "100664"})
EXECUTABLE = "100755"
SYMLINK = "120000"
SUBMODULE = "160000"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file of a commit."""

    mode: str
    object_id: str
    size: int
    path: str


def list_tree(git: Git, mirror: Path, sha: str, path: str = "") -> Iterator[TreeEntry]:
    """Yield the files of the commit ``sha``: all, those below the directory ``path/``, or the file ``path``."""
    only = ["--", path] if path else []
    asked = [f"--git-dir={mirror}", "ls-tree", "-r", "-z", "-l", "--full-tree", checked_sha(sha), *only]
    try:
        listed = git.listing(asked, most_bytes=_MOST_LISTED_BYTES)
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


def checked_sha(sha: str) -> str:
    """Return ``sha`` when it is a full commit id."""
    if not _SHA.fullmatch(sha):
        raise GitError(f"'{sha}' is not a full commit id.")
    return sha


class ObjectReader:
    """Reads contents by object id; see :func:`read_objects`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._questions: IO[bytes] = process.stdin
        self._answers: IO[bytes] = process.stdout

    def read(self, entry: TreeEntry) -> bytes:
        """Return the content of a file that fits into memory."""
        return b"".join(self.chunks(entry))

    def chunks(self, entry: TreeEntry) -> Iterator[bytes]:
        """Yield the content in pieces; all of them must be taken before the next file."""
        try:
            self._questions.write(entry.object_id.encode("ascii") + b"\n")
            self._questions.flush()
            header = self._answers.readline().split()
        except OSError:
            header = []
        if len(header) != 3 or header[1] != b"blob":
            raise GitError(f"the content of {entry.path!r} cannot be read: the mirror is damaged.")
        left = int(header[2])
        while left:
            chunk = self._answers.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise GitError(f"reading {entry.path!r} did not finish in time.")
            left -= len(chunk)
            yield chunk
        self._answers.read(1)  # the newline that ends every answer


@contextmanager
def read_objects(git: Git, mirror: Path, *, timeout_s: float = LOCAL_TIMEOUT_S) -> Iterator[ObjectReader]:
    """Read many objects with one process while the block lasts."""
    arguments = [f"--git-dir={mirror}", "cat-file", "--batch"]
    with git.conversation(arguments, timeout_s=timeout_s) as process:
        yield ObjectReader(process)

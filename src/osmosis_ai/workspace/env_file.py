"""A `.env` is data of a directory that somebody else may have filled: where it may be, and whose it must be.

Only the one of the workspace's root is looked at (without a workspace: of the current directory), only a regular file
of the user's own or root's that others cannot write to, and only one that Git does not track: a tracked one was
written by whoever writes to the repository. It is read once, and what was read is what its digest is of. A
`${NAME}` in it means a name of the same file; the variables of the shell stay where they are.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import OsmosisError

FILE_NAME = ".env"
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class UntrustedEnvFile(OsmosisError):
    """A `.env` that is not read; the message says why, the hint what mends it."""


@dataclass(frozen=True)
class EnvFile:
    """What one environment file holds.

    Attributes:
        path: where it is.
        digest: SHA-256 of its bytes, in hex.
        values: its variables that are set to something.
        bad_lines: numbers of the lines that are not `NAME=value`.
        unresolved: names whose value refers to one that the file does not set.
    """

    path: Path
    digest: str
    values: Mapping[str, str] = field(repr=False)
    bad_lines: tuple[int, ...] = ()
    unresolved: tuple[str, ...] = ()


def env_file_path(directory: Path) -> Path:
    """Return where the `.env` of ``directory`` would be: at the root of its work tree, else in itself."""
    return (_work_tree(directory) or directory) / FILE_NAME


def read_workspace_env_file(path: Path) -> EnvFile | None:
    """Read the `.env` that :func:`env_file_path` found; None when there is none.

    Raises:
        UntrustedEnvFile: when there is one that must not be read.
        OsmosisError: when it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            raise _untrusted(path, "it is a symbolic link", "put the file itself there") from None
        raise _unreadable(path, error.strerror or str(error)) from error
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):  # some keep a virtual environment there
            return None
        _check_owner(path, found)
        _check_untracked(path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _parsed(path, _content(path, file))
    finally:
        os.close(descriptor)


def read_named_env_file(path: Path) -> EnvFile:
    """Read the file that the user named, whatever it is and whosever.

    Raises:
        OsmosisError: when it cannot be read.
    """
    path = path.absolute()
    try:
        with path.open("rb") as file:
            return _parsed(path, _content(path, file))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def _work_tree(directory: Path) -> Path | None:
    """Return the root of the work tree around ``directory``; Git itself is not asked, for it costs a process."""
    return next((place for place in (directory, *directory.parents) if os.path.lexists(place / ".git")), None)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _untrusted(path, "it is no regular file", "put a file of `NAME=value` lines there")
    if found.st_uid not in (os.geteuid(), 0):
        raise _untrusted(path, "it belongs to another user", "make a copy of your own, after reading it")
    if found.st_mode & stat.S_IWOTH:
        raise _untrusted(path, "everybody on this machine may write to it", f"chmod o-w {path}")


def _check_untracked(path: Path) -> None:
    from osmosis_ai.workspace.git import is_tracked

    if not os.path.lexists(path.parent / ".git"):
        return
    try:
        tracked = is_tracked(path.parent, path.name)
    except OsmosisError as error:
        raise _untrusted(
            path, "Git does not say whether it tracks it", f"mend that, or pass --env-file {path} ({error})"
        ) from None
    if tracked:
        raise _untrusted(
            path,
            "Git tracks it, so that whoever writes to the repository writes it",
            f"git rm --cached {path}",
        )


def _content(path: Path, file: io.BufferedReader) -> bytes:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _unreadable(path, f"it has more than {MAX_BYTES >> 20} MiB")
    return content


def _parsed(path: Path, content: bytes) -> EnvFile:
    # Importing this costs more than starting Python; most directories have no `.env`.
    import hashlib

    from dotenv.parser import parse_stream
    from dotenv.variables import Variable, parse_variables

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not UTF-8 text") from None
    values: dict[str, str] = {}
    bad_lines: list[int] = []
    unresolved: set[str] = set()
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key is not None and not _NAME.fullmatch(binding.key)):
            bad_lines.append(binding.original.line)
        elif binding.key is not None and binding.value is not None:
            parts = list(parse_variables(binding.value))
            needed = {part.name for part in parts if isinstance(part, Variable) and part.default is None}
            unresolved.discard(binding.key)
            if needed <= values.keys():
                values[binding.key] = "".join(part.resolve(values) for part in parts)
            else:
                values.pop(binding.key, None)
                unresolved.add(binding.key)
    return EnvFile(
        path=path,
        digest=hashlib.sha256(content).hexdigest(),
        values={name: value for name, value in values.items() if value and "\0" not in value},
        bad_lines=tuple(bad_lines),
        unresolved=tuple(sorted(unresolved)),
    )


def _untrusted(path: Path, reason: str, remedy: str) -> UntrustedEnvFile:
    return UntrustedEnvFile(f"{path} is ignored: {reason}", hint=remedy)


def _unreadable(path: Path, reason: str) -> OsmosisError:
    return OsmosisError(f"cannot read the environment file {path}: {reason}")

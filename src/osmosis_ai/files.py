"""Files that matter are whole or absent: never half-written, never world-readable by accident."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

from osmosis_ai.errors import OsmosisError

CONFIG_DIR_ENV = "OSMOSIS_CONFIG_DIR"
_BUFFER_BYTES = 1 << 18
_LONGEST_NAME = 255
"""Of a file in every file system that we know, in bytes."""
_LONGEST_PATH = 4_000
"""Of what a file system is asked for at once, in bytes, and a little less."""


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` with ``data`` in one step."""
    with replacing(path, mode=mode, durable=durable) as handle:
        handle.write(data.encode("utf-8") if isinstance(data, str) else data)


def write_new(path: Path, data: str) -> None:
    """As :func:`write_atomic`, for a file that nothing is to take the place of."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
        written = Path(beside) / "new"
        write_atomic(written, data)
        os.link(written, path)  # which, unlike a rename, fails where there is a file


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file that becomes ``path`` in one step when the block ends well, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES) as handle:
            yield handle
            handle.flush()
            os.fchmod(handle.fileno(), mode)
            if durable:
                os.fsync(handle.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


@contextlib.contextmanager
def replacing_or_streaming(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[IO[bytes]]:
    """As :func:`replacing`, for a path that a user named: a device or a pipe there is written to and stays."""
    if not is_stream(path):
        with replacing(path, mode=mode, durable=durable) as handle:
            yield handle
    else:
        with path.open("wb") as stream:
            yield stream


def is_stream(path: Path) -> bool:
    """Tell whether there is a device or a pipe, or one of the links that stand for them, such as ``/dev/stdout``."""
    in_dev = path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm")  # the latter holds files
    return path.exists() and (not path.is_file() or (path.is_symlink() and in_dev))


def require_writable(path: Path) -> None:
    """Find out whether a file can be written, by writing beside it; its directory is made."""
    import errno

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if is_stream(path):
        # Not opened: a pipe that nobody reads yet would hold us, and one that is read would end.
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    # Whether a file can be made there is not only a matter of permissions.
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def open_regular(path: Path | str, *, dir_fd: int | None = None) -> BinaryIO:
    """Open a file where anybody may have put something else: no link is followed, no pipe waited for, no
    device read."""
    return os.fdopen(regular_descriptor(path, dir_fd=dir_fd), "rb")


def regular_descriptor(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Open as :func:`open_regular` does, and return the descriptor, which the caller closes."""
    import errno

    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return opened


def is_read_by_all(about: os.stat_result) -> bool:
    """Tell whether every user of this machine may read a file that is one; a pipe or a socket is not kept."""
    return stat.S_ISREG(about.st_mode) and bool(about.st_mode & stat.S_IROTH)


def can_be_path(text: str) -> bool:
    """Tell whether a file can be there: asked for a longer name or path, a file system answers with an error."""
    path = text.encode("utf-8", "surrogatepass")
    return len(path) <= _LONGEST_PATH and all(len(part) <= _LONGEST_NAME for part in path.split(b"/"))


def expanded(path: Path | str) -> Path:
    """Return a path with the home directory that its ``~`` stands for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise OsmosisError(
            f"`{path}` is in a home directory that this machine does not have.", hint="write the path in full"
        ) from None


def size_of(path: Path) -> int:
    """Return a file's bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it, whatever somebody made there; what can not be deleted is left."""
    import shutil
    import subprocess

    try:
        shutil.rmtree(directory, ignore_errors=True)
    except RecursionError:
        # Before 3.13 Python gets no deeper than it may call itself, which directories may well be.
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--", directory], capture_output=True, check=False)


def sync_directory(directory: Path) -> None:
    """Make renames and new names in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write ``value`` as JSON, indented by two spaces and ended by a newline, in one step."""
    import json

    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing_or_streaming(path, mode=mode, durable=durable) as out:
        out.write(f"{text}\n".encode("utf-8", "backslashreplace"))


def is_disk_full(error: OSError) -> bool:
    """Tell whether a write failed because there is no room: the disk, the quota, or the largest size of a file."""
    import errno

    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def config_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of this user's settings (``OSMOSIS_CONFIG_DIR``, else ``~/.config/osmosis``)."""
    override = (os.environ if env is None else env).get(CONFIG_DIR_ENV)
    return expanded(override) if override else Path.home() / ".config" / "osmosis"


def cache_dir() -> Path:
    """Return the directory for what can be rebuilt (``OSMOSIS_CACHE_DIR``, else the user's cache)."""
    override = os.environ.get("OSMOSIS_CACHE_DIR")
    if override:
        return expanded(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("osmosis"))

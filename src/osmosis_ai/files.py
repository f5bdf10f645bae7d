"""Write files atomically and with private permissions, and open files safely."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

from osmosis_ai.errors import ConflictError, OsmosisError

CONFIG_DIR_ENV = "OSMOSIS_CONFIG_DIR"
_BUFFER_BYTES = 1 << 18
# In bytes, on common file systems; a path in one system call, with a margin.
_LONGEST_NAME, _LONGEST_PATH = 255, 4_000


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` with ``data`` atomically."""
    with replacing(path, mode=mode, durable=durable) as handle:
        handle.write(data.encode("utf-8") if isinstance(data, str) else data)


def write_new(path: Path, data: str) -> None:
    """Write a new file like :func:`write_atomic`, but fail if it exists."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
        written = Path(directory) / "new"
        write_atomic(written, data)
        os.link(written, path)  # unlike a rename, this fails if the file exists


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces ``path`` atomically if the block succeeds, and is deleted otherwise."""
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
    """Like :func:`replacing`, but write to the path itself if it is a device or pipe."""
    if not is_stream(path):
        with replacing(path, mode=mode, durable=durable) as handle:
            yield handle
    else:
        with path.open("wb") as stream:
            yield stream


def is_stream(path: Path) -> bool:
    """Return whether ``path`` is a device or pipe, or a link to one such as ``/dev/stdout``."""
    # /dev/shm holds regular files.
    in_dev = path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm")
    return path.exists() and (not path.is_file() or (path.is_symlink() and in_dev))


def require_writable(path: Path) -> None:
    """Check that a file can be written, by writing a temporary one next to it; its directory is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if is_stream(path):
        # Not opened: opening a pipe without a reader would block, and closing one would end its reader.
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    # Permissions alone do not show whether a file can be created there.
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def require_directory(path: Path) -> None:
    """Reject an output path at which there is a file."""
    if path.exists() and not path.is_dir():
        raise ConflictError(f"'{path}' is not a directory.", hint="name a directory with --output")


def open_regular(path: Path | str, *, dir_fd: int | None = None) -> BinaryIO:
    """Open a regular file at an untrusted path: links are not followed, pipes do not block, devices are not read."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(opened, "rb")


def is_read_by_all(about: os.stat_result) -> bool:
    """Return whether every user of this machine may read a regular file; False for pipes and sockets."""
    return stat.S_ISREG(about.st_mode) and bool(about.st_mode & stat.S_IROTH)


def can_be_path(text: str) -> bool:
    """Return whether a file system accepts ``text`` as a path: longer names and paths are errors."""
    path = text.encode("utf-8", "surrogatepass")
    return len(path) <= _LONGEST_PATH and all(len(part) <= _LONGEST_NAME for part in path.split(b"/"))


def expanded(path: Path | str) -> Path:
    """Return a path with ``~`` expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise OsmosisError(
            f"`{path}` is in a home directory that this machine does not have.", hint="write the path in full"
        ) from None


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def remove_tree(directory: Path) -> None:
    """Remove a directory of any content; what cannot be deleted is left."""
    import shutil
    import subprocess

    try:
        shutil.rmtree(directory, ignore_errors=True)
    except RecursionError:
        # Before 3.13, Python's removal is recursive, and untrusted directories may be deeper than its recursion limit.
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--", directory], capture_output=True, check=False)


def sync_directory(directory: Path) -> None:
    """Make renames and new names in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write ``value`` as JSON atomically, indented by two spaces, with a final newline."""
    import json

    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing_or_streaming(path, mode=mode, durable=durable) as out:
        out.write(f"{text}\n".encode("utf-8", "backslashreplace"))


def is_disk_full(error: OSError) -> bool:
    """Return whether a write failed for lack of space: the disk, a quota, or the maximum file size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def config_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of this user's settings (``OSMOSIS_CONFIG_DIR``, else ``~/.config/osmosis``)."""
    override = (os.environ if env is None else env).get(CONFIG_DIR_ENV)
    return expanded(override) if override else Path.home() / ".config" / "osmosis"


def cache_dir() -> Path:
    """Return the cache directory (``OSMOSIS_CACHE_DIR``, else the user's cache)."""
    override = os.environ.get("OSMOSIS_CACHE_DIR")
    if override:
        return expanded(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("osmosis"))

"""Download a file from a blob store; it appears at its path only when complete and verified."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from email.message import Message
from io import FileIO
from pathlib import Path

import httpx

from osmosis_ai.api.retrying import Transient, Waits
from osmosis_ai.api.transfer.client import BlobClient, TransferError, check_url, may_pass, refusal, shown
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import sync_directory, write_json

Progress = Callable[[int], None]
WAITS = Waits((0.5, 1.0))
_BLOCK_BYTES = 256 * 1024
# Smaller files are downloaded again, which costs less than recording their progress.
_WORTH_RESUMING_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Download:
    path: Path
    size: int
    sha256: str | None = None
    suggested_name: str | None = None


def download(
    url: str,
    target: Path,
    *,
    expected_size: int | None = None,
    expected_sha256: str | None = None,
    largest_size: int | None = None,
    progress: Progress | None = None,
    refresh_url: Callable[[], str] | None = None,
    waits: Waits = WAITS,
    within_s: float | None = None,
    waits_for_store: bool = False,
    client: BlobClient | None = None,
) -> Download:
    """Download a file; an existing ``target`` is replaced atomically."""
    check_url(url)
    with ExitStack() as stack:
        blobs = client if client is not None else stack.enter_context(BlobClient())
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = stack.enter_context(_Partial(target))
            transfer = _Transfer(
                blobs,
                url,
                partial,
                expected_size=expected_size,
                expected_sha256=expected_sha256,
                largest_size=largest_size,
                progress=progress,
                refresh_url=refresh_url,
                within_s=math.inf if within_s is None else within_s,
                waits_for_store=waits_for_store,
            )
            waits.run(transfer.attempt)
            size = partial.size()
            partial.finish()
        except OSError as error:
            raise OsmosisError(
                f"cannot write {target}: {error.strerror or error}.",
                hint="what was fetched is kept; run the command again when there is room",
            ) from None
        return Download(target, size, expected_sha256, transfer.suggested_name)


class _Partial:
    """``<name>.partial`` and, for a large file, a record of which bytes it belongs to. One writer at a time."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = target.with_name(f"{target.name}.partial")
        self._note = target.with_name(f"{target.name}.partial.json")
        # Unbuffered: bytes that a full disk refused must not be written again on close.
        self.handle: FileIO = self._path.open("a+b", buffering=0)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.fstat(self.handle.fileno()).st_ino == self._path.stat().st_ino
        except (BlockingIOError, FileNotFoundError):
            mine = False
        except OSError:
            # The file system does not support locks.
            mine = True
        if not mine:
            self.handle.close()
            raise ConflictError(f"another command is downloading {target}.") from None
        self._finished = False

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished and (self.size() < _WORTH_RESUMING_BYTES or self.validator() is None):
            self._path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
        self.handle.close()

    def size(self) -> int:
        return os.fstat(self.handle.fileno()).st_size

    def validator(self) -> str | None:
        """Return the store's validator of the bytes that this file is a part of."""
        try:
            value = json.loads(self._note.read_bytes())["validator"]
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None
        return value if isinstance(value, str) else None

    def restart(self, validator: str | None, announced: int | None) -> None:
        """Restart with an empty file for the bytes with this ``validator``."""
        self.handle.truncate(0)
        if validator is not None and (announced is None or announced >= _WORTH_RESUMING_BYTES):
            write_json(self._note, {"validator": validator}, durable=False)
        else:
            self._note.unlink(missing_ok=True)

    def append(self, block: bytes) -> None:
        """Write all of ``block``; the system may write only a part per call."""
        left = memoryview(block)
        while left:
            left = left[self.handle.write(left) :]

    def digest(self) -> str:
        digest = hashlib.sha256()
        self.handle.seek(0)
        while block := self.handle.read(_BLOCK_BYTES):
            digest.update(block)
        return digest.hexdigest()

    def finish(self) -> None:
        """Move the file to its final path."""
        # Only large files are flushed to disk; small ones are cheap to download again.
        large = self.size() >= _WORTH_RESUMING_BYTES
        if large:
            os.fsync(self.handle.fileno())
        self._path.replace(self._target)
        self._note.unlink(missing_ok=True)
        self._finished = True
        if large:
            sync_directory(self._target.parent)


class _Transfer:
    """The attempts of one download."""

    def __init__(
        self,
        blobs: BlobClient,
        url: str,
        partial: _Partial,
        *,
        expected_size: int | None,
        expected_sha256: str | None,
        largest_size: int | None,
        progress: Progress | None,
        refresh_url: Callable[[], str] | None,
        within_s: float,
        waits_for_store: bool,
    ) -> None:
        self._blobs = blobs
        self._url = url
        self._partial = partial
        self._expected_size = expected_size
        self._expected_sha256 = expected_sha256
        self._largest_size = largest_size
        self._progress = progress
        self._refresh_url = refresh_url
        self._within_s = within_s
        self._waits_for_store = waits_for_store
        self._is_named = False
        self.suggested_name: str | None = None

    def attempt(self) -> None:
        """Fetch the missing bytes and verify the file."""
        have, validator = self._partial.size(), self._partial.validator()
        resuming = have > 0 and validator is not None
        headers = {"Range": f"bytes={have}-", "If-Range": validator} if resuming and validator else {}
        with self._blobs.get(self._url, headers=headers) as response:
            if resuming and response.status_code == 416:
                self._start_again(response)
            self._ensure_success(response)
            continues = response.status_code == 206
            if continues and not (resuming and _starts_at(response, have) and _same(response, validator)):
                self._start_again(response)
            self.suggested_name = _suggested_name(response) or self.suggested_name
            if not continues:
                have = 0
                self._partial.restart(_validator(response), _announced(response))
            self._check_size(have + (_announced(response) or 0), final=_announced(response) is not None)
            self._receive(response, have)
        self._check_size(self._partial.size(), final=True)
        self._check_digest(resumed=continues)

    def _receive(self, response: httpx.Response, have: int) -> None:
        # Starts after the wait for the store, which does not count as slow transfer.
        until = time.monotonic() + self._within_s
        for block in response.iter_raw():
            self._partial.append(block)
            have += len(block)
            self._check_size(have, final=False)
            if time.monotonic() > until:
                slow = TransferError(
                    f"{shown(self._url)} is too slow: {have} bytes came in all the time there was."
                )
                slow.is_passing = True
                raise slow
            if self._progress is not None:
                self._progress(have)

    def _ensure_success(self, response: httpx.Response) -> None:
        if response.is_success:
            self._is_named = "etag" in response.headers
            if self._waits_for_store and "html" in response.headers.get("content-type", "").lower():
                raise _passing(
                    TransferError(
                        f"{shown(self._url)} answered with a page: what answers is not a store just now."
                    )
                )
            return
        failure = refusal(self._url, response)
        if (
            response.status_code == 403
            and self._refresh_url is not None
            and isinstance(failure, TransferError)
        ):
            self._url = self._refresh_url()
            check_url(self._url)
            raise Transient(failure)
        if self._waits_for_store and isinstance(failure, TransferError) and may_pass(response.status_code):
            raise _passing(failure)
        raise failure

    def _start_again(self, response: httpx.Response) -> None:
        self._partial.restart(None, None)
        raise Transient(
            TransferError(
                f"{shown(self._url)} cannot go on where it broke off (HTTP {response.status_code})."
            )
        )

    def _check_size(self, size: int, *, final: bool) -> None:
        expected = self._expected_size
        if (
            self._waits_for_store
            and final
            and not self._is_named
            and size < (1 if expected is None else expected)
        ):
            self._partial.restart(None, None)
            raise _passing(
                TransferError(
                    f"{shown(self._url)} answered with {size} bytes and no ETag: what answers is not a store just now."
                )
            )
        if expected is None and self._largest_size is not None and size > self._largest_size:
            self._partial.restart(None, None)
            raise TransferError(f"{shown(self._url)} has more than {self._largest_size} bytes.")
        if expected is None or size == expected or (size < expected and not final):
            return
        self._partial.restart(None, None)
        raise TransferError(
            f"{shown(self._url)} has {size if final else f'more than {expected}'} bytes instead of {expected}.",
            details={"expected_size": expected},
            hint="nothing was written; run the command again",
        )

    def _check_digest(self, *, resumed: bool) -> None:
        if self._expected_sha256 is None:
            return
        found = self._partial.digest()
        if found == self._expected_sha256.lower():
            return
        self._partial.restart(None, None)
        error = TransferError(
            f"{shown(self._url)} has other bytes than announced (SHA-256 {found}, not {self._expected_sha256}).",
            details={"expected_sha256": self._expected_sha256, "sha256": found},
            hint="nothing was written; run the command again",
        )
        raise Transient(error) if resumed else error


def _passing(error: TransferError) -> Transient:
    error.is_passing, error.hint = True, None
    return Transient(error)


def _announced(response: httpx.Response) -> int | None:
    value = response.headers.get("content-length", "")
    return int(value) if value.isdecimal() and value.isascii() else None


def _validator(response: httpx.Response) -> str | None:
    etag: str = response.headers.get("etag", "")
    if etag and not etag.startswith("W/"):
        return etag
    modified: str = response.headers.get("last-modified", "")
    return modified or None


def _starts_at(response: httpx.Response, offset: int) -> bool:
    match = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    return match is not None and int(match[1]) == offset


def _same(response: httpx.Response, validator: str | None) -> bool:
    etag = response.headers.get("etag")
    return etag is None or validator is None or not validator.startswith('"') or etag == validator


def _suggested_name(response: httpx.Response) -> str | None:
    header = response.headers.get("content-disposition")
    if not header:
        return None
    message = Message()
    message["content-disposition"] = header
    name = message.get_filename()
    # A path in the name would change the directory.
    return name if name and name not in (".", "..") and not re.search(r"[/\\\x00-\x1f\x7f]", name) else None

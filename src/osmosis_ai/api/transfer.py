"""Transfers to and from signed URLs: resumable, and complete or absent.

The URL itself grants access, so it is never shown or logged.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from email.message import Message
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from osmosis_ai._version import __version__
from osmosis_ai.api.connections import CONNECT_TIMEOUT_S, Transient, Waits, open_http, reason
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.datasets import CompletedPart, UploadInstructions
from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.api.upload_records import UnfinishedUpload
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import sync_directory, write_json
from osmosis_ai.retry_after import retry_after_s

Progress = Callable[[int], None]
_DOWNLOAD_WAITS = Waits((0.5, 1.0))
_UPLOAD_WAITS = Waits((1.0, 2.0, 4.0, 8.0))
SIMPLE_TIMEOUT_S = 600.0
PART_TIMEOUT_S = 300.0
_BLOCK_BYTES = 256 * 1024
# Smaller files are downloaded again, which costs less than recording their progress.
_WORTH_RESUMING_BYTES = 1024 * 1024
TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})
_MOST_HOPS = 20
_SILENCE_S = 60.0
_unlogged: contextvars.ContextVar[bool] = contextvars.ContextVar("unlogged", default=False)


class TransferError(PlatformError):
    """A transfer failed; ``status`` is the store's, if it answered."""

    is_passing = False


# httpx logs every URL it requests, and these URLs grant access.
for _name in ("httpx", "httpcore.http11"):
    logging.getLogger(_name).addFilter(lambda _record: not _unlogged.get())


class BlobClient:
    """Connections to blob stores; thread-safe."""

    def __init__(self, *, transport: httpx.BaseTransport | None = None) -> None:
        self._transport = transport
        self._clients: dict[tuple[str, bool], httpx.Client] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> BlobClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def put(
        self,
        url: str,
        content: Callable[[], Iterator[bytes]],
        *,
        size: int,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> httpx.Headers:
        """Send ``size`` bytes and return the headers of the reply."""
        client = self._client_for(url)
        own = {name: value for name, value in headers.items() if name.lower() not in _FRAMING}
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        with self._speaking(url):
            request = client.build_request(
                "PUT", url, content=content(), headers={**own, "Content-Length": str(size)}, timeout=timeout
            )
            response = client.send(request)
            if response.is_redirect:
                raise TransferError(f"Upload was redirected by {shown(url)}.", status=response.status_code)
            if not response.is_success:
                raise refusal(url, response)
            return response.headers

    @contextlib.contextmanager
    def get(self, url: str, *, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Open a download and yield the unread reply, whatever its status."""
        with self._speaking(url), contextlib.ExitStack() as stack:
            for _ in range(_MOST_HOPS + 1):
                client = self._client_for(url)
                timeout = httpx.Timeout(_SILENCE_S, connect=CONNECT_TIMEOUT_S)
                response = stack.enter_context(
                    client.stream("GET", url, headers=dict(headers), timeout=timeout)
                )
                if response.next_request is None:
                    yield response
                    return
                url = str(response.next_request.url)
                response.close()
            raise TransferError(f"Download is redirected endlessly: {shown(url)}.")

    def _client_for(self, url: str) -> httpx.Client:
        check_url(url)
        parts = urlsplit(url)
        # `open_http` depends on this: the verification of the host, and whether a proxy is used.
        kind = (parts.scheme, is_loopback(parts.hostname))
        with self._opening:
            if kind not in self._clients:
                self._clients[kind] = open_http(
                    url,
                    headers={"User-Agent": f"osmosis-cli/{__version__}"},
                    timeout_s=_SILENCE_S,
                    transport=self._transport,
                )
            return self._clients[kind]

    @contextlib.contextmanager
    def _speaking(self, url: str) -> Iterator[None]:
        """Keep the exchange out of the log, and mark a broken one as retryable."""
        token = _unlogged.set(True)
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as error:
            broken = TransferError(f"Connection to {shown(url)} failed: {reason(error)}.")
            broken.is_passing = True
            raise Transient(broken) from None
        except httpx.InvalidURL:
            raise TransferError("Transfer URL from the platform is invalid.") from None
        finally:
            _unlogged.reset(token)


_FRAMING = frozenset({"content-length", "transfer-encoding", "host", "connection"})


def check_url(url: str) -> None:
    """Refuse a URL that would send the bytes unencrypted."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise TransferError("Transfer URL from the platform is invalid.") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise TransferError(
            f"Transfer URL is not HTTPS: {shown(url)}.",
            hint="a self-hosted platform needs a TLS proxy to be used from other machines",
        )


def shown(url: str) -> str:
    """Return the part of a signed URL that may be shown: its host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "<redacted URL>"
    where = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    return f"{where}/<redacted URL>" if host else "<redacted URL>"


def may_pass(status: int | None) -> bool:
    """Tell whether a failed request may succeed later: signed URLs can be renewed, and full disks can be cleared."""
    return status is not None and (status == 403 or status >= 500)


def refusal(url: str, response: httpx.Response) -> Exception:
    status = response.status_code
    hint = None
    if status in (401, 403, 404, 410):
        hint = "the URL may have expired; run the command again"
    elif status == 413:
        hint = "the file is too large for the store"
    elif status == 507:
        hint = "the platform's disk is full or failing, or a quota is used up; nothing was stored"
    error = TransferError(
        f"{shown(url)} returned HTTP {status}.", status=status, details={"status_code": status}, hint=hint
    )
    if status in TRANSIENT_STATUSES:
        error.is_passing = True
        return Transient(error, retry_after_s=retry_after_s(response.headers))
    return error


def download(
    url: str,
    target: Path,
    *,
    expected_size: int | None = None,
    expected_sha256: str | None = None,
    progress: Progress | None = None,
    refresh_url: Callable[[], str] | None = None,
    waits: Waits = _DOWNLOAD_WAITS,
    store_within_s: float | None = None,
    client: BlobClient | None = None,
) -> str | None:
    """Download a file, or the rest of it, and return the name that the store suggests.

    An existing ``target`` is replaced atomically.

    Args:
        refresh_url: returns a new URL when the store refuses the old one.
        store_within_s: time limit for the bytes, in seconds. With it, ``waits`` are also for a store that is not there.
    """
    check_url(url)
    with ExitStack() as stack:
        blobs = client if client is not None else stack.enter_context(BlobClient())
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = stack.enter_context(_Partial(target))
            transfer = _Transfer(
                blobs, url, partial, expected_size, expected_sha256, progress, refresh_url, store_within_s
            )
            waits.run(transfer.attempt)
            partial.finish()
        except OSError as error:
            raise OsmosisError(
                f"File cannot be written: {target} ({error.strerror or error}).",
                hint="the downloaded part is kept; run the command again",
            ) from None
        return transfer.suggested_name


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
            raise ConflictError(f"File is being downloaded by another command: {target}.") from None
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
        # Only large files are flushed to disk; small ones are cheap to download again.
        large = self.size() >= _WORTH_RESUMING_BYTES
        if large:
            os.fsync(self.handle.fileno())
        self._path.replace(self._target)
        self._note.unlink(missing_ok=True)
        self._finished = True
        if large:
            sync_directory(self._target.parent)


@dataclass
class _Transfer:
    """The attempts of one download."""

    blobs: BlobClient
    url: str
    partial: _Partial
    expected_size: int | None
    expected_sha256: str | None
    progress: Progress | None
    refresh_url: Callable[[], str] | None
    store_within_s: float | None
    is_named: bool = False
    suggested_name: str | None = None

    def attempt(self) -> None:
        """Fetch the missing bytes and verify the file."""
        have, validator = self.partial.size(), self.partial.validator()
        resuming = have > 0 and validator is not None
        headers = {"Range": f"bytes={have}-", "If-Range": validator} if resuming and validator else {}
        with self.blobs.get(self.url, headers=headers) as response:
            if resuming and response.status_code == 416:
                self._start_again(response)
            self._ensure_success(response)
            continues = response.status_code == 206
            if continues and not (resuming and _continues(response, have, validator)):
                self._start_again(response)
            self.suggested_name = _suggested_name(response) or self.suggested_name
            if not continues:
                have = 0
                self.partial.restart(_validator(response), _announced(response))
            self._check_size(have + (_announced(response) or 0), final=_announced(response) is not None)
            self._receive(response, have)
        self._check_size(self.partial.size(), final=True)
        self._check_digest(resumed=continues)

    def _receive(self, response: httpx.Response, have: int) -> None:
        # Starts after the wait for the store, which does not count as slow transfer.
        until = math.inf if self.store_within_s is None else time.monotonic() + self.store_within_s
        for block in response.iter_raw():
            self.partial.append(block)
            have += len(block)
            self._check_size(have, final=False)
            if time.monotonic() > until:
                slow = TransferError(f"{shown(self.url)} is too slow: {have} bytes within the time limit.")
                slow.is_passing = True
                raise slow
            if self.progress is not None:
                self.progress(have)

    def _ensure_success(self, response: httpx.Response) -> None:
        if response.is_success:
            self.is_named = "etag" in response.headers
            if self.store_within_s is not None and "html" in response.headers.get("content-type", "").lower():
                raise _passing(TransferError(f"{shown(self.url)} returned a web page instead of a file."))
            return
        failure = refusal(self.url, response)
        if isinstance(failure, TransferError):
            if response.status_code == 403 and self.refresh_url is not None:
                self.url = self.refresh_url()
                raise Transient(failure)
            if self.store_within_s is not None and may_pass(response.status_code):
                raise _passing(failure)
        raise failure

    def _start_again(self, response: httpx.Response) -> None:
        self.partial.restart(None, None)
        raise Transient(
            TransferError(f"{shown(self.url)} cannot resume the download (HTTP {response.status_code}).")
        )

    def _check_size(self, size: int, *, final: bool) -> None:
        expected = self.expected_size
        if (
            self.store_within_s is not None
            and final
            and not self.is_named
            and size < (1 if expected is None else expected)
        ):
            self.partial.restart(None, None)
            raise _passing(TransferError(f"{shown(self.url)} returned {size} bytes without an ETag."))
        if expected is None or size == expected or (size < expected and not final):
            return
        self.partial.restart(None, None)
        raise TransferError(
            f"{shown(self.url)} has {size if final else f'more than {expected}'} bytes instead of {expected}.",
            details={"expected_size": expected},
            hint="nothing was written; run the command again",
        )

    def _check_digest(self, *, resumed: bool) -> None:
        if self.expected_sha256 is None:
            return
        found = self.partial.digest()
        if found == self.expected_sha256.lower():
            return
        self.partial.restart(None, None)
        error = TransferError(
            f"Checksum of {shown(self.url)} is wrong (SHA-256 {found}, expected {self.expected_sha256}).",
            details={"expected_sha256": self.expected_sha256, "sha256": found},
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


def _continues(response: httpx.Response, offset: int, validator: str | None) -> bool:
    """Tell whether the reply has the bytes from ``offset`` on of the version with this ``validator``."""
    match = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    etag = response.headers.get("etag")
    is_same = etag is None or validator is None or not validator.startswith('"') or etag == validator
    return match is not None and int(match[1]) == offset and is_same


def _suggested_name(response: httpx.Response) -> str | None:
    header = response.headers.get("content-disposition")
    if not header:
        return None
    message = Message()
    message["content-disposition"] = header
    name = message.get_filename()
    # A path in the name would change the directory.
    return name if name and name not in (".", "..") and not re.search(r"[/\\\x00-\x1f\x7f]", name) else None


@dataclass(frozen=True)
class _Part:
    number: int
    url: str = field(repr=False)
    offset: int
    size: int


def upload_file(
    path: Path,
    instructions: UploadInstructions,
    *,
    progress: Progress | None = None,
    record: UnfinishedUpload | None = None,
    client: BlobClient | None = None,
) -> list[CompletedPart] | None:
    """Upload a file as the platform instructs, and return its parts; None for an upload in one request.

    Parts that ``record`` has are not sent again.
    """
    with ExitStack() as stack:
        blobs = client if client is not None else stack.enter_context(BlobClient())
        source = stack.enter_context(_Source(path, progress))
        if instructions.method == "simple":
            if instructions.presigned_url is None:
                raise _nonsense("`presigned_url` is missing")
            check_url(instructions.presigned_url)
            whole = _Part(1, instructions.presigned_url, 0, source.size)
            _put(blobs, source, whole, instructions.upload_headers, SIMPLE_TIMEOUT_S, done=0)
            return None
        if instructions.method != "multipart":
            raise _nonsense(f"there is no upload method '{instructions.method}'")
        parts = _plan(instructions, source.size)
        etags = {part.PartNumber: part.ETag for part in instructions.received_parts}
        etags |= record.acknowledged if record is not None else {}
        done = sum(part.size for part in parts if part.number in etags)
        if progress is not None:
            progress(done)
        for part in parts:
            if part.number in etags:
                continue
            headers = _put(blobs, source, part, {}, PART_TIMEOUT_S, done=done)
            etag: str = headers.get("etag", "").strip().strip('"')
            if not etag:
                raise TransferError(f"Store returned no ETag for part {part.number}.")
            etags[part.number] = etag
            if record is not None:
                # The upload works without its record, so a disk error does not stop it.
                with suppress(OSError):
                    record.acknowledge(part.number, etag)
            done += part.size
        return [CompletedPart(PartNumber=part.number, ETag=etags[part.number]) for part in parts]


def _put(
    blobs: BlobClient,
    source: _Source,
    part: _Part,
    headers: Mapping[str, str],
    timeout_s: float,
    *,
    done: int,
) -> httpx.Headers:
    replied = _UPLOAD_WAITS.run(
        lambda: blobs.put(
            part.url,
            lambda: source.read(part.offset, part.size, done=done),
            size=part.size,
            headers=headers,
            timeout_s=timeout_s,
        )
    )
    source.require_unchanged()
    return replied


def _plan(instructions: UploadInstructions, size: int) -> list[_Part]:
    part_size, total = instructions.part_size, instructions.total_parts
    if part_size is None or total is None:
        raise _nonsense("`part_size` and `total_parts` are missing")
    if part_size < 1 or not part_size * (total - 1) < size <= part_size * total:
        raise _nonsense(f"{total} parts of {part_size} bytes are not the {size} bytes of the file")
    given = sorted(instructions.presigned_urls, key=lambda part: part.part_number)
    if [part.part_number for part in given] != list(range(1, total + 1)):
        raise _nonsense(f"there is not one URL for each of the parts 1 to {total}")
    parts = []
    for part in given:
        offset = (part.part_number - 1) * part_size
        length = min(part_size, size - offset)
        if part.size is not None and part.size != length:
            raise _nonsense(f"part {part.part_number} has {length} bytes, not {part.size}")
        check_url(part.presigned_url)
        parts.append(_Part(part.part_number, part.presigned_url, offset, length))
    return parts


def _nonsense(what: str) -> TransferError:
    return TransferError(f"Upload instructions of the platform are invalid: {what}.")


class _Source:
    """The file to send; it can be read repeatedly, and changes to it are detected."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self._path = path
        self._progress = progress
        try:
            self._handle = path.open("rb")
        except OSError as error:
            raise OsmosisError(f"File cannot be read: {path} ({error.strerror}).") from None
        self._state = self._stat()
        self.size = self._state[0]

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def read(self, offset: int, size: int, *, done: int) -> Iterator[bytes]:
        """Yield ``size`` bytes from ``offset``; the progress counts from ``done``."""
        self._handle.seek(offset)
        left = size
        while left:
            block = self._handle.read(min(left, _BLOCK_BYTES))
            if not block:
                raise self._changed()
            yield block
            left -= len(block)
            if self._progress is not None:
                self._progress(done + size - left)

    def require_unchanged(self) -> None:
        if self._stat() != self._state:
            raise self._changed()

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._handle.fileno())
        return found.st_size, found.st_mtime_ns

    def _changed(self) -> OsmosisError:
        return OsmosisError(f"File changed during the upload: {self._path}.", hint="upload it again")

"""The worker protocol's client: four calls over HTTP, on a port or a Unix socket, and bytes by signed URL.

Signed URLs authorize themselves and never receive a token. All calls are idempotent, so they are retried.
"""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from osmosis_ai.api.client import decode
from osmosis_ai.api.connections import (
    Transient,
    Waits,
    connection_hint,
    longest_transfer_s,
    open_http,
    reason,
)
from osmosis_ai.api.http_errors import (
    PlatformError,
    Reply,
    ReplyRedactor,
    RequestInfo,
    UnreadableReply,
    http_error,
)
from osmosis_ai.api.models import workers as wire
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.platform_url import ensure_secure, is_loopback
from osmosis_ai.api.transfer import TRANSIENT_STATUSES, BlobClient, TransferError, may_pass
from osmosis_ai.api.transfer import download as download_file
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.platform.blobs.store import measure
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.processes.addresses import socket_path

M = TypeVar("M", bound=WireModel)
_TIMEOUT_S, _SHORTEST_S = 20.0, 1.0
_LARGEST_REPLY_BYTES = 64 << 20
_LONGEST_REPLY_S = 120.0
_WORTH_PACKING_BYTES = 2048
_PACKING_LEVEL = 1
_WAITS = Waits((0.1, 0.4, 1.0))
_BLOB_WAITS = Waits((0.5, 1.0, 2.0, 4.0))
_BLOCK_BYTES = 1 << 18
_UPLOAD_THREADS = 4
# The bucket or upload is gone, or another server answers: nothing is wrong with the bytes.
_NO_SUCH_PLACE = frozenset({404, 405, 410})
# 501 comes from a server that accepts no POST, which is not a platform.
_BUSY = frozenset({408, 429, *range(500, 600)}) - {501}


class PlatformUnreachableError(OsmosisError):
    """The platform is unreachable or returned an invalid response; the same call may succeed later."""

    default_code = "NETWORK"
    is_infrastructure = True


class StoreAwayError(PlatformUnreachableError):
    """The platform's store is unavailable. Workers wait for it, however long that takes."""


class CredentialRefusedError(OsmosisError):
    """The platform refuses the token, or this release."""

    default_code = "AUTH_REQUIRED"


class NoPlatformError(OsmosisError):
    """The server at the address is not a platform that accepts workers."""

    default_code = "PLATFORM_ERROR"


class StoredBytesError(OsmosisError):
    """The store does not have the bytes that the platform has named."""

    default_code = "PLATFORM_ERROR"
    is_infrastructure = True


@dataclass(frozen=True, slots=True)
class OutgoingBlob:
    """Bytes to upload under a name within the run; ``content`` is read from its beginning."""

    name: str
    content: IO[bytes]
    size: int
    sha256: str

    @classmethod
    def of(cls, name: str, content: IO[bytes]) -> OutgoingBlob:
        """Return everything that ``content`` has, measured."""
        content.seek(0)
        info = measure(content)
        return cls(name, content, info.size, info.sha256)


class WorkerClient:
    """A platform; thread-safe.

    Args:
        address: Its URL, or the address of a Unix socket.
        token: A worker token or ticket for claims; the other calls carry the token of their lease.
    """

    def __init__(self, address: str, token: str = "") -> None:
        path = socket_path(address)
        self._is_local = path is not None
        self._base = "http://localhost" if path is not None else address.rstrip("/")
        ensure_secure(self._base)
        self._token = SecretStr(token)
        self._was_here = False
        self._http = open_http(
            self._base,
            headers={"Accept": "application/json"},
            timeout_s=_TIMEOUT_S,
            transport=httpx.HTTPTransport(uds=path) if path is not None else None,
        )
        # The platform's own bytes come from its address, others from the network.
        self._own = BlobClient(transport=httpx.HTTPTransport(uds=path) if path is not None else None)
        self._foreign = BlobClient()
        self._uploads = ThreadPoolExecutor(_UPLOAD_THREADS, thread_name_prefix="uploads")

    def close(self) -> None:
        self._uploads.shutdown(wait=False, cancel_futures=True)
        self._http.close()
        self._own.close()
        self._foreign.close()

    def claim(self, request: wire.ClaimRequest) -> wire.ClaimReply:
        try:
            content = self._ask("POST", wire.CLAIM, self._token, _WAITS, request)
        except _ForeignRefusal:
            raise self._no_platform() from None
        except PlatformError as error:
            # A platform has the route, accepts POST there and does not redirect.
            if error.status in (404, 405, 501, *range(300, 400)):
                raise self._no_platform() from None
            raise
        try:
            found = decode(content, wire.ClaimReply, "the claim")
        except UnreadableReply:
            if b'"lease"' in content:
                raise
            raise self._no_platform() from None
        if "next_poll_s" not in found.model_fields_set and found.assignment is None and not request.leaves:
            raise self._no_platform()
        self._was_here = True
        return found

    def sync(
        self, shard_id: str, lease: SecretStr, request: wire.SyncRequest, *, timeout_s: float = _TIMEOUT_S
    ) -> wire.SyncReply:
        """Keep a lease and report what is new; tried once."""
        content = self._ask("POST", wire.shard_route(shard_id, "sync"), lease, Waits(), request, timeout_s)
        return _decoded(content, wire.SyncReply, "the sync")

    def end(
        self,
        shard_id: str,
        lease: SecretStr,
        request: wire.FinishRequest | wire.ReleaseRequest,
        *,
        lasting_s: float,
    ) -> wire.ShardClosed:
        """Finish or release a shard; retried for ``lasting_s`` seconds while the platform is unreachable."""
        route = wire.shard_route(shard_id, "finish" if isinstance(request, wire.FinishRequest) else "release")
        waits, timeout_s = _WAITS.lasting(lasting_s), min(_TIMEOUT_S, max(_SHORTEST_S, lasting_s / 6))
        content = self._ask("POST", route, lease, waits, request, timeout_s)
        return _decoded(content, wire.ShardClosed, "the end of the shard")

    def journal(self, shard_id: str, lease: SecretStr, target: Path, *, most_bytes: int) -> None:
        """Download the stored journal of a shard to a file."""
        route = wire.shard_route(shard_id, "journal")
        content = self._ask("GET", route, lease, _BLOB_WAITS, most_bytes=most_bytes)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content)

    def fetch(self, download: wire.InputDownload, target: Path, *, lasting_s: float) -> None:
        """Download an input to a file atomically, and verify its digest."""
        url, blobs = self._place(download.url)
        try:
            with _as_unavailable():
                download_file(
                    url,
                    target,
                    expected_size=download.size,
                    expected_sha256=download.sha256,
                    waits=_BLOB_WAITS.lasting(lasting_s),
                    store_within_s=longest_transfer_s(download.size),
                    client=blobs,
                )
        except TransferError as error:
            raise StoredBytesError(error.message) from None

    def send_all(
        self, blobs: Sequence[tuple[OutgoingBlob, wire.UploadGrant]], *, lasting_s: float
    ) -> list[wire.SentUpload]:
        """Upload blobs where they were granted, several at a time."""
        return list(self._uploads.map(lambda pair: self._send(pair[0], pair[1], lasting_s), blobs))

    def _send(self, blob: OutgoingBlob, grant: wire.UploadGrant, lasting_s: float) -> wire.SentUpload:
        etags: list[str] = []
        # Without a URL, the platform has the bytes.
        for number, url in enumerate([grant.url, *grant.further_urls] if grant.url else []):
            if (received := grant.received.get(number + 1)) is not None:
                etags.append(received)
                continue
            offset = number * (grant.part_size or 0)
            size = min(grant.part_size or blob.size, blob.size - offset)
            etags.append(self._put(url, blob.content, offset, size, lasting_s))
        first, *further = etags or [""]
        return wire.SentUpload(name=blob.name, id=grant.id, etag=first, further_etags=further)

    def _put(self, url: str, content: IO[bytes], offset: int, size: int, lasting_s: float) -> str:
        place, blobs = self._place(url)

        def stream() -> Iterator[bytes]:
            content.seek(offset)
            left = size
            while left and (block := content.read(min(left, _BLOCK_BYTES))):
                left -= len(block)
                yield block

        def attempt() -> str:
            headers = blobs.put(place, stream, size=size, headers={}, timeout_s=max(_TIMEOUT_S, lasting_s))
            if not (etag := str(headers.get("etag", "")).strip('"')):
                raise Transient(StoreAwayError("the file store returned no ETag for an upload."))
            return etag

        with _as_unavailable(_NO_SUCH_PLACE):
            return _BLOB_WAITS.lasting(lasting_s).run(attempt)

    def _place(self, url: str) -> tuple[str, BlobClient]:
        if urlsplit(url).scheme:
            if is_loopback(urlsplit(url).hostname) and not is_loopback(urlsplit(self._base).hostname):
                raise StoredBytesError("the platform named an address of this machine as its store's.")
            return url, self._foreign
        return f"{self._base}/{url.lstrip('/')}", self._own

    def _ask(
        self,
        method: str,
        route: str,
        token: SecretStr,
        waits: Waits,
        request: WireModel | None = None,
        timeout_s: float = _TIMEOUT_S,
        *,
        most_bytes: int | None = None,
    ) -> bytes:
        """Return the body of a reply; any other reply than a success is an error."""
        headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
        body = b""
        if request is not None:
            body = request.model_dump_json(by_alias=True, exclude_unset=True).encode()
            headers["Content-Type"] = "application/json"
        if len(body) > _WORTH_PACKING_BYTES and not self._is_local:
            body, headers["Content-Encoding"] = gzip.compress(body, _PACKING_LEVEL, mtime=0), "gzip"

        def attempt() -> bytes:
            asked: dict[str, Any] = {"content": body, "headers": headers, "timeout": httpx.Timeout(timeout_s)}
            try:
                with self._http.stream(method, f"{self._base}{route}", **asked) as reply:
                    # A refusal may be longer than what was asked for.
                    most = _LARGEST_REPLY_BYTES if most_bytes is None or not reply.is_success else most_bytes
                    content, began = bytearray(), time.monotonic()
                    for block in reply.iter_bytes():
                        content += block
                        if len(content) > most or time.monotonic() - began > _LONGEST_REPLY_S:
                            raise PlatformUnreachableError("the platform's reply is too long.")
            except (httpx.HTTPError, httpx.StreamError) as error:
                message = f"the platform is unreachable: {reason(error)}."
                hint = connection_hint(self._base, error)
                raise Transient(PlatformUnreachableError(message, hint=hint)) from None
            if reply.is_success:
                return bytes(content)
            raise self._refusal(Reply(reply.status_code, reply.headers, bytes(content)), token)

        return waits.run(attempt)

    def _no_platform(self) -> OsmosisError:
        if self._was_here:
            return PlatformUnreachableError("the server at the platform's address is not a platform now.")
        return NoPlatformError(
            "no platform accepts workers at this address.",
            hint="give --url the address of the platform's pages, without a proxy that asks for a login",
        )

    def _refusal(self, reply: Reply, token: SecretStr) -> Exception:
        redactor = ReplyRedactor([token.get_secret_value()])
        error = http_error(reply, RequestInfo(self._base, "given"), redactor)
        if error.platform_code == wire.JOURNAL_OFFSET:
            details = error.body.get("details")
            stored = details.get("bytes") if isinstance(details, dict) else None
            return JournalOffsetError(stored if isinstance(stored, int) and stored >= 0 else 0)
        if error.platform_code in _ERRORS:
            return _ERRORS[error.platform_code](error.message)
        if reply.status in (401, 403, 426):
            refused = CredentialRefusedError if error.body else _ForeignRefusal
            return refused(error.message, hint=error.hint)
        if reply.status in _BUSY:
            away = StoreAwayError if error.body.get(wire.STORE_AWAY) is True else PlatformUnreachableError
            unreachable = away(error.message, hint=error.hint)
            return Transient(unreachable) if reply.status in (429, 502, 503, 504) else unreachable
        return error


class _ForeignRefusal(CredentialRefusedError):
    """A refusal by a proxy or another server."""


_ERRORS: Mapping[str | None, type[OsmosisError]] = {
    wire.LEASE_LOST: LeaseLostError,
    wire.UPLOAD_GONE: UploadGoneError,
    wire.UPLOAD_LIMIT: UploadLimitError,
}


def _decoded(content: bytes, model: type[M], call: str) -> M:
    try:
        return decode(content, model, call)
    except UnreadableReply as error:
        raise PlatformUnreachableError(error.message, hint=error.hint) from None


@contextlib.contextmanager
def _as_unavailable(passing: Collection[int] = ()) -> Iterator[None]:
    """Turn transfers that failed on the way to the store into errors that fail no run."""
    try:
        yield
    except TransferError as error:
        if error.is_passing and (error.status is None or error.status in TRANSIENT_STATUSES):
            raise StoreAwayError(error.message, hint=error.hint) from None
        if error.is_passing or may_pass(error.status) or error.status in passing:
            raise PlatformUnreachableError(error.message) from None
        raise

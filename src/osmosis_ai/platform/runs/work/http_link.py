"""Worker client for the platform, over HTTP on a port or Unix socket, authenticated by the worker's credential.

Signed URLs authorize themselves and never receive the credential. All exchanges of the protocol are idempotent and are
retried.
"""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from osmosis_ai.api.bodies import decode
from osmosis_ai.api.connections import connection_hint, open_http, reason
from osmosis_ai.api.http_errors import PlatformError, Reply, RequestInfo, UnreadableReply, http_error
from osmosis_ai.api.platform_url import ensure_secure
from osmosis_ai.api.redaction import ReplyRedactor
from osmosis_ai.api.retrying import Transient, Waits, longest_transfer_s
from osmosis_ai.api.transfer.client import TRANSIENT_STATUSES, BlobClient, TransferError, may_pass
from osmosis_ai.api.transfer.download import download as fetch_file
from osmosis_ai.api.wire.base import WireModel
from osmosis_ai.api.wire.workers import (
    CLAIM,
    JOURNAL_OFFSET,
    LEASE_LOST,
    PROTOCOL_HEADER,
    STORE_AWAY,
    UPLOAD_GONE,
    UPLOAD_LIMIT,
    Assignment,
    EndRequest,
    InputDownload,
    JournalSegment,
    ReleaseRequest,
    RunClosed,
    SyncReply,
    SyncRequest,
    UploadGrant,
    WorkerOffer,
    run_route,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    NoPlatformError,
    PlatformUnreachableError,
    StoreAwayError,
    held_at_most_s,
)
from osmosis_ai.processes.addresses import socket_path

M = TypeVar("M", bound=WireModel)
_SILENCE_S = 20.0
"""How long the platform may think, beside what it was asked to wait."""
_SILENCE_OF_LAST_WORD = 1 / 6
"""As a part of a lease: said into a cut of half a lease, the word is said again while some of the lease is left."""
_SHORTEST_SILENCE_S = 1.0
_SILENCE_OF_QUESTION = 1 / 3
"""As a part of a lease: what only asks to keep it is asked after half of it at the latest, and again before it has run out."""
_SHORTEST_OF_QUESTION_S = 1.5
"""Half of the shortest lease: of one so short, what is answered later comes too late anyway."""
_FIRST_TERM_S = 30.0
"""How long a lease lasts, before the platform has said so."""
_LARGEST_REPLY_BYTES = 64 << 20
_LONGEST_REPLY_S = 120.0
_PACKING_ROOM_BYTES = 1 << 16
"""What packing adds at most to lines that do not shrink."""
_WORTH_PACKING_BYTES = 2048
_PACKING_LEVEL = 1
_WAITS = Waits((0.1, 0.4, 1.0))
_ONCE = Waits()
_BLOB_WAITS = Waits((0.5, 1.0, 2.0, 4.0))
_LONGEST_SILENCE_OF_STORE_S = 120.0
_BLOCK_BYTES = 1 << 18
_NO_SUCH_PLACE = frozenset({404, 405, 410})
"""Statuses that say nothing of the bytes that are sent: their bucket or upload is not there, or another server is."""
_OF_UPLOADS: Mapping[str | None, type[ConflictError]] = {
    UPLOAD_GONE: UploadGoneError,
    UPLOAD_LIMIT: UploadLimitError,
}
_BUSY = frozenset({408, 429, *range(500, 600)}) - {501}
"""Statuses that pass; 501 is the word of a server that takes no POST, which is no platform."""


class HttpLink:
    """A platform, spoken to by HTTP; a :class:`~osmosis_ai.platform.runs.work.platform_link.PlatformLink`."""

    def __init__(self, address: str, credential: str) -> None:
        path = socket_path(address)
        transport = httpx.HTTPTransport(uds=path) if path is not None else None
        self._base = "http://localhost" if path is not None else address.rstrip("/")
        ensure_secure(self._base)
        self._credential = SecretStr(credential)
        self._term_s = _FIRST_TERM_S
        self._was_here = False
        self._http = open_http(
            self._base, headers={"Accept": "application/json"}, timeout_s=_SILENCE_S, transport=transport
        )
        # The platform's own bytes come by the same way, others by the network.
        self._own = BlobClient(transport=httpx.HTTPTransport(uds=path) if path is not None else None)
        self._elsewhere = BlobClient()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._own.close()
        self._elsewhere.close()

    def claim(self, offer: WorkerOffer) -> Assignment | None:
        """Ask for a run; None when there is none for this worker."""
        try:
            reply = self._ask(CLAIM, offer, wait_s=offer.wait_s)
        except _ForeignRefusal:
            raise self._no_platform() from None
        is_empty = not reply.content.strip()
        # Other servers say nothing, or answer with a page, with the same status.
        shown = PROTOCOL_HEADER in reply.headers if is_empty else _is_json(reply)
        if not shown:
            raise self._no_platform()
        assignment = None
        if not is_empty:
            assignment = self._assignment(reply.content)
            self._term_s = assignment.lease.term_s
        self._was_here = True
        return assignment

    def _assignment(self, content: bytes) -> Assignment:
        try:
            return decode(content, Assignment, "the claim")
        except UnreadableReply:
            if b'"lease"' in content:
                raise
            raise self._no_platform() from None

    def _no_platform(self) -> OsmosisError:
        """Return what to raise for the answer of another server: where the platform was before, it may be back soon."""
        if self._was_here:
            return PlatformUnreachableError(
                "what answers at the platform's address is not a platform just now."
            )
        return NoPlatformError()

    def sync(self, run_id: str, request: SyncRequest) -> SyncReply:
        """Keep the lease, and hand over what is new."""
        route = run_route(run_id, "sync")
        if request.may_wait:
            # What is asked to keep a lease is of use while there is some of it left to ask again.
            hold_s = held_at_most_s(self._term_s)
            content = self._say(route, request, wait_s=hold_s, silence_s=min(_SILENCE_S, hold_s), waits=_ONCE)
            reply = _read(content, SyncReply, route)
        elif request.model_fields_set <= {"lease"}:
            silence_s = max(_SHORTEST_OF_QUESTION_S, self._term_s * _SILENCE_OF_QUESTION)
            # Twice as long each time: a platform that is slow for everybody is still heard.
            content = self._say(route, request, silence_s=silence_s, growth=2.0)
            reply = _read(content, SyncReply, route)
        else:
            reply = self._exchange(route, request, SyncReply)
        self._term_s = reply.term_s
        return reply

    def end(self, run_id: str, request: EndRequest) -> RunClosed:
        """Give the run its outcome."""
        return self._close(run_route(run_id, "end"), request)

    def release(self, run_id: str, request: ReleaseRequest) -> RunClosed:
        """Let the run go as it is."""
        return self._close(run_route(run_id, "release"), request)

    def leave(self, offer: WorkerOffer) -> None:
        """Say that no more runs are asked for; tried once, and not for long."""
        self._say(
            CLAIM, offer.model_copy(update={"leaves": True}), silence_s=_SHORTEST_SILENCE_S, waits=_ONCE
        )

    def fetch(self, download: InputDownload, target: Path) -> None:
        """Download to a file atomically and verify the digest; compressed journal parts stay compressed."""
        url, blobs = self._place(download.url)
        # Size and digest of a packed part are those of its lines.
        is_packed = isinstance(download, JournalSegment) and download.packed
        try:
            with _told_apart():
                fetch_file(
                    url,
                    target,
                    expected_size=None if is_packed else download.size,
                    expected_sha256=None if is_packed else download.sha256,
                    largest_size=download.size + _PACKING_ROOM_BYTES if is_packed else None,
                    waits=_BLOB_WAITS.lasting(self._term_s),
                    within_s=longest_transfer_s(download.size),
                    waits_for_store=True,
                    client=blobs,
                )
        except TransferError as error:
            raise StoredBytesError(error.message) from None

    def send(self, grant: UploadGrant, content: BinaryIO, size: int) -> str:
        """Send ``size`` bytes from the beginning of ``content``; return the ETag of the acknowledgement."""
        url, blobs = self._place(grant.url)

        def stream() -> Iterator[bytes]:
            content.seek(0)
            left = size
            while left and (block := content.read(min(left, _BLOCK_BYTES))):
                left -= len(block)
                yield block

        def attempt() -> str:
            headers = blobs.put(url, stream, size=size, headers={}, timeout_s=self._silence_of_store_s())
            if not (etag := str(headers.get("etag", "")).strip('"')):
                raise Transient(StoreAwayError("what takes bytes is not a store just now: it names no ETag."))
            return etag

        # Whatever is sent, the run is not to blame for a place that is not there, and another may be given.
        with _told_apart(_NO_SUCH_PLACE):
            return _BLOB_WAITS.lasting(self._term_s).run(attempt)

    def _silence_of_store_s(self) -> float:
        """Return the allowed silence during uploads to a store: one lease term."""
        return min(_LONGEST_SILENCE_OF_STORE_S, max(_SILENCE_S, self._term_s))

    def _place(self, url: str) -> tuple[str, BlobClient]:
        if urlsplit(url).scheme:
            return url, self._elsewhere
        return f"{self._base}/{url.lstrip('/')}", self._own

    def _close(self, route: str, request: WireModel) -> RunClosed:
        """Say the last word about a run, for as long as a lease: unheard, all of it would be another worker's to do."""
        silence_s = min(_SILENCE_S, max(_SHORTEST_SILENCE_S, self._term_s * _SILENCE_OF_LAST_WORD))
        waits = _WAITS.lasting(self._term_s)
        return _read(self._say(route, request, silence_s=silence_s, waits=waits), RunClosed, route)

    def _exchange(self, route: str, request: WireModel, model: type[M]) -> M:
        return _read(self._say(route, request), model, route)

    def _say(self, route: str, request: WireModel, **asked: Any) -> bytes:
        return self._ask(route, request, **asked).content

    def _ask(
        self,
        route: str,
        request: WireModel,
        *,
        wait_s: float = 0.0,
        silence_s: float = _SILENCE_S,
        growth: float = 1.0,
        waits: Waits | None = None,
    ) -> Reply:
        """Ask until there is an answer; each time ``growth`` times as long as before, and for :data:`_SILENCE_S` at most."""
        body = request.model_dump_json(by_alias=True, exclude_unset=True).encode()
        headers = {
            "Authorization": f"Bearer {self._credential.get_secret_value()}",
            "Content-Type": "application/json",
        }
        if len(body) > _WORTH_PACKING_BYTES:
            body, headers["Content-Encoding"] = gzip.compress(body, _PACKING_LEVEL, mtime=0), "gzip"
        limits_s = (min(_SILENCE_S, silence_s * growth**tries) for tries in count())

        def attempt() -> Reply:
            limit_s = next(limits_s)
            timeout = httpx.Timeout(limit_s + wait_s, connect=limit_s)
            asked: dict[str, Any] = {"content": body, "headers": headers, "timeout": timeout}
            try:
                with self._http.stream("POST", f"{self._base}{route}", **asked) as reply:
                    said = Reply(reply.status_code, reply.headers, self._content(reply))
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise Transient(self._unreachable(error)) from None
            if reply.is_success:
                return said
            raise self._refusal(said)

        return (waits or _WAITS).run(attempt)

    def _unreachable(self, error: Exception) -> OsmosisError:
        return PlatformUnreachableError(
            f"the platform does not answer: {reason(error)}.", hint=connection_hint(self._base, error)
        )

    def _content(self, reply: httpx.Response) -> bytes:
        """Return the body, as long as it ends soon enough."""
        body, began = bytearray(), time.monotonic()
        for block in reply.iter_bytes():
            body += block
            if len(body) > _LARGEST_REPLY_BYTES or time.monotonic() - began > _LONGEST_REPLY_S:
                raise PlatformUnreachableError("the platform answers with more than can be read.")
        return bytes(body)

    def _refusal(self, reply: Reply) -> Exception:
        """Return what to raise for a reply that is no success."""
        error = http_error(
            reply, RequestInfo(self._base, "given"), ReplyRedactor([self._credential.get_secret_value()])
        )
        if error.platform_code == LEASE_LOST:
            return LeaseLostError(error.message)
        if error.platform_code == JOURNAL_OFFSET:
            return JournalOffsetError(_stored_bytes(error))
        if error.platform_code in _OF_UPLOADS:
            return _OF_UPLOADS[error.platform_code](error.message)
        if reply.status in (401, 403, 426):
            kind = CredentialRefusedError if error.body else _ForeignRefusal
            return kind(error.message, hint=error.hint)
        if reply.status in _BUSY:
            away = StoreAwayError if error.body.get(STORE_AWAY) is True else PlatformUnreachableError
            unreachable = away(error.message, hint=error.hint)
            return Transient(unreachable) if reply.status in (429, 502, 503, 504) else unreachable
        return error


class StoredBytesError(OsmosisError):
    """The store has not the bytes that the platform has named, or what answers for it is another for a while."""

    default_code = "PLATFORM_ERROR"
    is_infrastructure = True


class _ForeignRefusal(CredentialRefusedError):
    """It is refused in words that no platform has: those of a proxy, or of another server."""


def _read(content: bytes, model: type[M], route: str) -> M:
    """Return the reply of an exchange about a run; other words come of what stands before the platform, for a while."""
    try:
        return decode(content, model, f"POST {route}")
    except UnreadableReply as error:
        raise PlatformUnreachableError(error.message, hint=error.hint) from None


def _is_json(reply: Reply) -> bool:
    return reply.headers.get("content-type", "").startswith("application/json")


@contextlib.contextmanager
def _told_apart(passing: Collection[int] = ()) -> Iterator[None]:
    """Say of bytes that did not come or go whether that is the way to the store: it fails no run."""
    try:
        yield
    except TransferError as error:
        if error.is_passing and (error.status is None or error.status in TRANSIENT_STATUSES):
            raise StoreAwayError(error.message, hint=error.hint) from None
        if error.is_passing or may_pass(error.status) or error.status in passing:
            raise PlatformUnreachableError(error.message) from None
        raise


def _stored_bytes(error: PlatformError) -> int:
    details = error.body.get("details")
    stored = details.get("bytes") if isinstance(details, dict) else error.body.get("bytes")
    return stored if isinstance(stored, int) and stored >= 0 else 0

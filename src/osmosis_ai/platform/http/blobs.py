"""Bytes by signed URL: the URL is the permission, so no token is asked for and none is taken."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, BinaryIO

import anyio
from fastapi import Depends, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from osmosis_ai.platform.blobs.incoming import BLOCK_BYTES, IncomingFile
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.signing import (
    BLOBS_PATH,
    OCTET_STREAM,
    DownloadGrant,
    PartGrant,
    content_disposition,
)
from osmosis_ai.platform.blobs.store import (
    BlobError,
    BlobNotFound,
    BlobStoreError,
    BodyTooLarge,
    BodyTooSmall,
    DigestMismatch,
    Part,
    UploadNotFound,
    UrlRefused,
)
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.services import PlatformServices

router = api_router(BLOBS_PATH)

_SILENCE_S = 120.0
"""How long a client may pause in the middle of a body."""

_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{0,19})|-(\d{1,19}))")
_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):")
# Whatever a user uploaded, no browser may run it as a page of this platform.
_INERT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
}


async def _local_store(services: Services) -> LocalBlobStore:
    if isinstance(services.blobs, LocalBlobStore):
        return services.blobs
    raise _elsewhere()


def _elsewhere() -> ApiError:
    return ApiError(404, "BLOB_NOT_FOUND", "this platform keeps its files in another store.")


LocalStore = Annotated[LocalBlobStore, Depends(_local_store)]


@router.put("/{token}")
async def send_part(request: Request, token: str, store: LocalStore) -> Response:
    """Take the bytes of an upload, or of one of its parts; its ETag is needed to complete the upload."""
    try:
        grant = store.signer.part(token)
        _check_announced(request.headers.get("content-length"), grant.size)
        part = await _receive(request, store, grant)
    except UrlRefused as error:
        raise _refused(error) from None
    except UploadNotFound as error:
        raise ApiError(404, "UPLOAD_NOT_FOUND", error.message, headers=_CLOSE) from None
    except BodyTooLarge as error:
        raise ApiError(413, "BODY_TOO_LARGE", error.message, headers=_CLOSE) from None
    except BodyTooSmall as error:
        raise ApiError(400, "BODY_INCOMPLETE", error.message, headers=_CLOSE) from None
    except DigestMismatch as error:
        raise ApiError(400, "DIGEST_MISMATCH", error.message) from None
    return Response(status_code=200, headers={"ETag": f'"{part.etag}"'})


@router.get("/{token}", response_class=StreamingResponse)
def fetch(request: Request, token: str, services: Services) -> Response:
    """Serve a blob or a file of a run, or the part of it that `Range` asks for."""
    try:
        grant = services.url_signer.download(token)
        handle, size, etag = _granted(services, grant)
    except UrlRefused as error:
        raise _refused(error) from None
    except BlobNotFound:
        raise ApiError(
            404, "BLOB_NOT_FOUND", "this file was replaced or removed; ask for a new URL."
        ) from None
    except BlobStoreError:
        raise
    except BlobError as error:
        raise ApiError(500, "BLOB_DAMAGED", error.message) from None
    try:
        return _serve(handle, size, etag, request.headers, grant.filename)
    except BaseException:
        handle.close()
        raise


def _granted(services: PlatformServices, grant: DownloadGrant) -> tuple[BinaryIO, int, str]:
    """Return a file, its size and what tells its content from another's."""
    if grant.path is not None:
        handle = services.run_files.open_granted(grant.key, grant.path)
        size = handle.seek(0, os.SEEK_END)
        handle.seek(0)
        digest = hashlib.sha256(handle.read()).hexdigest()[:32]
        handle.seek(0)
        return handle, size, f'"{digest}"'
    if not isinstance(services.blobs, LocalBlobStore):
        raise _elsewhere()
    handle = services.blobs.open(grant.key)
    found = os.fstat(handle.fileno())
    return handle, found.st_size, f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'


# A client that is refused early is still sending; nobody reads the rest.
_CLOSE = {"Connection": "close"}


def _refused(error: UrlRefused) -> ApiError:
    code = "BLOB_URL_EXPIRED" if error.expired else "BLOB_URL_INVALID"
    return ApiError(403, code, error.message, headers=_CLOSE)


def _check_announced(length: str | None, expected: int) -> None:
    """Refuse a body of the wrong size before a byte of it is read."""
    if length is None or not length.isdigit():
        return
    if int(length) > expected:
        raise BodyTooLarge(f"the body has {length} bytes; this URL takes exactly {expected}.")
    if int(length) < expected:
        raise BodyTooSmall(f"the body has {length} bytes; this URL takes exactly {expected}.")


async def _receive(request: Request, store: LocalBlobStore, grant: PartGrant) -> Part:
    digest = _announced_digest(request.headers.get("content-digest"))
    with await run_in_threadpool(store.receive_part, grant) as incoming:
        async for block in _blocks(request):
            await run_in_threadpool(incoming.write, block)
        return await run_in_threadpool(_keep, store, grant, incoming, digest)


def _keep(store: LocalBlobStore, grant: PartGrant, incoming: IncomingFile, digest: str | None) -> Part:
    found = incoming.seal().sha256
    if digest is not None and digest != found:
        raise DigestMismatch(f"the bytes received have the SHA-256 {found}, not the announced {digest}.")
    return store.keep_part(grant, incoming)


async def _blocks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in blocks that are worth a trip to another thread."""
    pending = bytearray()
    stream = request.stream().__aiter__()
    while True:
        try:
            with anyio.fail_after(_SILENCE_S):
                chunk = await stream.__anext__()
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise ApiError(
                408, "BODY_STALLED", f"no bytes came for {_SILENCE_S:.0f} seconds.", headers=_CLOSE
            ) from None
        pending += chunk
        if len(pending) >= BLOCK_BYTES:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


def _announced_digest(header: str | None) -> str | None:
    """Return the SHA-256 of a `Content-Digest` header in hexadecimal; other algorithms are passed over."""
    match = _DIGEST.search(header or "")
    if match is None:
        return None
    try:
        return base64.b64decode(match[1], validate=True).hex()
    except binascii.Error:
        raise ApiError(
            400, "DIGEST_INVALID", "the Content-Digest header is not `sha-256=:<base64>:`."
        ) from None


def _serve(handle: BinaryIO, size: int, etag: str, headers: Headers, filename: str) -> Response:
    span = _asked_for(headers, size, etag)
    answer = {
        **_INERT,
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Content-Disposition": content_disposition(filename),
        "Content-Length": str(size if span is None else len(span)),
    }
    if span is not None:
        answer["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}"
    return StreamingResponse(
        _read(handle, range(size) if span is None else span),
        status_code=200 if span is None else 206,
        headers=answer,
        media_type=OCTET_STREAM,
    )


def _asked_for(headers: Headers, size: int, etag: str) -> range | None:
    """Return the bytes that `Range` asks for (RFC 9110, section 14); None for all of them."""
    match = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if match is None or headers.get("if-range", etag) != etag:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        span = range(max(0, size - int(suffix)), size)
    elif last and int(last) < int(first):
        return None
    else:
        span = range(int(first), min(int(last) + 1, size) if last else size)
    if not span:
        raise ApiError(
            416,
            "RANGE_NOT_SATISFIABLE",
            f"the file has {size} bytes.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return span


def _read(handle: BinaryIO, span: range) -> Iterator[bytes]:
    with handle:
        handle.seek(span.start)
        left = len(span)
        while left and (block := handle.read(min(left, BLOCK_BYTES))):
            left -= len(block)
            yield block

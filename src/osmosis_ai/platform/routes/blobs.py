"""Transfer bytes by signed URL. The URL is the permission, so requests need no token."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO

import anyio
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from osmosis_ai.platform.blobs.local import BLOCK_BYTES, LocalBlobStore, wrong_size
from osmosis_ai.platform.blobs.signing import (
    BLOBS_PATH,
    OCTET_STREAM,
    DownloadGrant,
    content_disposition,
    transfer_refused,
)
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStoreError, UploadNotFound
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.services import PlatformServices

router = api_router(BLOBS_PATH)

_SILENCE_S = 120.0
"""How long a client may pause in the middle of a body."""

_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{0,19})|-(\d{1,19}))")
_HEADERS = {
    # No browser may show an uploaded file as a page of this platform.
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
    "Accept-Ranges": "bytes",
}


@router.put("/{token}")
async def send_part(request: Request, token: str, services: Services) -> Response:
    """Store the bytes of an upload or of one of its parts. The returned ETag is needed to complete the upload."""
    store = _local_store(services)
    length = request.headers.get("content-length", "")
    try:
        grant = store.signer.part(token)
        if length.isdecimal() and int(length) != grant.size:
            raise wrong_size(int(length), grant.size)
        with await run_in_threadpool(store.receive_part, grant) as incoming:
            async for block in _blocks(request):
                await run_in_threadpool(incoming.write, block)
            part = await run_in_threadpool(store.keep_part, grant, incoming)
    except UploadNotFound as error:
        raise transfer_refused(404, "UPLOAD_NOT_FOUND", error.message) from None
    return Response(status_code=200, headers={"ETag": f'"{part.etag}"'})


@router.get("/{token}", response_class=StreamingResponse)
def fetch(request: Request, token: str, services: Services) -> Response:
    """Return a blob or a file of a run, or the byte range that the `Range` header requests."""
    try:
        grant = services.url_signer.download(token)
        handle, size, etag = _granted(services, grant)
    except BlobNotFound:
        message = "this file was replaced or removed; request a new URL."
        raise ApiError(404, "BLOB_NOT_FOUND", message) from None
    except BlobStoreError:
        raise
    except BlobError as error:
        raise ApiError(500, "BLOB_DAMAGED", error.message) from None
    try:
        return _serve(handle, size, etag, request.headers, grant.filename)
    except BaseException:
        handle.close()
        raise


def _local_store(services: PlatformServices) -> LocalBlobStore:
    if isinstance(services.blobs, LocalBlobStore):
        return services.blobs
    raise ApiError(404, "BLOB_NOT_FOUND", "this platform does not store its files locally.")


def _granted(services: PlatformServices, grant: DownloadGrant) -> tuple[BinaryIO, int, str]:
    """Return a file, its size and an ETag of its content."""
    if grant.path is not None:
        handle = services.run_files.open_granted(grant.key, grant.path)
        content = handle.read()
        handle.seek(0)
        return handle, len(content), f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    handle = _local_store(services).open(grant.key)
    found = os.fstat(handle.fileno())
    return handle, found.st_size, f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'


async def _blocks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in blocks that are large enough to be worth another thread."""
    pending = bytearray()
    stream = request.stream().__aiter__()
    while True:
        try:
            with anyio.fail_after(_SILENCE_S):
                chunk = await stream.__anext__()
        except StopAsyncIteration:
            break
        except TimeoutError:
            message = f"no data was received for {_SILENCE_S:.0f} seconds."
            raise transfer_refused(408, "BODY_STALLED", message) from None
        pending += chunk
        if len(pending) >= BLOCK_BYTES:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


def _serve(handle: BinaryIO, size: int, etag: str, headers: Headers, filename: str) -> Response:
    span = _requested_range(headers, size, etag)
    answer = {
        **_HEADERS,
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


def _requested_range(headers: Headers, size: int, etag: str) -> range | None:
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
        unsatisfied = {"Content-Range": f"bytes */{size}"}
        raise ApiError(416, "RANGE_NOT_SATISFIABLE", f"the file has {size} bytes.", headers=unsatisfied)
    return span


def _read(handle: BinaryIO, span: range) -> Iterator[bytes]:
    with handle:
        handle.seek(span.start)
        left = len(span)
        while left and (block := handle.read(min(left, BLOCK_BYTES))):
            left -= len(block)
            yield block

"""A body that may come packed: unpacked as it arrives, so that what would become too large is refused before it is."""

from __future__ import annotations

import zlib

from fastapi import Request

from osmosis_ai.platform.http.errors import ApiError

_GZIP = 16 + zlib.MAX_WBITS
_CLOSE = {"Connection": "close"}


async def unpacked_body(request: Request, *, most_bytes: int, refusal: str) -> bytes:
    """Return a request's body."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise ApiError(415, "ENCODING_UNKNOWN", "a request is sent as it is, or packed with gzip.")
    unpacking = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    body = bytearray()
    async for chunk in request.stream():
        left = most_bytes + 1 - len(body)
        try:
            body += unpacking.decompress(chunk, left) if unpacking is not None else chunk
        except zlib.error:
            raise ApiError(
                400, "INVALID_BODY", "the body of the request is not gzip.", headers=_CLOSE
            ) from None
        if len(body) > most_bytes:
            raise ApiError(413, "BODY_TOO_LARGE", refusal, headers=_CLOSE)
    if unpacking is not None and not unpacking.eof:
        raise ApiError(400, "INVALID_BODY", "the body of the request is cut off.")
    return bytes(body)

"""Read a store's response body completely, with a deadline for slow connections.

A connection's timeout only covers silence. A store or proxy that sends a byte now and then would block a reader
for days, and the few reader threads would soon be exhausted.
"""

from __future__ import annotations

import time
from typing import Any

from osmosis_ai.api.retrying import longest_transfer_s
from osmosis_ai.platform.blobs.store import BlobStoreSilent

_BLOCK_BYTES = 1 << 20


def read_body(body: Any, size: int, shown: str) -> bytes:
    """Return the body of an answer (``botocore.response.StreamingBody``)."""
    from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError
    from urllib3.exceptions import HTTPError
    from urllib3.exceptions import ReadTimeoutError as Silence

    within_s = longest_transfer_s(size)
    until = time.monotonic() + within_s
    content = bytearray()
    # What botocore wraps returns what has come; botocore itself only what was asked for, however long that takes.
    arriving = body._raw_stream
    # The oldest releases of urllib3 that botocore takes know no such thing.
    next_block = getattr(arriving, "read1", arriving.read)
    try:
        while block := next_block(_BLOCK_BYTES):
            content += block
            if time.monotonic() > until:
                body.close()
                raise BlobStoreSilent(
                    f"{shown} is too slow: of {size} bytes {len(content)} came in {within_s:.0f} s; it is asked again later."
                )
    except Silence as error:
        raise ReadTimeoutError(endpoint_url=shown, error=error) from None
    except HTTPError as error:
        raise ResponseStreamingError(error=error) from None
    if len(content) != size:
        raise IncompleteReadError(actual_bytes=len(content), expected_bytes=size)
    return bytes(content)

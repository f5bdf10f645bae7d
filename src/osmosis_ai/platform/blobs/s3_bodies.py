"""The body of a store's answer: all of it, within the time that a slow line takes, or a word on why not.

A connection's own timeout is about silence alone. A store, or what stands before it, that sends a byte now and then would hold
whoever reads for days; and those who read are few, so that soon no page of the platform would be answered.
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

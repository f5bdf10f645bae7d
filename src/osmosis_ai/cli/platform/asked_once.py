"""Errors of a bucket that did not answer: the platform asks it again later, but a command has ended by then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_LATER = re.compile(r"[;.] it is asked again later\.$", re.IGNORECASE)


@contextmanager
def asked_once() -> Iterator[None]:
    """Say of a bucket that does not answer what to do about it.

    Raises:
        BlobStoreError: it did not answer, or not as it should.
    """
    from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError, BlobStoreSilent

    try:
        yield
    except BlobStoreBusy as error:
        is_silent = isinstance(error, BlobStoreSilent)
        look = "check that it runs and that OSMOSIS_BLOBS_URL is its address, then" if is_silent else "later"
        raise BlobStoreError(
            _LATER.sub(".", error.message), hint=error.hint or f"{look} run the command again"
        ) from error

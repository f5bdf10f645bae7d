"""Errors of a bucket that did not answer: the platform asks it again later, but a command has ended by then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_LATER = re.compile(r"[;.] it is asked again later\.$", re.IGNORECASE)


@contextmanager
def asked_once() -> Iterator[None]:
    """Say of a bucket that does not answer what to do about it."""
    from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError, BlobStoreSilent

    try:
        yield
    except BlobStoreBusy as error:
        is_silent = isinstance(error, BlobStoreSilent)
        retry = "run the command again later"
        if is_silent:
            retry = "check that the store runs at OSMOSIS_BLOBS_URL, then run the command again"
        raise BlobStoreError(_LATER.sub(".", error.message), hint=error.hint or retry) from error

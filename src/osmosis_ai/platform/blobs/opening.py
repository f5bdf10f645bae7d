"""Which store a platform keeps its blobs in, by its settings: a directory of its own, or a bucket."""

from __future__ import annotations

import importlib.util

from osmosis_ai.errors import MissingExtraError
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.local import open_local_store
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.s3_address import parse_s3_address


def open_blob_store(config: PlatformConfig, clock: Clock) -> BlobStore:
    """Return the store that the platform of ``config`` keeps its blobs in."""
    if not config.blobs_url:
        return open_local_store(config, clock)
    address = parse_s3_address(config.blobs_url)
    if importlib.util.find_spec("boto3") is None:
        raise MissingExtraError("s3", "boto3")
    return S3BlobStore(address, clock, BlobCopies(config.blob_copies_dir))

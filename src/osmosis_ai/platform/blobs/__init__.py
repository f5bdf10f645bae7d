"""Blob stores for datasets, trajectories and artifacts, addressed by key.

``store`` is the interface, ``local`` stores files in the platform's home, ``s3`` in a bucket, and ``signing`` creates
URLs for transfers without a token.
"""

from __future__ import annotations

from importlib.util import find_spec

from osmosis_ai.errors import MissingExtraError
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.signing import url_signer
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.s3_address import parse_s3_address


def open_blob_store(config: PlatformConfig, clock: Clock) -> BlobStore:
    if not config.blobs_url:
        return LocalBlobStore(config.blobs_dir, url_signer(config, clock), clock)
    if find_spec("boto3") is None:
        raise MissingExtraError("s3", "boto3")
    return S3BlobStore(parse_s3_address(config.blobs_url), clock, config.blob_copies_dir)

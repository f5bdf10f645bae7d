"""Blob stores for datasets, trajectories and artifacts, addressed by key.

``store`` is the interface, ``local`` stores files in the platform's home, ``s3`` in a bucket, ``opening`` chooses
one, and ``signing`` creates URLs for transfers without a token.
"""

from __future__ import annotations

from osmosis_ai.platform.blobs.store import BlobInfo, BlobNotFound, BlobStore, BlobUpload, Part

__all__ = ["BlobInfo", "BlobNotFound", "BlobStore", "BlobUpload", "Part"]

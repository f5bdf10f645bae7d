"""Large bytes: datasets, trajectories, artifacts. The rest of the platform knows keys, never where they lie.

``store`` is what every store promises, ``local`` the one that keeps files under the platform's home, ``s3`` the one
in a bucket, ``opening`` chooses; ``signing`` makes the URLs that let a client send or fetch bytes without a token.
"""

from __future__ import annotations

from osmosis_ai.platform.blobs.store import BlobInfo, BlobNotFound, BlobStore, BlobUpload, Part

__all__ = ["BlobInfo", "BlobNotFound", "BlobStore", "BlobUpload", "Part"]

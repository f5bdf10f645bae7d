"""What a worker needs of the platform, opened without the rest of it: a worker starts for every run."""

from __future__ import annotations

from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.signing import UrlSigner, load_signing_key
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.vault import Vault


def open_blobs(config: PlatformConfig, clock: Clock) -> BlobStore:
    """Return the store that the platform of ``config`` keeps its blobs in."""
    signer = UrlSigner(load_signing_key(config.keys_dir / "blob-urls.key"), config.base_url, clock)
    return LocalBlobStore(config.blobs_dir, signer, clock)


def open_vault(config: PlatformConfig) -> Vault:
    """Return the vault that the platform of ``config`` seals its secrets with."""
    return Vault(config.keys_dir / "vault.json")

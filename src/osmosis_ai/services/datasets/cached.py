"""Platform datasets on this machine: fetched once, used while the platform's version is the same.

``<cache>/datasets/<id>/`` holds ``metadata.json`` and ``<sha256>.<extension>``. The file's name is the digest
of its bytes and is checked before every use; the platform is asked every time whether it has other bytes now.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.datasets.transfer import require_ready

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.transfer import BlobClient
    from osmosis_ai.api.wire.datasets import Dataset

OpenProgress = Callable[[str, "int | None"], AbstractContextManager[Callable[[int], None]]]
"""Opens a display for a download, given the dataset's name and size in bytes."""
_EXTENSIONS = ("jsonl", "csv", "json", "parquet")
_LOCK_TIMEOUT_S = 3600.0
_KEPT_S = 7 * 86400.0


@dataclass(frozen=True)
class CachedDataset:
    """A platform dataset as a file.

    Attributes:
        source: whether it was in the cache or had to be downloaded.
    """

    path: Path
    sha256: str
    source: Literal["cache", "download"]


def fetch_dataset(
    client: PlatformClient,
    name: str,
    *,
    cache: Path | None = None,
    progress: OpenProgress | None = None,
    blobs: BlobClient | None = None,
) -> CachedDataset:
    """Return the current bytes of a platform dataset.

    Args:
        client: the platform.
        name: the dataset's name or id.
        cache: where datasets are kept; the user's cache by default.
        progress: opens a display when bytes have to be fetched.
        blobs: connections to the store; otherwise opened and closed here.

    Raises:
        PlatformError: no such dataset, or as every call.
        OsmosisError: it is not ready, of no known format, or the disk is full.
    """
    import filelock

    from osmosis_ai.files import cache_dir

    dataset = require_ready(client.datasets.get(name))
    extension = _extension(dataset)
    directory = (cache or cache_dir() / "datasets") / _segment(dataset.id)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with filelock.FileLock(directory / ".lock", timeout=_LOCK_TIMEOUT_S):
        found = _cached(directory, dataset, extension, client.platform_url)
        if found is not None:
            return found
        return _download(client, dataset, directory, extension, progress or _show_nothing, blobs)


def _cached(directory: Path, dataset: Dataset, extension: str, platform_url: str) -> CachedDataset | None:
    from osmosis_ai.datasets import file_digest

    try:
        known: Any = json.loads((directory / "metadata.json").read_bytes())
        sha256 = str(known["sha256"])
        path = directory / f"{sha256}.{extension}"
        if dataset.updated_at is None or known["version"] != _version(dataset, platform_url):
            return None
        if file_digest(path) != sha256:
            return None
    except (OSError, ValueError, KeyError, TypeError, OsmosisError):
        return None
    return CachedDataset(path, sha256, "cache")


def _download(
    client: PlatformClient,
    dataset: Dataset,
    directory: Path,
    extension: str,
    progress: OpenProgress,
    blobs: BlobClient | None,
) -> CachedDataset:
    from osmosis_ai.api.transfer import download
    from osmosis_ai.datasets import file_digest
    from osmosis_ai.files import write_json

    incoming = directory / "incoming"
    with progress(dataset.file_name or dataset.id, dataset.file_size or None) as shown:
        download(
            client.datasets.download(dataset.id).presigned_url,
            incoming,
            expected_size=dataset.file_size or None,
            progress=shown,
            refresh_url=lambda: client.datasets.download(dataset.id).presigned_url,
            client=blobs,
        )
    sha256 = file_digest(incoming)
    path = incoming.replace(directory / f"{sha256}.{extension}")
    write_json(
        directory / "metadata.json", {"version": _version(dataset, client.platform_url), "sha256": sha256}
    )
    _remove_old(directory, path)
    return CachedDataset(path, sha256, "download")


def _remove_old(directory: Path, current: Path) -> None:
    """Remove the bytes of earlier versions; not at once, an evaluation may be reading them."""
    for path in directory.glob("*.*"):
        is_data = path.suffix[1:] in _EXTENSIONS and len(path.stem) == 64
        if is_data and path != current and time.time() - path.stat().st_mtime > _KEPT_S:
            path.unlink(missing_ok=True)


def _version(dataset: Dataset, platform_url: str) -> dict[str, Any]:
    """Return what changes when the bytes do."""
    known = dataset.model_dump(mode="json")
    return {
        "platform_url": platform_url,
        **{key: known[key] for key in ("id", "file_name", "file_size", "file_format", "updated_at")},
    }


def _extension(dataset: Dataset) -> str:
    for named in (dataset.file_format, Path(dataset.file_name or "").suffix[1:]):
        if named and named.lower() in _EXTENSIONS:
            return named.lower()
    raise OsmosisError(
        f"Dataset `{dataset.file_name or dataset.id}` has the format `{dataset.file_format}`, which cannot be read here.",
        hint="upgrade Osmosis, or pass `--dataset-file FILE`",
    )


def _segment(dataset_id: str) -> str:
    """Return an id as one directory name; an id that is none gets its digest."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,96}", dataset_id):
        return dataset_id
    import hashlib

    return hashlib.sha256(dataset_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _show_nothing(_name: str, _size: int | None) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _done: None)

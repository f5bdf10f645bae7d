"""What the dataset commands do, but for moving bytes (:mod:`osmosis_ai.services.datasets.transfer`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.datasets import DatasetReport, validate_dataset
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.base import LogPage
    from osmosis_ai.api.wire.datasets import Dataset
    from osmosis_ai.services.listing import Listing

IN_PROGRESS = frozenset({"pending", "uploading", "processing"})
READY = "uploaded"
_KEYS = (
    "id",
    "file_name",
    "file_size",
    "status",
    "file_format",
    "original_file_format",
    "row_count",
    "original_file_size",
    "creator_name",
    "created_at",
    "updated_at",
)


def validate_file(path: Path, *, progress: Callable[[int], None] | None = None) -> DatasetReport:
    """Check that the platform would take a dataset file; needs no workspace and no login.

    Args:
        path: the file.
        progress: takes the number of bytes read so far.

    Returns:
        The report of a valid file; it may hold warnings.

    Raises:
        OsmosisError: there is no such file, or it is not valid: the message lists the first
            problems, the details are the whole report.
    """
    report = validate_dataset(path, progress=progress)
    if not report.valid:
        problems = "".join(f"\n  - {error}" for error in report.errors)
        hint = (
            f"\n`osmosis dataset import {path}` maps columns of other names." if report.lacks_columns else ""
        )
        raise OsmosisError(f"Validation failed: {path}{problems}{hint}", details=asdict(report))
    return report


def list_datasets(client: PlatformClient, *, limit: int, everything: bool) -> Listing[Dataset]:
    """Return the workspace's datasets, the newest first; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.datasets.list(limit=size, offset=offset),
        lambda page: page.datasets,
        limit=limit,
        everything=everything,
    )


@dataclass(frozen=True)
class DatasetPreview:
    """The first rows of a dataset, as far as the platform keeps them.

    Attributes:
        available: whether the platform has a preview at all.
        message: why there is none.
    """

    dataset: Dataset
    rows: tuple[Any, ...]
    requested_rows: int
    available: bool
    message: str | None = None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        shown = {
            "dataset": dataset_item(self.dataset),
            "rows": list(self.rows),
            "requested_rows": self.requested_rows,
            "returned_rows": len(self.rows),
            "available": self.available,
        }
        return shown if self.message is None else {**shown, "message": self.message}


def preview_dataset(client: PlatformClient, name: str, *, rows: int) -> DatasetPreview:
    """Return up to ``rows`` rows of a dataset; that there are none is no error.

    Raises:
        PlatformError: no such dataset, or as every call.
    """
    dataset = client.datasets.get(name)
    found = dataset.data_preview
    if isinstance(found, Mapping) and isinstance(found.get("rows"), list):
        found = found["rows"]
    if isinstance(found, list):
        return DatasetPreview(dataset, tuple(found[:rows]), rows, available=True)
    message = {
        READY: "The platform keeps no preview of this dataset.",
        "error": f"The platform did not accept this dataset. See logs with: osmosis dataset logs {name}",
        "cancelled": "The upload of this dataset was cancelled.",
    }.get(
        dataset.status, "The platform is still working on this dataset; there is a preview when it is done."
    )
    return DatasetPreview(dataset, (), rows, available=False, message=message)


def dataset_logs(client: PlatformClient, name: str, *, limit: int, cursor: str | None) -> LogPage:
    """Return a page of what was said while a dataset was checked, the oldest first."""
    return client.datasets.logs(name, limit=limit, cursor=cursor)


def dataset_item(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as scripts see it: every key, and ``platform_url`` where there is one."""
    known = dataset.model_dump(mode="json", include={*_KEYS, "platform_url"})
    item = {key: known[key] for key in _KEYS}
    return {**item, "platform_url": known["platform_url"]} if known["platform_url"] else item

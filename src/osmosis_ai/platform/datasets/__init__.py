"""Datasets of a workspace: uploaded, checked, previewed, handed to runs.

``store`` is what requests do, ``pending_uploads`` an upload on its way, ``ingest`` the checking in the background,
``check`` one file's check, ``lookup`` how a dataset is found and a run gets its rows.
"""

from __future__ import annotations

from osmosis_ai.platform.datasets.lookup import find_dataset, open_dataset
from osmosis_ai.platform.datasets.store import DatasetLimits, DatasetRecord, DatasetStore
from osmosis_ai.platform.datasets.upload_request import DatasetRejected

__all__ = [
    "DatasetLimits",
    "DatasetRecord",
    "DatasetRejected",
    "DatasetStore",
    "find_dataset",
    "open_dataset",
]

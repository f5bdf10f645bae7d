"""Datasets of a workspace: upload, check, preview and use by runs.

``store`` handles requests, ``pending_uploads`` uploads in progress, ``ingest`` background checks, ``check`` one file's
check, and ``lookup`` finds a dataset and its rows for a run.
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

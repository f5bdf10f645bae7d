"""Datasets of a workspace: uploaded, checked, previewed, handed to runs.

``catalog`` is what requests do, ``pending`` an upload on its way, ``ingest`` the checking in the background,
``check`` one file's check, ``copies`` how a run gets its rows.
"""

from __future__ import annotations

from osmosis_ai.platform.datasets.announcement import DatasetRejected
from osmosis_ai.platform.datasets.catalog import DatasetLimits, DatasetRecord, Datasets
from osmosis_ai.platform.datasets.copies import find_dataset, open_dataset

__all__ = [
    "DatasetLimits",
    "DatasetRecord",
    "DatasetRejected",
    "Datasets",
    "find_dataset",
    "open_dataset",
]

"""A run for other tools: an inspect_ai log, flat samples for pandas and DuckDB.

One stream of samples (``samples``), whatever the run's directory is: one of this machine, or one that was downloaded
from a platform. The formats (``inspect_log``, ``flat``) hold one sample at a time.
"""

from __future__ import annotations

from osmosis_ai.evaluation.export.flat import write_jsonl, write_parquet
from osmosis_ai.evaluation.export.inspect_log import write_inspect_log
from osmosis_ai.evaluation.export.samples import ExportedRun, ExportedSample, read_run

__all__ = [
    "ExportedRun",
    "ExportedSample",
    "read_run",
    "write_inspect_log",
    "write_jsonl",
    "write_parquet",
]

"""Dataset files: a stream of records from CSV, JSON Lines, JSON and Parquet.

Reading, counting, digesting and validating use a few megabytes of memory for a file of any size. A row is identified
by its position among the file's records, from 0; blank lines are not records.
"""

from __future__ import annotations

from osmosis_ai.datasets.conversations import ConversationRow, iter_conversations
from osmosis_ai.datasets.readers import SUPPORTED_EXTENSIONS, count_records, iter_records
from osmosis_ai.datasets.rows import DatasetRow, content_digest, find_row, iter_rows, row_digest
from osmosis_ai.datasets.selection import Selection, file_digest, sample_rows, select_rows
from osmosis_ai.datasets.validation import DatasetReport, validate_dataset

__all__ = [
    "SUPPORTED_EXTENSIONS",
    "ConversationRow",
    "DatasetReport",
    "DatasetRow",
    "Selection",
    "content_digest",
    "count_records",
    "file_digest",
    "find_row",
    "iter_conversations",
    "iter_records",
    "iter_rows",
    "row_digest",
    "sample_rows",
    "select_rows",
    "validate_dataset",
]

"""The work that is left, as a stream: rows are read when their turn comes, and forgotten after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from osmosis_ai.controller.attempt import Attempt, attempt_seeds
from osmosis_ai.datasets import DatasetRow, Selection, iter_rows, row_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.ledger import Ledger


def selected_rows(path: Path, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
    """Yield (row_index, row) of the selected rows, reading no further than the last of them."""
    wanted = iter(enumerate(selection.indices))
    target = next(wanted, None)
    if target is None:
        return
    for row in iter_rows(path):
        if row.source_row_index == target[1]:
            yield target[0], row
            target = next(wanted, None)
            if target is None:
                return
    raise OsmosisError(f"`{path}` has no row {target[1]} any more: the file was changed.")


def pending_attempts(rows: Iterable[tuple[int, DatasetRow]], ledger: Ledger, seed: int) -> Iterator[Attempt]:
    """Yield what the ledger still asks for, by row, then by attempt."""
    for row_index, row in rows:
        if ledger.row_is_open(row_index):
            digest = row_digest(row)
            for run_index in range(ledger.n):
                if ledger.is_open(row_index, run_index):
                    seed_for = attempt_seeds(seed, row.source_row_index, run_index)
                    yield Attempt(row, row_index, run_index, seed_for, row_digest=digest)

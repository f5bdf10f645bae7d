"""The attempts that belong to a run; records of others are refused.

A selection and its attempts never change, so they are read once per active run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.submit.eval_request import read_eval_request
from osmosis_ai.platform.runs.submit.row_selection import RowSelection

_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class RunExtent:
    """The work items of an evaluation."""

    rows: int
    attempts: int
    dataset_rows: int

    def refusal(self, sample: dict[str, Any]) -> str | None:
        """Return why a sample is none of the run's; None where it is."""
        row, attempt = sample["row_index"], sample["run_index"]
        if row >= self.rows:
            return f"it has {self.rows} rows, and no row {row}"
        if attempt >= self.attempts:
            return f"it makes {self.attempts} attempts on a row, and no attempt {attempt}"
        if sample["source_row_index"] >= self.dataset_rows:
            return f"its dataset has {self.dataset_rows} rows, and no row {sample['source_row_index']}"
        return None


class RunExtents:
    """The extents of one platform's runs."""

    def __init__(self, db: Database, logs: LogStore) -> None:
        self._db = db
        self._logs = logs
        self._lock = threading.Lock()
        self._known: OrderedDict[str, RunExtent | None] = OrderedDict()
        self._told: set[str] = set()

    def require(self, run_id: str, samples: Sequence[dict[str, Any]]) -> None:
        """Check that samples are attempts of the run; the first refused one is noted on the run."""
        extent = self._of(run_id) if samples else None
        if extent is None:
            return
        wrong = next((why for sample in samples if (why := extent.refusal(sample)) is not None), None)
        if wrong is None:
            return
        with self._lock:
            is_first = run_id not in self._told
            self._told.add(run_id)
        if is_first:
            line = LogLine(f"its worker sent a record that was refused: {wrong}", "warning", step="worker")
            self._logs.append(run_id, [line])
        raise ConflictError(f"this record is not of the run {run_id}: {wrong}.")

    def _of(self, run_id: str) -> RunExtent | None:
        with self._lock:
            if run_id in self._known:
                self._known.move_to_end(run_id)
                return self._known[run_id]
        extent = self._read(run_id)
        with self._lock:
            self._known[run_id] = extent
            if len(self._known) > _MOST_KNOWN:
                self._told.discard(self._known.popitem(last=False)[0])
        return extent

    def _read(self, run_id: str) -> RunExtent | None:
        columns = select(DbRun.kind, DbRun.request, DbRun.selection)
        with self._db.session() as session:
            run = session.execute(columns.where(DbRun.id == run_id)).one_or_none()
        if run is None or run.kind != "eval" or not run.selection:
            return None
        rows = RowSelection.read(run.selection)
        attempts = read_eval_request(run.request).evaluation.n
        return RunExtent(len(rows.rows()), attempts, rows.total_rows)

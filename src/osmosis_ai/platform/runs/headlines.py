"""An evaluation's result in a line, from what its row keeps."""

from __future__ import annotations

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.platform.db.tables import Run
from osmosis_ai.platform.runs.read.run_store import RunSummary
from osmosis_ai.platform.runs.submit.eval_request import effective_settings
from osmosis_ai.platform.runs.submit.row_selection import RowChoice


def headline_of(run: Run | RunSummary) -> Headline | None:
    """Return a run's result in a line; None before anything is counted."""
    results, rows = run.results or {}, rows_of(run)
    planned = rows.rows * effective_settings(run.request)["n"] if rows is not None else 0
    return Headline.of_results(results, planned=planned, rows=rows)


def rows_of(run: Run | RunSummary) -> RowsDrawn | None:
    """Return how many rows of how many a run uses, and how they were chosen."""
    sampled = (run.results or {}).get("sampled_rows")
    return RowChoice.read(run.selection).drawn(sampled) if run.selection and sampled is not None else None

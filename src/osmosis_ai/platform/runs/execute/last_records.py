"""What workers that were given up have left: no other comes that would publish what stands in the journal alone.

A retry makes what has no score again, so that what was journalled and not published would be paid for twice; and the
journal itself would go with the working directory.
"""

from __future__ import annotations

from itertools import islice

from sqlalchemy import func, select

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError, replay
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.journalled import record_eval_metrics, sample_row
from osmosis_ai.platform.runs.stored_journal import store_journal
from osmosis_ai.platform.runs.submit.submitter import secret_values_of
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.vault import open_vault
from osmosis_ai.redaction import Redactor

_BATCH = 2000


def gather_last_records(config: PlatformConfig, db: Database, clock: Clock, run_id: str) -> str | None:
    """Publish what an evaluation has journalled, its numbers too, and store the journal; blocking.

    Args:
        config, db, clock: the platform's.
        run_id: of a run that no worker works on, and that is about to end.

    Returns:
        What could not be kept, in a sentence; None where all was, or nothing is there.
    """
    with db.session() as session:
        run = session.get_one(DbRun, run_id)
    directory = WorkingDirectory(config.runs_dir, run_id).evaluation(run.name)
    if run.kind != "eval" or not directory.events.exists():
        return None
    try:
        _publish(db, run_id, directory)
        required = (run.request.get("secrets") or {}).get("required") or ()
        secrets = secret_values_of(db, open_vault(config), run, required)
        blobs = open_blob_store(config, clock)
        key = store_journal(directory.events, run_id, blobs, Redactor(secrets.values()))
        with db.transaction() as session:
            row = session.get_one(DbRun, run_id, with_for_update=True)
            row.journal_blob = key or row.journal_blob
            record_eval_metrics(row, directory)
    except (OSError, OsmosisError) as error:
        return f"what the last worker had recorded could not all be kept: {error}"
    return None


def _publish(db: Database, run_id: str, directory: RunDirectory) -> None:
    """Write the samples behind the last one that was published, as far as the journal can be read."""
    with db.session() as session:
        published = session.scalar(select(func.max(DbSample.position)).where(DbSample.run_id == run_id))
    entries = replay(directory.events, published or 0)
    while True:
        rows = []
        try:
            for entry in islice(entries, _BATCH):
                rows.append({**sample_row(run_id, entry.record), "resumed": False, "position": entry.end})
        except JournalCorruptionError:
            pass  # What stands before is published; a generator that raised has no more.
        if not rows:
            return
        with db.transaction() as session:
            upsert(session, DbSample, rows)

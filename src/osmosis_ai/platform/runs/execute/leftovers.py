"""What runs that have ended left on this machine: it goes at the platform's start, as far as a crash has left some."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sqlalchemy import select

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.lifecycle import CHECKPOINT_KEPT, OPEN, UNFINISHED
from osmosis_ai.platform.runs.working_directory import WorkingDirectory


def remove_leftovers(db: Database, runs_dir: Path, now: datetime) -> None:
    """Delete the working directories of runs that have ended, and what is too old to be gone on with."""
    if not runs_dir.is_dir():
        return
    found = [path.name for path in runs_dir.iterdir() if path.is_dir()]
    with db.session() as session:
        known = select(DbRun.id, DbRun.status, DbRun.completed_at).where(DbRun.id.in_(found))
        runs = {run_id: (status, ended_at) for run_id, status, ended_at in session.execute(known)}
    for run_id in found:
        status, ended_at = runs.get(run_id, ("removed", None))
        directory = WorkingDirectory(runs_dir, run_id)
        if status in OPEN:
            continue
        if status not in UNFINISHED:
            directory.remove()
        elif ended_at is not None and now - ended_at > CHECKPOINT_KEPT:
            directory.remove_checkpoints()
        elif status == "stopped":
            directory.keep_what_resumes()
        # Of a failed run all stays: what a worker printed before it died is the only trace of why.

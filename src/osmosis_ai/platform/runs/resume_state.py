"""Resume state of a training run: the newest archive, named in the run's row, and on the platform's machine also
the remaining working directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.working_directory import WorkingDirectory


def newest_step(run: DbRun, runs_dir: Path) -> int | None:
    """Return the step that a run can go on behind, here or anywhere; None without a checkpoint."""
    here, stored = WorkingDirectory(runs_dir, run.id).checkpoint_step(), resume_step(run)
    return max((step for step in (here, stored) if step is not None), default=None)


def resume_step(run: DbRun) -> int | None:
    """Return the step of the archive that any machine can go on from; None where there is none."""
    resume = resume_archive_of(run)
    return resume["step"] if resume else None


def forget_resume(run: DbRun) -> None:
    """Clear the reference to the resume archive; the caller that ends the run deletes the blobs."""
    if resume_archive_of(run) is not None:
        run.training_state = {
            key: value for key, value in (run.training_state or {}).items() if key != "resume"
        }


def resume_archive_of(run: DbRun) -> dict[str, Any] | None:
    """Return the step, key, size and digest of the archive that any machine can go on from; None where there is none."""
    found: dict[str, Any] | None = (run.training_state or {}).get("resume")
    return found


def folder_of(blob_key: str) -> str:
    """Return below what an archive's blob is the only one."""
    return blob_key.rpartition("/")[0]

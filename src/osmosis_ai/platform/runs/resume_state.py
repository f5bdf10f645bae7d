"""Resume state of a training run: the newest archive from which any machine can resume, named in the run's row."""

from __future__ import annotations

from typing import Any

from osmosis_ai.platform.db.tables import DbRun


def resume_step(run: DbRun) -> int | None:
    """Return the step of the resume archive; None without one."""
    resume = resume_archive_of(run)
    return resume["step"] if resume else None


def forget_resume(run: DbRun) -> None:
    """Clear the reference to the resume archive; the caller that ends the run deletes the blobs."""
    if resume_archive_of(run) is not None:
        run.training_state = {
            key: value for key, value in (run.training_state or {}).items() if key != "resume"
        }


def resume_archive_of(run: DbRun) -> dict[str, Any] | None:
    """Return the step, key, size and digest of the resume archive; None without one."""
    found: dict[str, Any] | None = (run.training_state or {}).get("resume")
    return found


def folder_of(blob_key: str) -> str:
    """Return the prefix below which an archive is the only blob."""
    return blob_key.rpartition("/")[0]

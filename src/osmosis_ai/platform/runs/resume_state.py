"""What another machine goes on from with a training run: one archive or none, the newest, named in the run's row."""

from __future__ import annotations

from typing import Any

from osmosis_ai.platform.db.tables import DbRun


def resume_step(run: DbRun) -> int | None:
    """Return the step of the archive that any machine can go on from; None where there is none."""
    resume = resume_archive_of(run)
    return resume["step"] if resume else None


def forget_resume(run: DbRun) -> list[str]:
    """Let go of the archive that another machine would go on from; return the prefixes of its blobs."""
    resume = resume_archive_of(run)
    if resume is None:
        return []
    run.training_state = {key: value for key, value in (run.training_state or {}).items() if key != "resume"}
    return [folder_of(resume["blob_key"])]


def resume_archive_of(run: DbRun) -> dict[str, Any] | None:
    """Return the step, key, size and digest of the archive that any machine can go on from; None where there is none."""
    found: dict[str, Any] | None = (run.training_state or {}).get("resume")
    return found


def folder_of(blob_key: str) -> str:
    """Return below what an archive's blob is the only one."""
    return blob_key.rpartition("/")[0]

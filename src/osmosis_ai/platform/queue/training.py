"""What a training worker reports: its curve, newest validation and checkpoints.

Everything is written in the caller's transaction, which has verified the lease. Rows are keyed by their subject (run,
metric and step; run and step; validation version), so a report can be repeated. Obsolete blobs are returned to the
caller, who deletes them after the commit. A run has the files of at most one validation and at most one resume archive,
the newest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.workers import (
    CheckpointPart,
    InputDownload,
    RunFilePart,
    StoredTraining,
    TrainingNews,
    TrainingStart,
    TrainingStep,
    ValidationPart,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobInfo
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbLoraModel, DbMetricPoint, DbRun, DbRunFile, new_id
from osmosis_ai.platform.queue.uploads import blob_key, file_row, stored_blobs
from osmosis_ai.platform.runs.lifecycle import (
    CHECKPOINTS,
    RESUME,
    RESUME_FILE,
    VALIDATION,
    VALIDATION_SAMPLES,
    blobs_below,
    is_version,
    version_in_key,
)
from osmosis_ai.platform.runs.reopening import resume_archive_of
from osmosis_ai.training.runs.metrics import TRAINING_REWARD, finite

ROLLOUTS = "rollout/samples"
"""The metric that counts the rollouts of a step; their sum is what a run has processed."""
_MOST_ROLLOUTS = 1 << 31
"""No step has so many, and a sum of such has no end that a number could not tell."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class AppliedTraining:
    """The result: names of kept checkpoints by step, prefixes of obsolete blobs, and whether a new step was reached."""

    checkpoints: dict[int, str]
    obsolete: list[str]
    has_progress: bool


def apply_training(
    session: Session, run: DbRun, attempt: int, news: TrainingNews, now: datetime
) -> AppliedTraining:
    """Write the updates that the worker of this attempt reports."""
    if run.kind != "training":
        raise OsmosisError("this run is not a training run.")
    files = [part.blob for part in news.validation.files if part.blob] if news.validation is not None else []
    adapters = [name for part in news.checkpoints for name in part.files.values()]
    sent = stored_blobs(session, run.id, {*files, *adapters})
    before = _furthest(run)
    if news.start is not None:
        _begin(session, run, attempt, news.start)
    _append_steps(session, run, news.steps)
    obsolete = _replace_validation(session, run, news.validation, sent) if news.validation is not None else []
    names: dict[int, str] = {}
    for part in news.checkpoints:
        if part.is_resume:
            obsolete += _keep_resume(run, part, sent)
        else:
            names[part.step] = _keep_checkpoint(session, run, part, sent, now)
    return AppliedTraining(names, obsolete, _furthest(run) > before)


def stored_training(session: Session, run: DbRun, sign: Callable[[str, str], str]) -> StoredTraining:
    """Return the stored state of ``run`` for the worker that continues it."""
    kept = session.scalars(select(DbLoraModel.step).where(DbLoraModel.run_id == run.id))
    stored = StoredTraining(checkpoint_steps=sorted(kept), validation=_stored_validation(session, run))
    if (resume := resume_archive_of(run)) is not None:
        url = sign(resume["blob_key"], RESUME_FILE)
        stored.resume = InputDownload(url=url, size=resume["size"], sha256=resume["sha256"])
        stored.resume_step = resume["step"]
    return stored


def _furthest(run: DbRun) -> int:
    """Return the furthest step that any session of the run has come to."""
    return int((run.training_state or {}).get("furthest", 0))


# -- the curve ---------------------------------------------------------------------------------


def _begin(session: Session, run: DbRun, attempt: int, start: TrainingStart) -> None:
    """Record the planned steps and the starting point, once per attempt: a late repetition would undo steps."""
    state = run.training_state or {}
    if state.get("begun") == attempt:
        return
    run.training_state = {**state, "begun": attempt}
    later = DbMetricPoint.run_id == run.id, DbMetricPoint.step > start.steps_done
    session.execute(delete(DbMetricPoint).where(*later))
    run.results = _results(session, run.id, current_step=start.steps_done, total_steps=start.total_steps)
    if _validated_step(run) > start.steps_done:
        run.metrics = None


def _append_steps(session: Session, run: DbRun, steps: Sequence[TrainingStep]) -> None:
    """Record what steps have come to; what is no finite number is left out."""
    if not steps:
        return
    points = [
        {
            "run_id": run.id,
            "key": key,
            "step": step.step,
            "value": value,
            "timestamp": datetime.fromtimestamp(step.timestamp_ms / 1000, timezone.utc),
        }
        for step in steps
        for key, value in finite(step.metrics).items()
        if key != ROLLOUTS or 0 <= value < _MOST_ROLLOUTS
    ]
    upsert(session, DbMetricPoint, points)
    validated = max(
        (step for step in steps if step.validation_rewards), key=lambda step: step.step, default=None
    )
    if validated is not None and validated.step >= _validated_step(run):
        run.metrics = {VALIDATION: {"step": validated.step, "rewards": finite(validated.validation_rewards)}}
    known, latest = run.results or {}, max(step.step for step in steps)
    reached = max(known.get("current_step", 0), latest)
    run.results = _results(session, run.id, current_step=reached, total_steps=known.get("total_steps"))
    if latest > _furthest(run):
        run.training_state = {**(run.training_state or {}), "furthest": latest}


def _validated_step(run: DbRun) -> int:
    """Return the step of the validation that is kept row by row; -1 when there is none."""
    return int(((run.metrics or {}).get(VALIDATION) or {}).get("step", -1))


def _results(session: Session, run_id: str, *, current_step: int, total_steps: int | None) -> dict[str, Any]:
    """Return what lists show of a run; derived from its points, so that repeating a step changes nothing."""
    mine = DbMetricPoint.run_id == run_id
    rewards = select(DbMetricPoint.value).where(mine, DbMetricPoint.key == TRAINING_REWARD)
    reward = session.scalar(rewards.order_by(DbMetricPoint.step.desc()).limit(1))
    counts = select(func.sum(DbMetricPoint.value)).where(mine, DbMetricPoint.key == ROLLOUTS)
    rollouts = session.scalar(counts)
    known = {
        "current_step": current_step,
        "total_steps": total_steps,
        "reward": reward,
        "examples_processed_count": int(rollouts or 0),
    }
    return {key: value for key, value in known.items() if value is not None}


# -- the newest validation -----------------------------------------------------------------------


def _replace_validation(
    session: Session, run: DbRun, part: ValidationPart, sent: Mapping[str, BlobInfo]
) -> list[str]:
    """Make the run's files those of one validation, in place of those of the one before."""
    before = _stored_validation(session, run)
    if before == part.version:
        return []
    if part.version is not None and not is_version(part.version):
        raise _refused(f"a validation called {part.version!r}")
    files = [_validation_file(run, part.version, each, sent) for each in part.files]
    if len({file.path for file in files}) < len(files):
        raise _refused("a validation with the same file twice")
    session.execute(delete(DbRunFile).where(DbRunFile.run_id == run.id, DbRunFile.kind == VALIDATION))
    session.add_all(files)
    return [f"runs/{run.id}/{blobs_below(before)}"] if before is not None else []


def _validation_file(
    run: DbRun, version: str | None, part: RunFilePart, sent: Mapping[str, BlobInfo]
) -> DbRunFile:
    folder, _, name = part.path.partition("/")
    is_below = (
        version is not None and part.blob is not None and part.blob.startswith(f"{blobs_below(version)}/")
    )
    if part.kind != VALIDATION or folder != VALIDATION or not _FILE_NAME.fullmatch(name) or not is_below:
        raise _refused(f"the file {part.path!r} of a validation")
    return DbRunFile(**file_row(run.id, run.revision, part, sent))


def _stored_validation(session: Session, run: DbRun) -> str | None:
    """Return the version of the validation that the run has."""
    at = (DbRunFile.run_id == run.id, DbRunFile.path == VALIDATION_SAMPLES)
    key = session.scalar(select(DbRunFile.blob_key).where(*at))
    return version_in_key(key) if key is not None else None


# -- checkpoints ---------------------------------------------------------------------------------


def _keep_checkpoint(
    session: Session, run: DbRun, part: CheckpointPart, sent: Mapping[str, BlobInfo], now: datetime
) -> str:
    """Keep an adapter as a checkpoint of the run, and return its name; sent again, it replaces itself."""
    if not part.files:
        raise _refused("a checkpoint without files")
    files = {name: _file(run, name, upload, CHECKPOINTS, sent) for name, upload in part.files.items()}
    at = (DbLoraModel.run_id == run.id, DbLoraModel.step == part.step)
    model = session.scalar(select(DbLoraModel).where(*at))
    if model is None:
        model = DbLoraModel(
            id=new_id("lora"),
            workspace_id=run.workspace_id,
            run_id=run.id,
            name=f"{run.name}-step-{part.step}",
            base_model=part.base_model,
            step=part.step,
            created_at=now,
        )
        session.add(model)
    model.files, model.reward, model.validation_reward = files, part.reward, part.validation_reward
    return model.name


def _keep_resume(run: DbRun, part: CheckpointPart, sent: Mapping[str, BlobInfo]) -> list[str]:
    """Let other machines resume from this archive instead of the former one; an older one changes nothing."""
    if list(part.files) != [RESUME_FILE]:
        raise _refused("a resume archive that is not one file")
    stored, before = _file(run, RESUME_FILE, part.files[RESUME_FILE], RESUME, sent), resume_archive_of(run)
    if before is None or part.step >= before["step"]:
        run.training_state = {**(run.training_state or {}), "resume": {"step": part.step, **stored}}
    # If a worker names two archives in one folder, the kept one stays.
    kept = resume_archive_of(run) or stored
    folders = {_folder(each) for each in (before, stored) if each is not None}
    return sorted(folders - {_folder(kept)})


def _folder(archive: Mapping[str, Any]) -> str:
    """Return the prefix below which an archive is the only blob."""
    return str(archive["blob_key"]).rpartition("/")[0]


def _file(run: DbRun, name: str, upload: str, below: str, sent: Mapping[str, BlobInfo]) -> dict[str, Any]:
    if not _FILE_NAME.fullmatch(name) or not upload.startswith(f"{below}/") or upload.count("/") != 2:
        raise _refused(f"the file {name!r} of a checkpoint")
    info = sent[upload]
    return {"blob_key": blob_key(run.id, upload), "size": info.size, "sha256": info.sha256}


def _refused(what: str) -> OsmosisError:
    return OsmosisError(f"the worker reported {what}, which is invalid.", code="VALIDATION")

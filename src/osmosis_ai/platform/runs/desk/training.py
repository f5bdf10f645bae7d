"""Store what a training worker sends: its curve, newest validation and checkpoints.

All functions run in their caller's transaction, which has verified the lease. Rows are keyed by their subject (run,
metric and step; run and step; validation version), so an exchange can be repeated. Blobs are stored before;
unreferenced ones are returned to the caller, who deletes them after the commit.

A run has the files of at most one validation and at most one resume archive, the newest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import (
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
from osmosis_ai.platform.runs.desk.uploads import check_part
from osmosis_ai.platform.runs.read.training_curves import VALIDATION
from osmosis_ai.platform.runs.resume_state import folder_of, resume_archive_of
from osmosis_ai.platform.runs.training_names import (
    CHECKPOINTS,
    KIND,
    RESUME,
    RESUME_FILE,
    SAMPLES_PATH,
    blobs_below,
    is_version,
    version_in_key,
)
from osmosis_ai.training.runs.metrics import TRAINING_REWARD, finite

ROLLOUTS = "rollout/samples"
"""The metric that counts the rollouts of a step; their sum is what a run has processed."""
_MOST_ROLLOUTS = 1 << 31
"""No step has so many, and a sum of such has no end that a number could not tell."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class AppliedTraining:
    """What became of a worker's news."""

    checkpoints: dict[int, str]
    obsolete: list[str]
    is_further: bool


def apply_training(
    session: Session, run: DbRun, news: TrainingNews, sent: Mapping[str, BlobInfo], now: datetime
) -> AppliedTraining:
    """Write ``news`` of ``run``."""
    before = _furthest(run)
    if news.start is not None:
        _begin(session, run, news.start)
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
    resume = resume_archive_of(run)
    return StoredTraining(
        checkpoint_steps=sorted(kept),
        validation=_stored_validation(session, run),
        resume_step=resume["step"] if resume else None,
        resume=(
            InputDownload(
                url=sign(resume["blob_key"], RESUME_FILE), size=resume["size"], sha256=resume["sha256"]
            )
            if resume
            else None
        ),
    )


def _furthest(run: DbRun) -> int:
    """Return the furthest step that any session of the run has come to."""
    return int((run.training_state or {}).get("furthest", 0))


# -- the curve ---------------------------------------------------------------------------------


def _begin(session: Session, run: DbRun, start: TrainingStart) -> None:
    """Record the planned steps and the starting point, once per attempt: a late repetition would undo steps."""
    state = run.training_state or {}
    if state.get("begun") == run.attempt:
        return
    run.training_state = {**state, "begun": run.attempt}
    later = (DbMetricPoint.run_id == run.id, DbMetricPoint.step > start.steps_done)
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
    validated = max((step for step in steps if step.validation_rewards), key=_step, default=None)
    if validated is not None and validated.step >= _validated_step(run):
        run.metrics = {VALIDATION: {"step": validated.step, "rewards": finite(validated.validation_rewards)}}
    known, latest = run.results or {}, max(step.step for step in steps)
    run.results = _results(
        session,
        run.id,
        current_step=max(known.get("current_step", 0), latest),
        total_steps=known.get("total_steps"),
    )
    if latest > _furthest(run):
        run.training_state = {**(run.training_state or {}), "furthest": latest}


def _step(step: TrainingStep) -> int:
    return step.step


def _validated_step(run: DbRun) -> int:
    """Return the step of the validation that is kept row by row; -1 when there is none."""
    return int(((run.metrics or {}).get(VALIDATION) or {}).get("step", -1))


def _results(session: Session, run_id: str, *, current_step: int, total_steps: int | None) -> dict[str, Any]:
    """Return what lists show of a run; derived from its points, so that repeating a step changes nothing."""
    mine = DbMetricPoint.run_id == run_id
    reward = session.scalar(
        select(DbMetricPoint.value)
        .where(mine, DbMetricPoint.key == TRAINING_REWARD)
        .order_by(DbMetricPoint.step.desc())
        .limit(1)
    )
    rollouts = session.scalar(
        select(func.sum(DbMetricPoint.value)).where(mine, DbMetricPoint.key == ROLLOUTS)
    )
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
    session.execute(delete(DbRunFile).where(DbRunFile.run_id == run.id, DbRunFile.kind == KIND))
    session.add_all(files)
    return [f"runs/{run.id}/{blobs_below(before)}"] if before is not None else []


def _validation_file(
    run: DbRun, version: str | None, part: RunFilePart, sent: Mapping[str, BlobInfo]
) -> DbRunFile:
    folder, _, name = part.path.partition("/")
    below = part.blob.startswith(f"{blobs_below(version)}/") if version is not None else False
    if part.kind != KIND or folder != KIND or not _FILE_NAME.fullmatch(name) or not below:
        raise _refused(f"the file {part.path!r} of a validation")
    blob = _stored(part.blob, sent)
    check_part(part, blob)
    return DbRunFile(
        run_id=run.id,
        path=part.path,
        kind=KIND,
        size=part.size,
        blob_key=_key(run, part.blob),
        shard_offset=part.shard_offset,
        shard_length=part.shard_length,
        sha256=blob.sha256 if part.shard_offset is None else None,
    )


def _stored_validation(session: Session, run: DbRun) -> str | None:
    """Return the version of the validation that the run has."""
    at = (DbRunFile.run_id == run.id, DbRunFile.path == SAMPLES_PATH)
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
    """Have other machines go on from this archive, and not from the one before; one that is older changes nothing."""
    if list(part.files) != [RESUME_FILE]:
        raise _refused("an archive to go on from that is not one file")
    stored, before = _file(run, RESUME_FILE, part.files[RESUME_FILE], RESUME, sent), resume_archive_of(run)
    is_kept = before is None or part.step >= before["step"]
    if is_kept:
        run.training_state = {**(run.training_state or {}), "resume": {"step": part.step, **stored}}
    # Whatever a worker says of two archives in one folder, the one that is gone on from stays.
    folders = {folder_of(each["blob_key"]) for each in (before, stored) if each is not None}
    kept = resume_archive_of(run)
    return sorted(folders - {folder_of(kept["blob_key"])} if kept is not None else folders)


def _file(run: DbRun, name: str, upload: str, below: str, sent: Mapping[str, BlobInfo]) -> dict[str, Any]:
    if not _FILE_NAME.fullmatch(name) or not upload.startswith(f"{below}/") or upload.count("/") != 2:
        raise _refused(f"the file {name!r} of a checkpoint")
    info = _stored(upload, sent)
    return {"blob_key": _key(run, upload), "size": info.size, "sha256": info.sha256}


def _key(run: DbRun, upload: str) -> str:
    return f"runs/{run.id}/{upload}"


def _stored(upload: str, sent: Mapping[str, BlobInfo]) -> BlobInfo:
    try:
        return sent[upload]
    except KeyError:
        raise _refused(f"the blob {upload!r}, which was not sent") from None


def _refused(what: str) -> OsmosisError:
    return OsmosisError(f"the worker names {what}.", code="VALIDATION")

"""Reports of workers: files of their runs, and the curve, newest validation and checkpoints of a training.

Small files travel inline, others as blobs that workers upload by signed URLs first. A blob's size and digest are
announced before it is sent, and a run has limits on open uploads and total size. The store is never asked inside a
transaction.

Reports of training workers are written in the caller's transaction, which has verified the lease. Rows are keyed by
their subject (run, metric and step; run and step; validation version), so a report can be repeated. Obsolete blobs are
returned to the caller, who deletes them after the commit. A run has the files of at most one validation and at most one
resume archive, the newest.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from osmosis_ai.api.models import workers as wire
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.attempt_files import attempt_in_path
from osmosis_ai.platform.blobs.signing import UrlSigner
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobStore,
    BlobUpload,
    PartsMismatch,
    UploadNotFound,
    check_key,
)
from osmosis_ai.platform.blobs.upload_session import UnexpectedBytesError, UploadSession, new_upload
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import (
    DbConversation,
    DbLoraModel,
    DbMetricPoint,
    DbRun,
    DbRunFile,
    DbRunUpload,
    new_id,
)
from osmosis_ai.platform.runs.lifecycle import (
    CHECKPOINTS,
    RESUME,
    RESUME_FILE,
    VALIDATION,
    VALIDATION_SAMPLES,
    UploadGoneError,
    UploadLimitError,
    blobs_below,
    is_version,
    version_in_key,
)
from osmosis_ai.platform.runs.reopening import resume_archive_of
from osmosis_ai.training.runs.metrics import TRAINING_REWARD, finite

URL_TTL = timedelta(hours=1)
PART_BYTES = 512 << 20
"""The size of a part of a large blob: S3 accepts up to 5 GiB per part and 10,000 parts."""
MOST_OPEN = 1024
"""Uploads of a run that may be open at a time."""
_GB = 10**9
_TRAINING_FOLDERS = frozenset({CHECKPOINTS, RESUME, VALIDATION})


@dataclass(frozen=True, slots=True)
class BegunUpload:
    """An upload that a worker may send; ``is_new``: it has no row yet."""

    wanted: wire.WantedUpload
    upload: BlobUpload
    grant: wire.UploadGrant
    is_new: bool = False


@dataclass
class RunUploads:
    """The uploads of workers for active runs, which may have ``most_bytes`` each."""

    db: Database
    blobs: BlobStore
    signer: UrlSigner
    most_bytes: float = math.inf

    def complete(self, run_id: str, sent: Sequence[wire.SentUpload]) -> None:
        """Create the blobs of completed uploads; may be repeated."""
        known = self._known(run_id, [each.name for each in sent])
        for each in sent:
            row = known.get(each.name)
            if row is None or row.upload_id != each.id:
                raise _gone(each.name)
            if not row.is_stored:
                self._complete(row, [each.etag, *each.further_etags])

    def begin(self, run_id: str, wanted: Sequence[wire.WantedUpload]) -> list[BegunUpload]:
        """Begin uploads at the store; :meth:`note_wanted` records them."""
        known = self._known(run_id, [each.name for each in wanted])
        begun: list[BegunUpload] = []
        try:
            for each in wanted:
                begun.append(self._begin(run_id, each, known.get(each.name)))
        except BaseException:
            self.give_up(begun)
            raise
        return begun

    def note_wanted(self, session: Session, run_id: str, begun: Sequence[BegunUpload]) -> list[BlobUpload]:
        """Record new uploads in the transaction that holds their run; return those that they replace."""
        new = [each for each in begun if each.is_new]
        if not new:
            return []
        more = sum(each.wanted.size for each in new)
        mine = update(DbRun).where(DbRun.id == run_id).values(upload_bytes=DbRun.upload_bytes + more)
        session.execute(mine)
        if (session.scalar(select(DbRun.upload_bytes).where(DbRun.id == run_id)) or 0) > self.most_bytes:
            raise UploadLimitError(
                f"a run may upload at most {self.most_bytes / _GB:g} GB of files, and this one has more.",
                hint="raise `OSMOSIS_RUN_UPLOAD_GB` on the platform",
                details={"bytes": self.most_bytes},
            )
        replaced: list[BlobUpload] = []
        for each in new:
            name, upload = each.wanted.name, each.upload
            row = session.get(DbRunUpload, (run_id, name))
            if row is not None and row.is_stored:
                raise ConflictError(
                    f"`{name}` was stored by another call; repeat this one.", details={"upload": name}
                )
            if row is not None:
                replaced.append(BlobUpload(row.upload_id, upload.key))
            described = {"size": each.wanted.size, "sha256": each.wanted.sha256, "upload_id": upload.id}
            session.merge(DbRunUpload(run_id=run_id, name=name, **described, is_stored=False))
            session.flush()
        is_open = DbRunUpload.run_id == run_id, ~DbRunUpload.is_stored
        if (session.scalar(select(func.count()).where(*is_open)) or 0) > MOST_OPEN:
            raise UploadLimitError(
                f"a run may have at most {MOST_OPEN} uploads open, and this one has more.",
                details={"uploads": MOST_OPEN},
            )
        return replaced

    def give_up(self, begun: Sequence[BegunUpload]) -> None:
        """Abort uploads that were begun and not recorded; maintenance does if the store is unavailable."""
        self._abort([each.upload for each in begun if each.is_new])

    def clear(self, replaced: Sequence[BlobUpload], obsolete: Sequence[str]) -> None:
        """Abort replaced uploads, and delete the blobs below obsolete prefixes."""
        self._abort(replaced)
        for prefix in obsolete:
            self.blobs.delete_below(prefix)

    def forget(self, run_id: str) -> None:
        """Abort the open uploads of an ended run, and delete blobs that no file names."""
        mine = DbRunUpload.run_id == run_id
        with self.db.session() as session:
            rows = session.scalars(select(DbRunUpload).where(mine)).all()
            named = set(session.scalars(select(DbRunFile.blob_key).where(DbRunFile.run_id == run_id)))
        for row in rows:
            key = blob_key(run_id, row.name)
            if not row.is_stored:
                self.blobs.abort_upload(BlobUpload(row.upload_id, key))
            elif row.name.startswith("files/") and key not in named:
                self.blobs.delete(key)
        if rows:
            with self.db.transaction() as session:
                session.execute(delete(DbRunUpload).where(mine))

    def _abort(self, uploads: Sequence[BlobUpload]) -> None:
        for upload in uploads:
            with suppress(OSError, OsmosisError):
                self.blobs.abort_upload(upload)

    def _grant(self, name: str, session: UploadSession, received: Mapping[int, str]) -> wire.UploadGrant:
        # A worker knows the platform's address better than the platform.
        first, *further = (
            url.removeprefix(self.signer.base_url) for url in session.urls(self.blobs, URL_TTL)
        )
        parts: dict[str, Any] = {}
        if further:
            parts = {"further_urls": further, "part_size": session.part_size, "received": received}
        return wire.UploadGrant(name=name, id=session.upload.id, url=first, **parts)

    def _known(self, run_id: str, names: Collection[str]) -> dict[str, DbRunUpload]:
        if not names:
            return {}
        named = (DbRunUpload.run_id == run_id, DbRunUpload.name.in_(names))
        return {row.name: row for row in self.db.scalars(select(DbRunUpload).where(*named))}

    def _complete(self, row: DbRunUpload, etags: Sequence[str]) -> None:
        is_right = True
        try:
            sending = _session(BlobUpload(row.upload_id, blob_key(row.run_id, row.name)), row)
            sending.complete(self.blobs, [etag.strip('"') for etag in etags])
        except (UploadNotFound, PartsMismatch):
            raise _gone(row.name) from None
        except UnexpectedBytesError:
            is_right = False
        with self.db.transaction() as session:
            current = session.get(DbRunUpload, (row.run_id, row.name), with_for_update=True)
            if current is not None and current.upload_id == row.upload_id:
                current.is_stored = is_right
                if not is_right:
                    session.delete(current)
        if not is_right:
            raise UploadGoneError(
                f"the received bytes of `{row.name}` differ from the announced size or digest.",
                details={"upload": row.name},
            )

    def _begin(self, run_id: str, wanted: wire.WantedUpload, row: DbRunUpload | None) -> BegunUpload:
        name, key = wanted.name, blob_key(run_id, wanted.name)
        if row is not None and (row.size, row.sha256) == (wanted.size, wanted.sha256):
            known = _session(BlobUpload(row.upload_id, key), row)
            if row.is_stored:
                return BegunUpload(
                    wanted, known.upload, wire.UploadGrant(name=name, id=row.upload_id, url="")
                )
            if (received := known.received(self.blobs)) is not None:
                return BegunUpload(wanted, known.upload, self._grant(name, known, received))
        elif row is not None and row.is_stored:
            raise ConflictError(
                f"`{wanted.name}` is already stored with different content.", details={"upload": wanted.name}
            )
        with new_upload(self.blobs, key) as upload:
            grant = self._grant(name, _session(upload, wanted), {})
            return BegunUpload(wanted, upload, grant, is_new=True)


def require_own_names(shard_id: str, names: Iterable[str]) -> None:
    """Refuse names of uploads that belong neither to a shard's files nor to a training run."""
    for name in names:
        folder, _, rest = name.partition("/")
        if name.rpartition("/")[0] != f"files/{shard_id}" and not (rest and folder in _TRAINING_FOLDERS):
            raise OsmosisError(f"`{name}` is not a name for an upload of this shard.")


def check_contents(parts: Sequence[wire.RunFilePart]) -> None:
    """Refuse inline files that do not unpack to their size."""
    for part in parts:
        if part.content is not None:
            unpacking, size = zlib.decompressobj(), None
            with suppress(zlib.error):
                size = len(unpacking.decompress(part.content, part.size + 1))
            if size != part.size or not unpacking.eof or unpacking.unused_data:
                raise _invalid(part, "its content does not unpack to its size")


def attempt_of(part: wire.RunFilePart) -> tuple[int, int]:
    """Return the row and number of the attempt that a file of an evaluation belongs to."""
    found = attempt_in_path(part.path)
    if found is None or found[0] != part.kind or part.length is not None:
        raise _invalid(part, "an attempt has no such file")
    return found[1:]


def take_files(session: Session, run_id: str, revision: int, parts: Sequence[wire.RunFilePart]) -> None:
    """Write the rows of a run's files, in the transaction that holds the run."""
    blobs = stored_blobs(session, run_id, {part.blob for part in parts if part.blob is not None})
    upsert(session, DbRunFile, [file_row(run_id, revision, part, blobs) for part in parts])
    newest = {part.path: part.content for part in parts}
    replaced = DbConversation.run_id == run_id, DbConversation.path.in_(newest)
    session.execute(delete(DbConversation).where(*replaced))
    inline = [
        {"run_id": run_id, "path": path, "content": content}
        for path, content in newest.items()
        if content is not None
    ]
    if inline:
        session.execute(insert(DbConversation), inline)


def file_row(
    run_id: str, revision: int, part: wire.RunFilePart, blobs: Mapping[str, BlobInfo]
) -> dict[str, Any]:
    """Return the row of a file, if it fits the upload that it names."""
    blob = blobs[part.blob] if part.blob is not None else None
    if blob is not None:
        end = (part.offset or 0) + (part.size if part.length is None else part.length)
        if end > blob.size or (part.length is None and end < blob.size):
            raise _invalid(part, "its upload has another size")
    return {
        **part.model_dump(include={"path", "kind", "source_row_index", "size", "offset", "length"}),
        "run_id": run_id,
        "blob_key": blob_key(run_id, part.blob) if part.blob is not None else None,
        "sha256": blob.sha256 if blob is not None and part.length is None else None,
        "revision": revision,
    }


def stored_blobs(session: Session, run_id: str, names: Collection[str]) -> Mapping[str, BlobInfo]:
    """Return the blobs of these uploads; an UploadGoneError if one has not arrived."""
    if not names:
        return {}
    sent = (DbRunUpload.run_id == run_id, DbRunUpload.name.in_(names), DbRunUpload.is_stored)
    rows = session.scalars(select(DbRunUpload).where(*sent))
    found = {row.name: BlobInfo(row.size, row.sha256) for row in rows}
    for name in names:
        if name not in found:
            raise _gone(name)
    return found


def blob_key(run_id: str, name: str) -> str:
    try:
        return check_key(f"runs/{run_id}/{name}")
    except ValueError:
        raise OsmosisError(f"{name[:160]!r} cannot be the name of a blob.") from None


def _session(upload: BlobUpload, announced: DbRunUpload | wire.WantedUpload) -> UploadSession:
    return UploadSession(upload=upload, size=announced.size, sha256=announced.sha256, part_size=PART_BYTES)


def _invalid(part: wire.RunFilePart, problem: str) -> OsmosisError:
    shown = part.path[:200]
    return OsmosisError(f"{shown!r} is not a valid file of a run: {problem}.", details={"path": shown})


def _gone(name: str) -> UploadGoneError:
    return UploadGoneError(
        f"`{name[:160]}` has not arrived: request and send it again.", details={"upload": name[:160]}
    )


ROLLOUTS = "rollout/samples"
"""The metric that counts the rollouts of a step; their sum is what a run has processed."""
_MOST_ROLLOUTS = 1 << 31
"""No step has so many, and sums of accepted values stay finite."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class AppliedTraining:
    """The result: names of kept checkpoints by step, prefixes of obsolete blobs, and whether a new step was reached."""

    checkpoints: dict[int, str]
    obsolete: list[str]
    has_progress: bool


def apply_training(
    session: Session, run: DbRun, attempt: int, news: wire.TrainingNews, now: datetime
) -> AppliedTraining:
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


def stored_training(session: Session, run: DbRun, sign: Callable[[str, str], str]) -> wire.StoredTraining:
    """Return the stored state of ``run`` for the worker that continues it."""
    kept = session.scalars(select(DbLoraModel.step).where(DbLoraModel.run_id == run.id))
    stored = wire.StoredTraining(checkpoint_steps=sorted(kept), validation=_stored_validation(session, run))
    if (resume := resume_archive_of(run)) is not None:
        url = sign(resume["blob_key"], RESUME_FILE)
        stored.resume = wire.InputDownload(url=url, size=resume["size"], sha256=resume["sha256"])
        stored.resume_step = resume["step"]
    return stored


def _furthest(run: DbRun) -> int:
    """Return the furthest step that any session of the run has come to."""
    return int((run.training_state or {}).get("furthest", 0))


def _begin(session: Session, run: DbRun, attempt: int, start: wire.TrainingStart) -> None:
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


def _append_steps(session: Session, run: DbRun, steps: Sequence[wire.TrainingStep]) -> None:
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


def _replace_validation(
    session: Session, run: DbRun, part: wire.ValidationPart, sent: Mapping[str, BlobInfo]
) -> list[str]:
    """Replace the files of the previous validation by those of this one."""
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
    run: DbRun, version: str | None, part: wire.RunFilePart, sent: Mapping[str, BlobInfo]
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


def _keep_checkpoint(
    session: Session, run: DbRun, part: wire.CheckpointPart, sent: Mapping[str, BlobInfo], now: datetime
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


def _keep_resume(run: DbRun, part: wire.CheckpointPart, sent: Mapping[str, BlobInfo]) -> list[str]:
    """Let other machines resume from this archive instead of the former one; an older one changes nothing."""
    if list(part.files) != [RESUME_FILE]:
        raise _refused("a resume archive that is not one file")
    stored, before = _file(run, RESUME_FILE, part.files[RESUME_FILE], RESUME, sent), resume_archive_of(run)
    if before is None or part.step >= before["step"]:
        run.training_state = {**(run.training_state or {}), "resume": {"step": part.step, **stored}}
    # An archive is the only blob of its folder; if a worker names two in one, the kept one stays.
    kept = str((resume_archive_of(run) or stored)["blob_key"]).rpartition("/")[0]
    folders = {str(each["blob_key"]).rpartition("/")[0] for each in (before, stored) if each is not None}
    return sorted(folders - {kept})


def _file(run: DbRun, name: str, upload: str, below: str, sent: Mapping[str, BlobInfo]) -> dict[str, Any]:
    if not _FILE_NAME.fullmatch(name) or not upload.startswith(f"{below}/") or upload.count("/") != 2:
        raise _refused(f"the file {name!r} of a checkpoint")
    info = sent[upload]
    return {"blob_key": blob_key(run.id, upload), "size": info.size, "sha256": info.sha256}


def _refused(what: str) -> OsmosisError:
    return OsmosisError(f"the worker reported {what}, which is invalid.", code="VALIDATION")

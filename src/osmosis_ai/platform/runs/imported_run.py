"""Create a run from an uploaded evaluation.

All input is checked. Names are checked when the upload is announced, before any byte is sent; bytes by their digests on
arrival; results when the run is created: one entry per attempt on each row, and exactly the announced files of each
attempt. Everything is read and checked before anything is written, and metrics are computed here.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, NamedTuple, cast

import orjson
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.base import wire_time
from osmosis_ai.api.models.eval_imports import SCHEMA_VERSION, EvalImportStart, ImportedRun, ImportFile
from osmosis_ai.controller.outcomes import ERROR_SOURCES
from osmosis_ai.controller.record import TerminalRecord, previews_of
from osmosis_ai.datasets.selection import Selection, parse_ranges, select_rows
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.conversation import Conversation, ConversationStep, as_messages, read_conversation
from osmosis_ai.evaluation.lenient_json import as_table, as_text
from osmosis_ai.evaluation.manifest import VERSIONS
from osmosis_ai.evaluation.metrics import compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import (
    ARTIFACTS,
    INDEX,
    LOG,
    PROGRESS,
    RESERVED_ARTIFACT,
    ROLLOUT_ID,
    TRAJECTORY_NAME,
    TRIALS,
    IndexEntry,
    name_problem,
    read_index,
)
from osmosis_ai.evaluation.run_log import parse_line
from osmosis_ai.llm.replies import canonical
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import (
    DbDataset,
    DbEvalImport,
    DbEvalImportFile,
    DbRollout,
    DbRun,
    DbRunFile,
    DbSample,
    DbUser,
)
from osmosis_ai.platform.log_lines import Level, LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.journals import pack_journal, sample_row
from osmosis_ai.platform.runs.requests import RowSelection
from osmosis_ai.platform.runs.results import summarised_results
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.extra_fields import read_grader_notes
from osmosis_ai.rollout.trajectory import parse_timestamp, trajectory_problem

_GIB, _MIB = 1 << 30, 1 << 20
_PROVENANCE = ("sdk_version", "git_head", "git_branch", "git_dirty", "config_branch", "config_commit_sha")
_MOST_ROWS = 10**9
_ROW_DIGEST = re.compile(r"[0-9a-f]{32}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_RESERVED_NAME = re.compile(r"imports|check|run_[0-9a-f]{24}")
"""Routes next to those of runs, and ids of runs."""
_NAME_TRIES = 1000


# The limits of an uploaded run; sizes in bytes.
MOST_FILES, MOST_SAMPLES = 30_000, 100_000
MOST_TOTAL_BYTES, MOST_FILE_BYTES = 5 * _GIB, _GIB
MOST_INDEX_BYTES, MOST_TRAJECTORY_BYTES, MOST_PROGRESS_BYTES = 64 * _MIB, 64 * _MIB, 64 * 1024
_LARGEST_FILES = {INDEX: MOST_INDEX_BYTES, PROGRESS: MOST_PROGRESS_BYTES, LOG: 64 * _MIB}
_MOST_LOG_LINES = 10_000
"""Of a longer log, the last lines are kept."""
_DETAILS_S = 120.0
"""How long trajectories are read for details that the index lacks."""


# -- the announcement --------------------------------------------------------------------------------


def check_announcement(start: EvalImportStart) -> None:
    _check_versions(start)
    _check_texts(start.run)
    for moment in (start.run.started_at, start.run.completed_at):
        # Moments at the ends of the calendar do not exist in other time zones.
        if not 2000 <= moment.year <= 2999:
            raise _refused(f"the year {moment.year} is not that of any run", "run.started_at")
    if start.run.completed_at < start.run.started_at:
        raise _refused("the run ends before it starts", "run.completed_at")
    samples = len(selected_rows(start.run)) * start.run.evaluation_config.n
    if not 1 <= samples <= MOST_SAMPLES:
        raise _refused(
            f"the run has {samples:,} attempts; this platform accepts 1 to {MOST_SAMPLES:,}",
            "run.evaluation_config.n",
        )
    _check_files(start.files)


def selected_rows(run: ImportedRun) -> Selection:
    described = run.experiment_config.dataset.selected_source_rows
    # Count before expanding the ranges: a hostile range can be huge.
    if sum(last - first + 1 for first, last in parse_ranges(described)) > MOST_SAMPLES:
        raise _refused(f"it uses more than {MOST_SAMPLES:,} rows", "dataset")
    return select_rows(_MOST_ROWS, limit=None, rows=described)


def known_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known facts about where a run came from that can be stored and shown."""
    known = {name: provenance.get(name) for name in _PROVENANCE}
    return {
        name: value
        for name, value in known.items()
        if (isinstance(value, str) and value.isprintable() and 0 < len(value) <= 255)
        or (name == "git_dirty" and isinstance(value, bool))
    }


class TrialFile(NamedTuple):
    """A file of one attempt: its trajectory, or an artifact by its path below ``artifacts/``."""

    rollout_id: str
    trajectory: str | None = None
    artifact: str | None = None


def _trial_file(path: str) -> TrialFile | None:
    """Return the attempt and kind of the file at ``path``, relative to the run's directory; None for other files."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != TRIALS or not ROLLOUT_ID.fullmatch(parts[1]):
        return None
    if len(parts) == 3 and TRAJECTORY_NAME.fullmatch(parts[2]):
        return TrialFile(parts[1], trajectory=parts[2])
    if len(parts) > 3 and parts[2] == ARTIFACTS and parts[3:] != [RESERVED_ARTIFACT]:
        return TrialFile(parts[1], artifact="/".join(parts[3:]))
    return None


def _check_versions(start: EvalImportStart) -> None:
    theirs = {"schema_version": start.schema_version, **start.schema_versions}
    ours: Mapping[str, Any] = {"schema_version": SCHEMA_VERSION, **VERSIONS}
    for name, version in theirs.items():
        known = ours.get(name)
        # The protocol between controller and agent does not change a run's files.
        if known is not None and name != "rollout_protocol" and _number(version) > _number(known):
            raise OsmosisError(
                f"this run is of a newer format than this platform reads: `{name}` is {str(version)[:40]}, known is {known}.",
                details={"field": name},
                hint="upgrade the platform",
            )


def _number(version: Any) -> tuple[int, ...]:
    """Return a version as comparable numbers; an unreadable one is newer than all."""
    parts = str(version)[:40].split(".")
    return tuple(map(int, parts)) if all(p.isascii() and p.isdigit() for p in parts) else (10**9,)


def _check_texts(run: ImportedRun) -> None:
    experiment = run.experiment_config
    rollout, dataset = experiment.rollout, experiment.dataset
    for field, text, longest in (
        ("run.name", run.name, 96),
        ("rollout.name", rollout.name, 255),
        ("entrypoint", experiment.entrypoint, 1024),
        ("model_path", experiment.model_path, 255),
        ("dataset.name", dataset.name, 255),
    ):
        if not (0 < len(text) <= longest and text.isprintable() and text == text.strip()):
            raise _refused(f"`{field}` must be 1 to {longest} printable characters", field)
    for other in (rollout.source_digest, rollout.branch, rollout.commit_sha, dataset.sha256):
        if other is not None and not (len(other) <= 255 and other.isprintable()):
            raise _refused("a branch, commit or digest has characters that none has", "run")
    if "/" in run.name or run.name in (".", ".."):
        raise _refused("the name of the run is not a valid directory name", "run.name")


def _check_files(files: list[ImportFile]) -> None:
    if len(files) > MOST_FILES:
        raise _refused(f"{len(files):,} files; this platform takes {MOST_FILES:,} of a run", "files")
    for file in files:
        trial = _trial_file(file.path)
        largest = MOST_TRAJECTORY_BYTES if trial and trial.trajectory else MOST_FILE_BYTES
        largest = _LARGEST_FILES.get(file.path, largest)
        problem = name_problem(file.path)
        if problem is None and trial is None and file.path not in _LARGEST_FILES:
            problem = "it is not a file of an uploaded run"
        if problem is None and file.size > largest:
            problem = f"it has {file.size:,} bytes, and {largest:,} are the most"
        if problem is not None:
            raise _refused(f"the file {file.path[:200]!r} cannot be uploaded: {problem}", "files")
    paths = {file.path for file in files}
    if len(paths) < len(files):
        raise _refused("a file is named twice", "files")
    for path in paths:
        if clash := paths.intersection(map(str, PurePosixPath(path).parents)):
            raise _refused(f"{min(clash)[:200]!r} is a file and a directory at once", "files")
    if missing := {INDEX, PROGRESS} - paths:
        raise _refused(f"`{min(missing)}` is missing", "files")
    total = sum(file.size for file in files)
    if total > MOST_TOTAL_BYTES:
        raise _refused(
            f"the files have {total:,} bytes; this platform takes {MOST_TOTAL_BYTES:,} of a run", "files"
        )


def _refused(what: str, field: str) -> OsmosisError:
    return OsmosisError(f"this run cannot be uploaded: {what}.", details={"field": field})


# -- the run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReceivedRun:
    """A whole upload, read and found consistent, with a record for each entry of its index."""

    upload: DbEvalImport
    announced: EvalImportStart
    rows: Selection
    total_rows: int
    entries: Sequence[IndexEntry]
    records: Sequence[TerminalRecord]
    duration_ms: float
    files: Sequence[DbEvalImportFile]
    log: Sequence[LogLine]

    @classmethod
    def read(cls, upload: DbEvalImport, files: Sequence[DbEvalImportFile], blobs: BlobStore) -> ReceivedRun:
        announced = EvalImportStart.model_validate(upload.announced)
        rows = selected_rows(announced.run)
        by_path = {file.path: file for file in files}
        n = announced.run.evaluation_config.n
        total_rows = _read_progress(blobs, by_path[PROGRESS], rows, n)
        with blobs.open(by_path[INDEX].blob_key) as lines:
            entries = read_index(lines, rows=len(rows), n=n)
        details = _read_trajectories(blobs, by_path, entries)
        # Only trajectories have the time without the pauses between sessions.
        durations = [duration for each in details.values() if (duration := each.pop("run_duration_ms", None))]
        whole_ms = (announced.run.completed_at - announced.run.started_at).total_seconds() * 1000
        records = [
            TerminalRecord(
                entry.row_index,
                entry.run_index,
                entry.rollout_id,
                entry.status,
                duration_ms=entry.duration_ms,  # type: ignore[arg-type] # absent: unknown
                reward=entry.reward,
                tokens=entry.tokens,
                error_type=entry.error_type,
                source_row_index=rows.indices[entry.row_index],
                **details.get(entry.rollout_id, {}),
            )
            for entry in entries
        ]
        log = _read_log(blobs, by_path[LOG]) if LOG in by_path else []
        duration_ms = min(whole_ms, max(durations, default=whole_ms))
        return cls(upload, announced, rows, total_rows, entries, records, duration_ms, files, log)

    @property
    def journal_blob(self) -> str:
        """The key of the journal that :meth:`pack_journal` stores."""
        return f"runs/{self.upload.run_id}/journals/imported-events.jsonl.gz"

    def pack_journal(self, blobs: BlobStore) -> None:
        """Store the records as the journal of a run that the platform executed, for exports."""
        # In journals, zero means unknown.
        lines = (replace(record, duration_ms=round(record.duration_ms or 0)) for record in self.records)
        pack_journal((record.to_line() for record in lines), self.journal_blob, blobs, Redactor())

    def store(self, session: Session, logs: LogStore, now: datetime) -> None:
        upload, run = self.upload, self._run(session, now)
        session.add(run)
        session.flush()
        upsert(session, DbSample, list(self._samples()))
        upsert(session, DbRunFile, list(self._run_files()))
        creator = session.get(DbUser, upload.creator_id) if upload.creator_id else None
        by = f" by {creator.email}" if creator is not None else ""
        name = self.announced.run.name
        lines = [LogLine(f"imported{by}: the run {name}, executed on another machine", step="import")]
        if run.name != name:
            lines.append(
                LogLine(f"the name was already taken: the run is named {run.name} here", "warning", "import")
            )
        logs.add(session, run.id, [*self.log, *lines])

    def _run(self, session: Session, now: datetime) -> DbRun:
        upload, announced, provenance = self.upload, self.announced.run, self.announced.provenance
        experiment, settings = announced.experiment_config, announced.evaluation_config
        dataset, rows = experiment.dataset, self.rows.indices
        are_first = isinstance(rows, range) and rows.start == 0
        selection = RowSelection(
            total_rows=self.total_rows,
            limit=len(rows) if are_first else None,
            draw_seed=None,
            sha256=dataset.sha256 or "",
            extension="",
            chosen=not are_first,
        )
        head = provenance.get("git_head", "")
        metrics = self._metrics()
        sizes = {
            "pass_threshold": settings.pass_threshold,
            "sampled_rows": len(rows),
            "total_dataset_rows": self.total_rows,
            "resumed_count": sum(entry.resumed for entry in self.entries),
        }
        rollout_id = select(DbRollout.id).where(
            DbRollout.repository_id == upload.repository_id, DbRollout.name == experiment.rollout.name
        )
        dataset_id = select(DbDataset.id).where(
            DbDataset.workspace_id == upload.workspace_id, DbDataset.sha256 == dataset.sha256
        )
        return DbRun(
            id=upload.run_id,
            workspace_id=upload.workspace_id,
            repository_id=upload.repository_id,
            kind="eval",
            name=_free_name(session, upload.workspace_id, announced.name),
            status="finished",
            creator_id=upload.creator_id,
            # Lists are ordered by this moment.
            created_at=min(announced.started_at, now),
            started_at=announced.started_at,
            completed_at=announced.completed_at,
            request={
                "experiment_config": {
                    "rollout": experiment.rollout.name,
                    "entrypoint": experiment.entrypoint,
                    "model_path": experiment.model_path,
                    "dataset": dataset.name,
                },
                "evaluation_config": {"n": settings.n, "pass_threshold": settings.pass_threshold},
            },
            commit_sha=head if _COMMIT.fullmatch(head) else None,
            branch=provenance.get("git_branch"),
            rollout_id=session.scalar(rollout_id),
            rollout_name=experiment.rollout.name,
            dataset_id=session.scalar(dataset_id.limit(1)) if dataset.sha256 is not None else None,
            dataset_name=dataset.name,
            model_path=experiment.model_path,
            selection=asdict(selection),
            progress={"completed": len(self.entries), "total": len(self.entries)},
            results=summarised_results(sizes, metrics),
            metrics=metrics,
            journal_blob=self.journal_blob,
            imported={
                "local_run_id": upload.local_run_id,
                "local_run_name": announced.name,
                "imported_at": wire_time(now),
                **provenance,
            },
        )

    def _metrics(self) -> dict[str, Any]:
        run = self.announced.run
        table = AttemptTable(len(self.rows), run.evaluation_config.n)
        for record in self.records:
            table.set_result(record)
        metrics = compute_metrics(table, pass_threshold=run.evaluation_config.pass_threshold)
        return {
            "duration_ms": round(self.duration_ms),
            "summary": metrics.summary,
            "estimates": metrics.estimates.model_dump(mode="json"),
        }

    def _samples(self) -> Iterator[dict[str, Any]]:
        for entry, record in zip(self.entries, self.records, strict=True):
            yield {
                **sample_row(record),
                "run_id": self.upload.run_id,
                "tokens": record.total_tokens,
                "duration_ms": record.duration_ms or 0,  # zero means unknown
                "resumed": entry.resumed,
            }

    def _run_files(self) -> Iterator[dict[str, Any]]:
        """Yield the files of samples under their names in downloads."""
        entries = {entry.rollout_id: entry for entry in self.entries}
        for file in self.files:
            found = _trial_file(file.path)
            if found is None:
                continue
            entry = entries[found.rollout_id]
            name = item_name(entry.row_index, entry.run_index)
            is_artifact = found.artifact is not None
            yield {
                "run_id": self.upload.run_id,
                "path": f"artifacts/{name}/{found.artifact}" if is_artifact else f"trajectories/{name}.json",
                "kind": "artifacts" if is_artifact else "trajectories",
                "source_row_index": self.rows.indices[entry.row_index],
                "size": file.size,
                "blob_key": file.blob_key,
                "sha256": file.sha256,
            }


def _read_log(blobs: BlobStore, file: DbEvalImportFile) -> list[LogLine]:
    with blobs.open(file.blob_key) as lines:
        entries = [parse_line(line) for line in deque(lines, _MOST_LOG_LINES)]
    return [
        LogLine(
            entry.message or "",
            cast(Level, (entry.level or "info").lower()),
            entry.step or "",
            entry.details,
            _moment(entry.timestamp),
        )
        for entry in entries
    ]


def _moment(text: str | None) -> datetime | None:
    with suppress(ValueError):
        moment = parse_timestamp(text or "")
        return moment if moment.tzinfo and 2000 <= moment.year <= 2999 else None
    return None


def _read_progress(blobs: BlobStore, file: DbEvalImportFile, rows: Selection, n: int) -> int:
    """Return how many rows the dataset has, as ``progress.json`` says."""
    with blobs.open(file.blob_key) as stream:
        content = stream.read()
    try:
        progress = orjson.loads(content)
        numbers = [progress[name] for name in ("total_runs", "sampled_rows", "total_dataset_rows")]
    except (ValueError, KeyError, TypeError):
        raise _inconsistent(PROGRESS, "it cannot be read") from None
    if not all(type(number) is int and 0 <= number < 2**31 for number in numbers):
        raise _inconsistent(PROGRESS, "its numbers are none")
    total_runs, sampled, total = map(int, numbers)
    if (total_runs, sampled) != (len(rows) * n, len(rows)):
        raise _inconsistent(
            PROGRESS,
            f"{total_runs} attempts of {sampled} rows, but the run has {len(rows)} rows with {n} attempts each",
        )
    if total <= rows.indices[-1]:
        raise _inconsistent(PROGRESS, f"row {rows.indices[-1]} was used of a dataset of {total} rows")
    return total


def _read_trajectories(
    blobs: BlobStore, files: Mapping[str, DbEvalImportFile], entries: Sequence[IndexEntry]
) -> dict[str, dict[str, Any]]:
    """Check the files of attempts against the index; return by rollout id what the trajectories state."""
    by_rollout = {entry.rollout_id: entry for entry in entries}
    details: dict[str, dict[str, Any]] = {}
    with_trajectory = set()
    deadline = time.monotonic() + _DETAILS_S
    for path, file in files.items():
        found = _trial_file(path)
        if found is None:
            continue
        entry = by_rollout.get(found.rollout_id)
        if entry is None:
            raise _inconsistent(path, "the index has no such attempt")
        if found.trajectory is None:
            continue
        if found.trajectory != entry.trajectory_filename:
            raise _inconsistent(path, "the index names another trajectory")
        with blobs.open(file.blob_key) as stream:
            content = stream.read()
        problem = trajectory_problem(content, entry.rollout_id, entry.row_index, entry.run_index)
        if problem is not None:
            raise _inconsistent(path, problem)
        with_trajectory.add(entry.rollout_id)
        if time.monotonic() < deadline:
            details[entry.rollout_id] = _trajectory_details(content, is_failed=entry.status == "failed")
    for entry in entries:
        if entry.trajectory_filename is not None and entry.rollout_id not in with_trajectory:
            raise _inconsistent(
                INDEX, f"the trajectory of row {entry.row_index}, attempt {entry.run_index}, is missing"
            )
    return details


def _free_name(session: Session, workspace_id: str, name: str) -> str:
    """Return the run's name, with a number if the workspace has another run with this name."""
    like = (DbRun.workspace_id == workspace_id, DbRun.name.startswith(name, autoescape=True))
    taken = set(session.scalars(select(DbRun.name).where(*like)))
    if name not in taken and not _RESERVED_NAME.fullmatch(name):
        return name
    for number in range(2, _NAME_TRIES):
        if f"{name}-{number}" not in taken:
            return f"{name}-{number}"
    raise OsmosisError(f"the workspace has {_NAME_TRIES} runs called {name} and alike.")


def _inconsistent(path: str, what: str) -> OsmosisError:
    return OsmosisError(
        f"what was uploaded is not a complete run: `{path[:200]}`: {what}.", details={"path": path[:200]}
    )


# -- what trajectories state in addition to the index ------------------------------------------------

_MOST_TOKENS = 2**31 - 1
_MOST_ERROR_CHARS = 2000
_LARGEST = 1e12
"""The maximum dollars or milliseconds of one call."""


def _trajectory_details(content: bytes, *, is_failed: bool) -> dict[str, Any]:
    """Return the fields of a record that a trajectory states, and ``run_duration_ms``; it raises nothing."""
    conversation = read_conversation(content)
    extra = conversation.facts.get("sample_extra_fields")
    noted = read_grader_notes(extra if isinstance(extra, Mapping) else {})
    digest = as_text(conversation.facts.get("row_digest"))
    texts: dict[str, Any] = {
        "notes": noted.notes,
        "parts": dict(noted.parts),
        "row_digest": digest if digest and _ROW_DIGEST.fullmatch(digest) else None,
        "run_duration_ms": _count(conversation.facts.get("run_duration_ms")),
    }
    if is_failed:
        cause = as_table(conversation.facts.get("failure"))
        source, error = cause.get("source"), as_text(cause.get("error"))
        texts |= {
            "boundary": source if source in ERROR_SOURCES else None,
            "category": as_text(cause.get("code")),
        }
        texts["error"] = error and error[:_MOST_ERROR_CHARS]
    # The last message that reached a failed agent is not its output.
    if not conversation.from_model_calls:
        shown = previews_of(as_messages(conversation), Redactor())
        texts |= {"input": shown.input, "output": shown.output}
    return {name: text for name, text in texts.items() if text} | _measured(_model_calls(conversation))


def _measured(calls: Sequence[ConversationStep]) -> dict[str, Any]:
    if not calls:
        return {}
    prompt = sum(call.prompt_tokens or 0 for call in calls)
    completion = sum(call.completion_tokens or 0 for call in calls)
    finishes = Counter(call.finish_reason for call in calls if call.finish_reason is not None)
    return {
        "model_calls": len(calls),
        **(
            {"prompt_tokens": prompt, "completion_tokens": completion}
            if prompt + completion <= _MOST_TOKENS
            else {}
        ),
        "finish_reasons": dict(finishes) or None,
        "cost_usd": _total([call.cost_usd for call in calls]),
        "model_latency_ms": _total([call.duration_ms for call in calls]),
    }


def _total(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if one of the values is unknown or absurd."""
    known = [value for value in values if value is not None and 0 <= value <= _LARGEST]
    return math.fsum(known) if len(known) == len(values) else None


def _model_calls(conversation: Conversation) -> list[ConversationStep]:
    """Return the steps that are model calls, or the calls that the controller reported if they match no steps."""
    unmatched = conversation.facts.get("unmatched_llm_call_metrics")
    if not isinstance(unmatched, list) or not unmatched:
        return [
            step
            for step in conversation.steps
            if step.prompt_tokens is not None or step.completion_tokens is not None
        ]
    calls: list[ConversationStep] = []
    for call in unmatched:
        if isinstance(call, Mapping):
            extra = call.get("extra")
            extra = extra if isinstance(extra, Mapping) else {}
            calls.append(
                ConversationStep(
                    number=len(calls),
                    role="assistant",
                    text="",
                    prompt_tokens=_count(call.get("prompt_tokens")),
                    completion_tokens=_count(call.get("completion_tokens")),
                    cost_usd=_number_of(call.get("cost_usd")),
                    duration_ms=_number_of(extra.get("latency_ms")),
                    finish_reason=canonical(extra.get("finish_reason")),
                )
            )
    return calls


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number_of(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

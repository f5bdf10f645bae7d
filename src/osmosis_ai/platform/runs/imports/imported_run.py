"""Create a run from an upload: results from its index, details from its trajectories, metrics computed here.

Everything is read and checked before anything is written: one entry per attempt on each row, and exactly the announced
files of each attempt.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.base import wire_time
from osmosis_ai.api.wire.eval_imports import EvalImportStart
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets.selection import Selection
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.metrics import compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import INDEX, PROGRESS, IndexEntry, read_index
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
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.eval_results import summarised_results
from osmosis_ai.platform.runs.imports.announcement import ImportLimits, selected_rows, trial_file
from osmosis_ai.platform.runs.imports.trajectory_details import MEASURED, TEXTS, trajectory_details
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.rollout.trajectory.atif import trajectory_problem

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# What a name may not be: the routes beside those of runs, and the ids of runs.
_NO_NAME = re.compile(r"imports|check|run_[0-9a-f]{24}")
_NAME_TRIES = 1000


@dataclass(frozen=True)
class ReceivedRun:
    """A whole upload, read and found consistent."""

    upload: DbEvalImport
    announced: EvalImportStart
    rows: Selection
    total_rows: int
    entries: Sequence[IndexEntry]
    details: Mapping[str, Mapping[str, Any]]
    files: Sequence[DbEvalImportFile]

    @classmethod
    def read(
        cls,
        upload: DbEvalImport,
        files: Sequence[DbEvalImportFile],
        blobs: BlobStore,
        limits: ImportLimits,
    ) -> ReceivedRun:
        """Read what has arrived."""
        announced = EvalImportStart.model_validate(upload.announced)
        rows = selected_rows(announced.run, limits)
        by_path = {file.path: file for file in files}
        n = announced.run.evaluation_config.n
        total_rows = _read_progress(blobs, by_path[PROGRESS], rows, n)
        with blobs.open(by_path[INDEX].blob_key) as lines:
            entries = read_index(lines, rows=len(rows), n=n)
        details = _read_trajectories(blobs, by_path, entries, limits)
        return cls(upload, announced, rows, total_rows, entries, details, files)

    def store(self, session: Session, logs: LogStore, now: datetime) -> None:
        """Write the run, its samples and its files."""
        upload, run = self.upload, self._run(session, now)
        session.add(run)
        session.flush()
        upsert(session, DbSample, [self._sample(entry) for entry in self.entries])
        upsert(session, DbRunFile, list(self._run_files()))
        creator = session.get(DbUser, upload.creator_id) if upload.creator_id else None
        by = f" by {creator.email}" if creator is not None else ""
        lines = [
            LogLine(f"imported{by}: the run {self.announced.run.name}, executed elsewhere", step="import")
        ]
        if run.name != self.announced.run.name:
            lines.append(LogLine(f"its name was taken: it is {run.name} here", "warning", "import"))
        logs.add(session, run.id, lines)

    def _run(self, session: Session, now: datetime) -> DbRun:
        upload, said, experiment = self.upload, self.announced.run, self.announced.run.experiment_config
        provenance = self.announced.provenance
        head = provenance.get("git_head", "")
        metrics = self._metrics()
        sizes = {
            "pass_threshold": said.evaluation_config.pass_threshold,
            "sampled_rows": len(self.rows),
            "total_dataset_rows": self.total_rows,
            "resumed_count": sum(entry.resumed for entry in self.entries),
        }
        return DbRun(
            id=upload.run_id,
            workspace_id=upload.workspace_id,
            repository_id=upload.repository_id,
            kind="eval",
            name=_free_name(session, upload.workspace_id, said.name),
            status="finished",
            creator_id=upload.creator_id,
            created_at=now,
            started_at=said.started_at,
            completed_at=said.completed_at,
            request=self._request(),
            commit_sha=head if _COMMIT.fullmatch(head) else None,
            branch=provenance.get("git_branch"),
            rollout_id=_rollout_id(session, upload, experiment.rollout.name),
            rollout_name=experiment.rollout.name,
            dataset_id=_dataset_id(session, upload, experiment.dataset.sha256),
            dataset_name=experiment.dataset.name,
            model_path=experiment.model_path,
            selection=self._selection().record(),
            progress={"completed": len(self.entries), "total": len(self.entries)},
            results=summarised_results(sizes, metrics),
            metrics=metrics,
            imported={
                "local_run_id": upload.local_run_id,
                "local_run_name": said.name,
                "imported_at": wire_time(now),
                **provenance,
            },
        )

    def _request(self) -> dict[str, Any]:
        said, experiment = self.announced.run, self.announced.run.experiment_config
        return {
            "experiment_config": {
                "rollout": experiment.rollout.name,
                "entrypoint": experiment.entrypoint,
                "model_path": experiment.model_path,
                "dataset": experiment.dataset.name,
            },
            "evaluation_config": {
                "n": said.evaluation_config.n,
                "pass_threshold": said.evaluation_config.pass_threshold,
            },
        }

    def _selection(self) -> RowSelection:
        rows, dataset = self.rows.indices, self.announced.run.experiment_config.dataset
        are_first = isinstance(rows, range) and rows.start == 0
        return RowSelection(
            total_rows=self.total_rows,
            limit=len(rows) if are_first else None,
            draw_seed=None,
            sha256=dataset.sha256 or "",
            extension="",
            chosen=not are_first,
        )

    def _metrics(self) -> dict[str, Any]:
        said = self.announced.run
        table = AttemptTable(len(self.rows), said.evaluation_config.n)
        for entry in self.entries:
            table.set_result(
                TerminalRecord(
                    entry.row_index,
                    entry.run_index,
                    entry.rollout_id,
                    entry.status,
                    duration_ms=entry.duration_ms,  # type: ignore[arg-type] # absent: unknown
                    reward=entry.reward,
                    tokens=entry.tokens,
                    error_type=entry.error_type,
                    source_row_index=self.rows.indices[entry.row_index],
                    **self._stated(entry, MEASURED),
                )
            )
        metrics = compute_metrics(table, pass_threshold=said.evaluation_config.pass_threshold)
        took = said.completed_at - said.started_at
        return {
            "duration_ms": round(took.total_seconds() * 1000),
            "summary": metrics.summary,
            "estimates": metrics.estimates.model_dump(mode="json"),
        }

    def _stated(self, entry: IndexEntry, names: Sequence[str]) -> dict[str, Any]:
        details = self.details.get(entry.rollout_id, {})
        return {name: details.get(name) for name in names}

    def _sample(self, entry: IndexEntry) -> dict[str, Any]:
        stated = self._stated(entry, (*MEASURED, *TEXTS))
        tokens = entry.tokens
        if tokens is None and stated["prompt_tokens"] is not None:
            tokens = stated["prompt_tokens"] + stated["completion_tokens"]
        return {
            "run_id": self.upload.run_id,
            "row_index": entry.row_index,
            "run_index": entry.run_index,
            "source_row_index": self.rows.indices[entry.row_index],
            "rollout_id": entry.rollout_id,
            "status": entry.status,
            "reward": entry.reward,
            "tokens": tokens,
            "duration_ms": entry.duration_ms or 0,  # zero if the index does not state it
            "error_type": entry.error_type,
            "resumed": entry.resumed,
            **stated,
        }

    def _run_files(self) -> Iterator[dict[str, Any]]:
        """Yield the files of samples under the names that downloads have."""
        entries = {entry.rollout_id: entry for entry in self.entries}
        for file in self.files:
            found = trial_file(file.path)
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


def _read_progress(blobs: BlobStore, file: DbEvalImportFile, rows: Selection, n: int) -> int:
    """Return how many rows the dataset has, as ``progress.json`` says."""
    with blobs.open(file.blob_key) as stream:
        content = stream.read()
    try:
        told = orjson.loads(content)
        numbers = [told[name] for name in ("total_runs", "sampled_rows", "total_dataset_rows")]
    except (ValueError, KeyError, TypeError):
        raise _inconsistent(PROGRESS, "it cannot be read") from None
    if not all(type(number) is int and 0 <= number < 2**31 for number in numbers):
        raise _inconsistent(PROGRESS, "its numbers are none")
    total_runs, sampled, total = map(int, numbers)
    if (total_runs, sampled) != (len(rows) * n, len(rows)):
        raise _inconsistent(
            PROGRESS, f"{total_runs} samples of {sampled} rows, and the run has {n} on each of {len(rows)}"
        )
    if total <= rows.indices[-1]:
        raise _inconsistent(PROGRESS, f"row {rows.indices[-1]} was used of a dataset of {total} rows")
    return total


def _read_trajectories(
    blobs: BlobStore,
    files: Mapping[str, DbEvalImportFile],
    entries: Sequence[IndexEntry],
    limits: ImportLimits,
) -> dict[str, dict[str, Any]]:
    """Check the files of attempts against the index; return by rollout id what the trajectories state."""
    by_rollout = {entry.rollout_id: entry for entry in entries}
    details: dict[str, dict[str, Any]] = {}
    with_trajectory = set()
    deadline = time.monotonic() + limits.details_s
    for path, file in files.items():
        found = trial_file(path)
        if found is None:
            continue
        entry = by_rollout.get(found.rollout_id)
        if entry is None:
            raise _inconsistent(path, "the index has no sample of it")
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
            details[entry.rollout_id] = trajectory_details(content)
    for entry in entries:
        if entry.trajectory_filename is not None and entry.rollout_id not in with_trajectory:
            raise _inconsistent(
                INDEX, f"the trajectory of row {entry.row_index}, attempt {entry.run_index}, is missing"
            )
    return details


def _free_name(session: Session, workspace_id: str, name: str) -> str:
    """Return the run's name, with a number when the workspace has another run of it."""
    like = (DbRun.workspace_id == workspace_id, DbRun.name.startswith(name, autoescape=True))
    taken = set(session.scalars(select(DbRun.name).where(*like)))
    if name not in taken and not _NO_NAME.fullmatch(name):
        return name
    numbered = (f"{name}-{number}" for number in range(2, _NAME_TRIES))
    free = next((each for each in numbered if each not in taken), None)
    if free is None:
        raise OsmosisError(f"the workspace has {_NAME_TRIES} runs called {name} and alike.")
    return free


def _rollout_id(session: Session, upload: DbEvalImport, name: str) -> str | None:
    known = select(DbRollout.id).where(
        DbRollout.repository_id == upload.repository_id, DbRollout.name == name
    )
    return session.scalar(known)


def _dataset_id(session: Session, upload: DbEvalImport, sha256: str | None) -> str | None:
    """Return the workspace's dataset of the very bytes that the run used."""
    same = select(DbDataset.id).where(
        DbDataset.workspace_id == upload.workspace_id, DbDataset.sha256 == sha256
    )
    return session.scalar(same.limit(1)) if sha256 is not None else None


def _inconsistent(path: str, what: str) -> OsmosisError:
    return OsmosisError(
        f"what was uploaded is not a complete run: `{path[:200]}`: {what}.", details={"path": path[:200]}
    )

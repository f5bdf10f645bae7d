"""Files generated from other data: ``metrics.json``, ``summary.jsonl``, ``logs.txt`` and the journal.

They are generated on request and stored under their content's digest, which is the manifest's token. A download
therefore matches its announced size despite later changes, and an ended run has each file once.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from sqlalchemy import select

from osmosis_ai.api.wire.base import wire_time
from osmosis_ai.controller.outcomes import Status
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.run_directory import TRAJECTORY_FILE, IndexEntry
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbLogLine, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.runs.journals import stored_lines

METRICS, SUMMARY, LOGS, JOURNAL = "metrics.json", "summary.jsonl", "logs.txt", "events.jsonl"
KINDS = {METRICS: "metrics", SUMMARY: "trajectories", LOGS: "logs", JOURNAL: "journal"}

_TOKEN = re.compile(r"[0-9a-f]{64}")
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_BATCH = 2000


class DerivedFiles:
    """Makes and finds these files."""

    def __init__(self, db: Database, blobs: BlobStore) -> None:
        self._db = db
        self._blobs = blobs

    def make(self, run: DbRun, path: str) -> tuple[str, int]:
        """Write one of the files as of now; return its token and its size in bytes."""
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as content:
            digest, size = hashlib.sha256(), 0
            for piece in self._pieces(run, path):
                digest.update(piece)
                size += content.write(piece)
            token = digest.hexdigest()
            if not self._has(run, path, token):
                content.seek(0)
                self._blobs.put(_key(run, path, token), cast(BinaryIO, content))
        return token, size

    def key(self, run: DbRun, path: str, token: str | None) -> str | None:
        """Return the key of a file that was made before; made now without a token, None when it is gone."""
        if token is None:
            try:
                token, _ = self.make(run, path)
            except BlobNotFound:
                return None
        if not _TOKEN.fullmatch(token) or not self._has(run, path, token):
            return None
        return _key(run, path, token)

    def _has(self, run: DbRun, path: str, token: str) -> bool:
        try:
            self._blobs.size(_key(run, path, token))
        except BlobNotFound:
            return False
        return True

    def _pieces(self, run: DbRun, path: str) -> Iterator[bytes]:
        if path == METRICS:
            return iter([_metrics(run)])
        if path == JOURNAL:
            if run.journal_blob is None:
                raise BlobNotFound("the run has no stored journal.")
            return stored_lines(self._blobs, run.journal_blob)
        return self._summary(run) if path == SUMMARY else self._log(run)

    def _summary(self, run: DbRun) -> Iterator[bytes]:
        """Yield one line per sample, by row and attempt, as the engine writes them on a user's machine."""
        with self._db.session() as session:
            of_trajectories = (DbRunFile.run_id == run.id, DbRunFile.kind == "trajectories")
            with_trajectory = set(session.scalars(select(DbRunFile.path).where(*of_trajectories)))
            rows = session.scalars(
                select(DbSample)
                .where(DbSample.run_id == run.id)
                .order_by(DbSample.row_index, DbSample.run_index)
                .execution_options(yield_per=_BATCH)
            )
            for sample in rows:
                trajectory = f"trajectories/{item_name(sample.row_index, sample.run_index)}.json"
                entry = IndexEntry(
                    row_index=sample.row_index,
                    run_index=sample.run_index,
                    rollout_id=sample.rollout_id,
                    status=cast(Status, sample.status),
                    duration_ms=round(sample.duration_ms) or None,  # zero if it was not stated
                    trajectory_filename=TRAJECTORY_FILE if trajectory in with_trajectory else None,
                    reward=sample.reward,
                    tokens=sample.tokens,
                    error_type=sample.error_type,
                    resumed=sample.resumed,
                )
                yield entry.to_line()

    def _log(self, run: DbRun) -> Iterator[bytes]:
        with self._db.session() as session:
            lines = session.scalars(
                select(DbLogLine)
                .where(DbLogLine.subject_id == run.id)
                .order_by(DbLogLine.id)
                .execution_options(yield_per=_BATCH)
            )
            for line in lines:
                details = f" {json.dumps(line.details, sort_keys=True)}" if line.details else ""
                text = f"{wire_time(line.timestamp)} {line.level.upper()} [{line.step}] {line.message}{details}\n"
                yield text.encode("utf-8")


def _metrics(run: DbRun) -> bytes:
    metrics = run.metrics or {}
    document: dict[str, Any] = {
        "eval_run": {
            "id": run.id,
            "status": run.status,
            "name": run.name,
            "dataset_name": run.dataset_name,
            "model_name": run.model_path,
            "rollout_name": run.rollout_name,
            "duration_ms": metrics.get("duration_ms", 0),
            "started_at": wire_time(run.started_at) if run.started_at else None,
            "completed_at": wire_time(run.completed_at) if run.completed_at else None,
        },
        "summary": metrics.get("summary") or _nothing_measured(run),
    }
    if "estimates" in metrics:
        document["estimates"] = metrics["estimates"]
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def _nothing_measured(run: DbRun) -> dict[str, Any]:
    counts = dict.fromkeys(("total_samples", "completed_samples", "graded", "passed", "failed", "skipped"), 0)
    threshold = (run.results or {}).get("pass_threshold")
    return {**counts, "pass_rate": 0.0, "pass_threshold": threshold, "tokens_used": 0}


def _key(run: DbRun, path: str, token: str) -> str:
    return f"runs/{run.id}/derived/{token}/{path}"

"""Runs as their workers have left them, written directly into the platform's tables."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from itertools import count
from typing import Any

from sqlalchemy import event, insert, select

from osmosis_ai.api.models.workers import JournalPart, SentUpload
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbRunShard, DbSample, new_id
from osmosis_ai.platform.runs.journals import pack_journal, read_lines
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.shared_reads import SharedReads
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.platform.worker.client import OutgoingBlob
from osmosis_ai.platform.worker.process import WorkingDirectory
from osmosis_ai.platform.worker.training import TrainingReports
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.platform.conftest import Member
from tests.platform.fake_worker import FakeTrainer, journal_of
from tests.viewer.source_contract import leave_validation

REQUEST = {
    "experiment_config": {
        "rollout": "multiply",
        "entrypoint": "main.py",
        "model_path": "osmosis/tiny",
        "dataset": "multiply",
    },
    "evaluation_config": {"limit": 3, "n": 2},
    "secrets": {"required": ["MARAS_KEY"]},
}


def run_row(services: PlatformServices, member: Member, name: str, **changes: Any) -> dict[str, Any]:
    """Return the columns of a finished evaluation that was submitted now."""
    now = services.clock.now()
    return {
        "id": new_id("run"),
        "workspace_id": member.workspace.id,
        "repository_id": member.repository.id,
        "kind": "eval",
        "name": name,
        "status": "finished",
        "creator_id": member.user.id,
        "created_at": now,
        "started_at": now,
        "completed_at": now + timedelta(minutes=1),
        "request": REQUEST,
        "rollout_name": "multiply",
        "dataset_name": "multiply",
        "model_path": "osmosis/tiny",
        "commit_sha": "c0ffee" * 6 + "c0ff",
        "results": {"sampled_rows": 3, "total_dataset_rows": 200, "pass_threshold": 1.0},
        "selection": {
            "total_rows": 200,
            "limit": 3,
            "draw_seed": None,
            "sha256": "ab" * 32,
            "extension": "jsonl",
            "chosen": False,
        },
        **changes,
    }


def add_run(services: PlatformServices, member: Member, name: str, **changes: Any) -> DbRun:
    """Add an evaluation, or a run of another kind."""
    run = DbRun(**run_row(services, member, name, **changes))
    with services.db.transaction() as session:
        session.add(run)
    return run


def add_shard(services: PlatformServices, run: DbRun, **columns: Any) -> DbRunShard:
    """Add a shard that a worker has released."""
    shard = DbRunShard(**{"id": new_id("shd"), "run_id": run.id, "kind": "work", "attempt": 1, **columns})
    with services.db.transaction() as session:
        session.add(shard)
    return shard


def sample_row(run_id: str, row: int, attempt: int, **known: Any) -> dict[str, Any]:
    """Return the columns of a sample without a reward."""
    return {
        "run_id": run_id,
        "row_index": row,
        "run_index": attempt,
        "source_row_index": row,
        "rollout_id": f"r{row}-{attempt}",
        "status": "success",
        "duration_ms": 10.0 * row + attempt,
        "row_digest": f"{row:032x}",
        "position": 100 * (row * 10 + attempt + 1),
        "reward": None,
        "tokens": None,
        "cost_usd": None,
        "boundary": None,
        "category": None,
        "finish_reasons": None,
        "error": None,
        "input": f"What is {row} times {attempt}?",
        "output": None,
        **known,
    }


def add_samples(services: PlatformServices, run: DbRun, samples: Sequence[Mapping[str, Any]]) -> None:
    """Add samples to a run; each has ``row`` and ``attempt``, and what is known of it."""
    rows = [sample_row(run.id, **each) for each in samples]
    with services.db.transaction() as session:
        session.execute(insert(DbSample), rows)


def add_file(services: PlatformServices, run: DbRun, path: str, content: bytes) -> None:
    """Add a file that a run has left."""
    key = f"runs/{run.id}/files/{new_id('f')}"
    services.blobs.put(key, io.BytesIO(content))
    kind = path.partition("/")[0]
    with services.db.transaction() as session:
        session.add(DbRunFile(run_id=run.id, path=path, kind=kind, size=len(content), blob_key=key))


def keep_journal(services: PlatformServices, run: DbRun, *records: TerminalRecord) -> None:
    """Store the journal of a run."""
    key = f"runs/{run.id}/journals/0-events.jsonl.gz"
    pack_journal((each.to_line() for each in records), key, services.blobs, Redactor())
    with services.db.transaction() as session:
        session.get_one(DbRun, run.id).journal_blob = key


def source_of(services: PlatformServices, member: Member) -> PlatformSource:
    """Return the runs of a member's workspace, as one visitor sees them."""
    own = copy(services)
    own.sample_counts = SharedReads(most=500)
    return PlatformSource(own, member.workspace.id)


_BACKGROUND = ("osmosis-maintenance", "platform-shards")
"""Prefixes of the names of the platform's own threads."""


@contextmanager
def statements_of(db: Database) -> Iterator[list[tuple[str, Any]]]:
    """Record every statement with its parameters, except those of the platform's own threads."""
    noted: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if not threading.current_thread().name.startswith(_BACKGROUND):
            noted.append((statement, parameters))

    event.listen(db._engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(db._engine, "before_cursor_execute", note)


def publish_validation(
    worker: FakeTrainer, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
) -> None:
    """Report a validation from a trainer's directory, twice, as a worker does."""
    directory = WorkingDirectory(worker.services.config.runs_dir, worker.shard_id).training
    leave_validation(directory, samples, conversations)
    reporter: Any = _ReporterOf(worker)
    reports = TrainingReports(directory, reporter, base_model="osmosis/tiny", save_freq=1)
    reports.keep_validation()
    reports.keep_validation()


class PlatformPlace:
    """A workspace of a platform with runs in progress."""

    def __init__(self, services: PlatformServices, member: Member) -> None:
        self._services = services
        self._member = member
        self._ids: dict[str, str] = {}
        self._positions = count(1)
        self.source = source_of(services, self._member)

    def start(self, name: str, *, rows: int, n: int) -> None:
        run = add_run(
            self._services,
            self._member,
            name,
            status="running",
            completed_at=None,
            request={**REQUEST, "evaluation_config": {"n": n}},
            results={"sampled_rows": rows, "pass_threshold": 1.0},
        )
        self._ids[name] = run.id

    def add(self, name: str, records: Sequence[TerminalRecord]) -> None:
        run_id = self._ids[name]
        lines = read_lines(JournalPart(offset=0, lines=journal_of(records).decode()))
        rows = [{**each, "run_id": run_id, "position": next(self._positions)} for each in lines.samples]
        with self._services.db.transaction() as session:
            upsert(session, DbSample, rows)
            run = session.get_one(DbRun, run_id)
            run.accepted += len(records)
            run.progress = {"completed": run.accepted}

    def validate(
        self, name: str, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
    ) -> None:
        services = self._services
        if name not in self._ids:
            columns = {"kind": "training", "status": "running", "completed_at": None, "repository_id": None}
            request = {**REQUEST, "secrets": {"required": []}}
            run = add_run(services, self._member, name, request=request, **columns)
            add_shard(services, run)
            self._ids[name] = run.id
        worker = FakeTrainer.claims(services, run_id=self._ids[name])
        publish_validation(worker, samples, conversations)
        with services.db.session() as session:
            mine = select(DbRunFile.blob_key).where(DbRunFile.run_id == worker.run_id)
            keys = set(session.scalars(mine))
        assert set(services.blobs.keys(f"runs/{worker.run_id}")) == keys, "the former validation is deleted"
        worker.releases()


class _ReporterOf:
    """Reports for a trainer that a test moves by hand."""

    def __init__(self, worker: FakeTrainer) -> None:
        self.assignment = worker.assignment
        self.sync = worker.sync
        self.redactor = Redactor()
        self.log = print
        self._worker = worker

    def upload(self, blobs: Sequence[OutgoingBlob]) -> list[SentUpload]:
        for each in blobs:
            each.content.seek(0)
        return [self._worker.uploads(each.name, each.content.read()) for each in blobs]

    def insist(self, call: Any) -> Any:
        return call()

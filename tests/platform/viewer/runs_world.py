"""Runs as their workers have left them, written directly into the platform's tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from itertools import count
from typing import Any

from sqlalchemy import event, func, insert, select, update

from osmosis_ai.api.models.workers import JournalPart, SentUpload
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.db.base import Base, upsert
from osmosis_ai.platform.db.tables import (
    DbConversation,
    DbJournalChunk,
    DbLogLine,
    DbLoraModel,
    DbMetricPoint,
    DbRun,
    DbRunFile,
    DbRunShard,
    DbRunUpload,
    DbSample,
    DbSecretAccess,
    new_id,
)
from osmosis_ai.platform.runs.journals import pack_journal, read_lines
from osmosis_ai.platform.shared_reads import SharedReads
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.platform.worker.client import OutgoingBlob
from osmosis_ai.platform.worker.process import WorkingDirectory
from osmosis_ai.platform.worker.training import TrainingReports
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.platform.conftest import Member, World
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


def run_row(world: World, member: Member, name: str, **changes: Any) -> dict[str, Any]:
    """Return the columns of a finished evaluation that was submitted now."""
    now = world.services.clock.now()
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


def add_run(world: World, member: Member, name: str, **changes: Any) -> DbRun:
    """Add an evaluation, or a run of another kind."""
    run = DbRun(**run_row(world, member, name, **changes))
    with world.services.db.transaction() as session:
        session.add(run)
    return run


def change_run(world: World, run_id: str, **columns: Any) -> None:
    """Change what the platform knows of a run."""
    with world.services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == run_id).values(**columns))


def sealed_secrets(world: World, run_id: str) -> bytes | None:
    """Return the encrypted secrets that were given for one run."""
    with world.services.db.session() as session:
        return session.get_one(DbRun, run_id).sealed_secrets


def add_model(world: World, run: DbRun, step: int = 5, **columns: Any) -> str:
    """Add an adapter of a training run; return its name."""
    known = {"name": f"{run.name}-step-{step}", "base_model": "osmosis/tiny", "files": {}}
    of_run = {"run_id": run.id, "workspace_id": run.workspace_id}
    known |= {"id": new_id("lora"), "created_at": world.services.clock.now(), **of_run, **columns}
    model = DbLoraModel(step=step, **known)
    with world.services.db.transaction() as session:
        session.add(model)
    return str(model.name)


def add_points(world: World, run: DbRun, key: str, values: Mapping[int, float]) -> None:
    """Add values of a metric, by step."""
    now = world.services.clock.now()
    points = [
        {"run_id": run.id, "key": key, "step": step, "value": value, "timestamp": now}
        for step, value in values.items()
    ]
    with world.services.db.transaction() as session:
        session.execute(insert(DbMetricPoint), points)


def add_rows(world: World, run: DbRun) -> None:
    """Add what an unfinished run has: a conversation, an upload and a part of a journal."""
    of_run = {"run_id": run.id}
    with world.services.db.transaction() as session:
        shard_id = session.scalars(select(DbRunShard.id).where(DbRunShard.run_id == run.id)).first()
        session.add(DbConversation(**of_run, path="artifacts/row_0_run_0/x", content=b"small"))
        session.add(DbRunUpload(**of_run, name="x", upload_id="u", size=1, sha256="0" * 64))
        session.add(DbJournalChunk(shard_id=shard_id, offset=0, content=b"{}"))


def left_of_runs(world: World) -> dict[str, int]:
    """Return how much there is of what runs leave."""
    tables = (
        *(DbRun, DbRunShard, DbJournalChunk, DbConversation, DbRunUpload),
        *(DbSample, DbRunFile, DbMetricPoint, DbLogLine, DbLoraModel),
    )
    with world.services.db.session() as session:
        rows = {
            each.__tablename__: session.scalar(select(func.count()).select_from(each)) or 0 for each in tables
        }
    return {**rows, "blobs": len(world.stored("runs"))}


def add_secret_access(world: World, run: DbRun, *names: str) -> None:
    """Add an entry to the secret access log."""
    of_run = {"run_id": run.id, "run_name": run.name, "workspace_id": run.workspace_id}
    claim = {
        "attempt": 1,
        "claim_id": "a" * 32,
        "names": list(names),
        "created_at": world.services.clock.now(),
    }
    with world.services.db.transaction() as session:
        session.add(DbSecretAccess(id=new_id("sac"), **of_run, **claim))


def kept_of(world: World, owner: Member) -> dict[str, Any]:
    """Return what the platform holds of a workspace, without the tables that asking alone changes."""
    tables = [each for each in Base.metadata.sorted_tables if each.name not in ("tokens", "device_logins")]
    kept: dict[str, Any] = {}
    with world.services.db.session() as session:
        for table in tables:
            if "workspace_id" in table.columns:
                mine = select(table).where(table.c.workspace_id == owner.workspace.id)
                kept[table.name] = sorted(map(str, session.execute(mine)))
            elif table.name.startswith(("run_", "samples", "eval_import")):
                kept[table.name] = session.scalar(select(func.count()).select_from(table))
    return kept


def add_shard(world: World, run: DbRun, **columns: Any) -> DbRunShard:
    """Add a shard that a worker has released."""
    shard = DbRunShard(**{"id": new_id("shd"), "run_id": run.id, "kind": "work", "attempt": 1, **columns})
    with world.services.db.transaction() as session:
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


def add_samples(world: World, run: DbRun, samples: Sequence[Mapping[str, Any]]) -> None:
    """Add samples to a run; each has ``row`` and ``attempt``, and what is known of it."""
    rows = [sample_row(run.id, **each) for each in samples]
    with world.services.db.transaction() as session:
        session.execute(insert(DbSample), rows)


def add_file(world: World, run: DbRun, path: str, content: bytes) -> None:
    """Add a file that a run has left."""
    key = f"runs/{run.id}/files/{new_id('f')}"
    world.store(key, content)
    kind = path.partition("/")[0]
    with world.services.db.transaction() as session:
        session.add(DbRunFile(run_id=run.id, path=path, kind=kind, size=len(content), blob_key=key))


def keep_journal(world: World, run_id: str, *records: TerminalRecord) -> None:
    """Store the journal of a run."""
    key = f"runs/{run_id}/journals/0-events.jsonl.gz"
    pack_journal((each.to_line() for each in records), key, world.services.blobs, Redactor())
    with world.services.db.transaction() as session:
        session.get_one(DbRun, run_id).journal_blob = key


def source_of(world: World, member: Member) -> PlatformSource:
    """Return the runs of a member's workspace, as one visitor sees them."""
    own = copy(world.services)
    own.sample_counts = SharedReads(most=500)
    return PlatformSource(own, member.workspace.id)


_BACKGROUND = ("osmosis-maintenance", "platform-shards")
"""Prefixes of the names of the platform's own threads."""


@contextmanager
def statements_of(world: World) -> Iterator[list[tuple[str, Any]]]:
    """Record every statement with its parameters, except those of the platform's own threads."""
    noted: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if not threading.current_thread().name.startswith(_BACKGROUND):
            noted.append((statement, parameters))

    event.listen(world.services.db._engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(world.services.db._engine, "before_cursor_execute", note)


def validation_of(records: Sequence[TerminalRecord], step: int) -> ValidationSamples:
    """Return a validation after a step, in which a reward of 1 passes."""
    return ValidationSamples.of(list(records), step=step, pass_threshold=1.0)


def publish_validation(
    worker: FakeTrainer, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
) -> None:
    """Report a validation from a trainer's directory, twice, as a worker does."""
    directory = WorkingDirectory(worker.world.services.config.runs_dir, worker.shard_id).training
    leave_validation(directory, samples, conversations)
    reporter: Any = _ReporterOf(worker)
    reports = TrainingReports(directory, reporter, base_model="osmosis/tiny", save_freq=1)
    reports.keep_validation()
    reports.keep_validation()


class PlatformPlace:
    """A workspace of a platform with runs in progress."""

    def __init__(self, world: World, member: Member) -> None:
        self._world = world
        self._member = member
        self._ids: dict[str, str] = {}
        self._positions = count(1)
        self.source = source_of(world, self._member)

    def start(self, name: str, *, rows: int, n: int) -> None:
        run = add_run(
            self._world,
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
        with self._world.services.db.transaction() as session:
            upsert(session, DbSample, rows)
            run = session.get_one(DbRun, run_id)
            run.accepted += len(records)
            run.progress = {"completed": run.accepted}

    def validate(
        self, name: str, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
    ) -> None:
        world = self._world
        if name not in self._ids:
            columns = {"kind": "training", "status": "running", "completed_at": None, "repository_id": None}
            request = {**REQUEST, "secrets": {"required": []}}
            run = add_run(world, self._member, name, request=request, **columns)
            add_shard(world, run)
            self._ids[name] = run.id
        worker = FakeTrainer.claims(world, run_id=self._ids[name])
        publish_validation(worker, samples, conversations)
        with world.services.db.session() as session:
            mine = select(DbRunFile.blob_key).where(DbRunFile.run_id == worker.run_id)
            keys = set(session.scalars(mine))
        assert world.stored(f"runs/{worker.run_id}") == sorted(keys), "the former validation is deleted"
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

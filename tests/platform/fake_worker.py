"""A worker that a test controls step by step, over HTTP: it claims a shard, reports, and ends or releases it.

The platform's own shards (``prepare``, ``finalize``) are executed by :func:`settle`, when the test says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import product
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import httpx
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai._version import __version__
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.workers import (
    CLAIM,
    Assignment,
    ClaimReply,
    ClaimRequest,
    FinishRequest,
    JournalPart,
    LogPart,
    ReleaseRequest,
    RunFilePart,
    SentUpload,
    ShardClosed,
    SyncReply,
    SyncRequest,
    UploadGrant,
    WantedUpload,
    WorkerLogLine,
    shard_route,
)
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.platform.app import create_worker_app
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunShard, DbSample
from osmosis_ai.platform.queue.phases import TERM
from osmosis_ai.platform.runs.lifecycle import version_of
from osmosis_ai.platform.runs.requests import RowSelection, read_eval_request
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, World
from tests.platform.evaluations import Submits, submit_body, training_body

EVALS = Submits("/api/cli/eval-runs", submit_body)
TRAININGS = Submits("/api/cli/training-runs", training_body)
TERM_S = TERM.total_seconds()
GPU = {"execution": {"pool": "gpu"}}
_apps: WeakKeyDictionary[Database, TestClient] = WeakKeyDictionary()


class Killed(BaseException):
    """The platform's process has been killed."""


class Refused(Exception):
    """A refusal by the platform."""

    def __init__(self, reply: httpx.Response) -> None:
        self.status, self.body = reply.status_code, reply.json()
        self.code = self.body["code"]
        super().__init__(f"{self.status} {self.code}: {self.body['error']}")


def settle(world: World) -> None:
    """Let the platform do everything that it can do by itself: prepare, stop and finalize runs, count samples."""
    world.services.queue.close_stopped()
    while world.services.platform_shards.execute_next():
        pass
    world.services.platform_shards._numbers.update()


def worker_app(world: World) -> TestClient:
    """Return the application that workers of this machine speak to."""
    if world.services.db not in _apps:
        _apps[world.services.db] = TestClient(create_worker_app(world.services))
    return _apps[world.services.db]


def call(world: World, bearer: str, route: str, body: Any) -> httpx.Response:
    """Make a call of the worker protocol; a refusal is raised."""
    is_model = isinstance(body, WireModel)
    content = body.model_dump_json(by_alias=True, exclude_unset=True) if is_model else json.dumps(body)
    if "/shards/" in route:
        # Tests write `files/a` for the upload `files/SHARD/a`, the only names that a shard may use.
        content = re.sub(r'"files/(?!shd_)', f'"files/{route.split("/shards/")[1].split("/")[0]}/', content)
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    reply = worker_app(world).post(route, content=content, headers=headers)
    if reply.status_code >= 400:
        raise Refused(reply)
    return reply


def claim_request(**fields: Any) -> ClaimRequest:
    return ClaimRequest(**{"claim_id": secrets.token_hex(16), "sdk_version": __version__, **fields})


def claim(world: World, bearer: str, request: ClaimRequest | None = None) -> Assignment | None:
    reply = call(world, bearer, CLAIM, request or claim_request())
    return ClaimReply.model_validate(reply.json()).assignment


def pool_token(world: World, pool: str = "gpu", **only: Any) -> str:
    """Return a new worker token of a pool."""
    return world.services.worker_access.create_token(pool, **only)[1]


def waiting_shard(world: World, run_id: str) -> str:
    """Return the id of the shard of a run that workers can claim."""
    pending = DbRunShard.run_id == run_id, DbRunShard.kind == "work", DbRunShard.status == "pending"
    with world.services.db.session() as session:
        return session.scalars(select(DbRunShard.id).where(*pending)).one()


def journal_of(records: Iterable[TerminalRecord]) -> bytes:
    return b"".join(each.to_line() for each in records)


def records(count: int, *, first: int = 0, **changes: Any) -> list[TerminalRecord]:
    """Return records of the first attempt on so many rows."""
    return [record(row, 0, **changes) for row in range(first, first + count)]


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that fails."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def file_url(api: TestClient, run_id: str, path: str) -> str | None:
    """Return the address of an evaluation's file, None if it has no such file."""
    asked = {"items": [{"path": path}]}
    found = api.post(f"{EVALS.route}/{run_id}/samples/download-urls", json=asked).json()["items"]
    return str(found[0]["url"]) if found else None


def downloaded(api: TestClient, run_id: str, path: str) -> bytes:
    """Fetch a file of an evaluation as a client does."""
    url = file_url(api, run_id, path)
    assert url is not None
    return bytes(api.get(url, headers={"Authorization": ""}).content)


def expire_leases(clock: ManualClock) -> None:
    clock.advance(TERM_S + 1)


class FakeWorker:
    """The owner of a shard, until another one is.

    Attributes:
        journal: what it has recorded so far.
    """

    def __init__(self, world: World, assignment: Assignment, bearer: str = "") -> None:
        self.world = world
        self.assignment = assignment
        self.bearer = bearer
        self.run_id, self.shard_id = assignment.run.id, assignment.shard.id
        self.lease = assignment.lease.token.get_secret_value()
        self.journal = b""

    @classmethod
    def claims(
        cls, world: World, pool: str | None = None, run_id: str | None = None, **fields: Any
    ) -> FakeWorker:
        """Claim a shard of a pool, or of the platform's own machine."""
        settle(world)
        bearer = world.services.worker_access.local_token if pool is None else pool_token(world, pool)
        more = {"run_id": run_id} if run_id is not None else {}
        assignment = claim(world, bearer, claim_request(**more, **fields))
        assert assignment is not None, "no shard can be claimed"
        return cls(world, assignment, bearer)

    def call(self, name: Any, body: Any) -> httpx.Response:
        return call(self.world, self.lease, shard_route(self.shard_id, name), body)

    def sync(self, **fields: Any) -> SyncReply:
        return SyncReply.model_validate(self.call("sync", SyncRequest(**fields)).json())

    def write(self, written: Sequence[TerminalRecord]) -> bytes:
        """Add records to the journal, without sending them."""
        lines = journal_of(written)
        self.journal += lines
        return lines

    def part(self, offset: int = 0) -> JournalPart:
        return JournalPart(offset=offset, lines=self.journal[offset:].decode())

    def records(self, count: int, **changes: Any) -> None:
        """Record and send so many more rows, those that the shard has next."""
        shard, done = self.assignment.shard, self.journal.count(b"\n")
        rows = [shard.number + shard.count * place for place in range(done, done + count)]
        sent = len(self.journal)
        self.write([record(row, 0, **changes) for row in rows])
        self.sync(journal=self.part(sent))

    def logs(self, message: str, first: int = 0) -> None:
        """Send a line of the run's log, which is the ``first``-th of this worker."""
        line = WorkerLogLine(timestamp=self.world.services.clock.now(), message=message)
        self.sync(log=LogPart(first=first, lines=[line]))

    def conversation(self, row: int, attempt: int = 0, content: bytes = b'{"steps": []}') -> RunFilePart:
        """Return the inline conversation of an attempt."""
        path = f"trajectories/{item_name(row, attempt)}.json"
        packed = zlib.compress(content)
        described = {"path": path, "kind": "trajectories", "size": len(content), "source_row_index": row}
        return RunFilePart.model_validate({**described, "content": packed})

    def wants(self, name: str, content: bytes) -> UploadGrant:
        wanted = WantedUpload(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (grant,) = self.sync(wanted=[wanted]).uploads
        return grant

    def puts(self, grant: UploadGrant, content: bytes) -> SentUpload:
        """Upload bytes where they were granted."""
        reply = worker_app(self.world).put(grant.url, content=content)
        assert reply.status_code == 200, reply.text
        return SentUpload(name=grant.name, id=grant.id, etag=reply.headers["etag"].strip('"'))

    def uploads(self, name: str, content: bytes) -> SentUpload:
        return self.puts(self.wants(name, content), content)

    def finishes(
        self, outcome: str = "finished", *, completes: bool = True, settles: bool = True, **fields: Any
    ) -> ShardClosed:
        """Record the attempts that have no record yet, end the shard, and let the platform finalize the run."""
        if outcome == "finished" and completes:
            self.records_rest()
        request = FinishRequest.model_validate({"outcome": outcome, **fields})
        closed = ShardClosed.model_validate(self.call("finish", request).json())
        if settles:
            settle(self.world)
        return closed

    def records_rest(self) -> None:
        """Record and send the attempts of the shard that have no record, unless its run ends anyway."""
        run, shard = self.run, self.shard
        if run.kind != "eval" or shard.status != "running" or run.stop_requested_at or run.error:
            return
        rows = range(shard.number, len(RowSelection.read(run.selection).rows()), shard.count)
        own = shard.attempts or product(rows, range(read_eval_request(run.request).evaluation.n))
        done = {
            (each.row_index, each.run_index) for each in self.samples() if each.position > run.reopened_at
        }
        lines = self.write([record(*each) for each in map(tuple, own) if each not in done])
        self.sync(journal=JournalPart(offset=shard.journal_bytes, lines=lines.decode()))

    def releases(self, reason: str | None = None, **fields: Any) -> ShardClosed:
        request = ReleaseRequest(**({"reason": reason} if reason else {}), **fields)
        return ShardClosed.model_validate(self.call("release", request).json())

    @property
    def run(self) -> DbRun:
        with self.world.services.db.session() as session:
            return session.get_one(DbRun, self.run_id)

    @property
    def shard(self) -> DbRunShard:
        with self.world.services.db.session() as session:
            return session.get_one(DbRunShard, self.shard_id)

    def samples(self) -> list[DbSample]:
        with self.world.services.db.session() as session:
            mine = select(DbSample).where(DbSample.run_id == self.run_id)
            return list(session.scalars(mine.order_by(DbSample.row_index, DbSample.run_index)))

    def messages(self) -> list[str]:
        """Return the messages of the run's log."""
        page = self.world.services.logs.page(self.run_id, limit=500, direction="newer")
        return [line.message or "" for line in page.logs]

    def download(self, url: str) -> bytes:
        """Return what a URL of the assignment serves."""
        reply = worker_app(self.world).get(url)
        assert reply.status_code == 200, reply.text
        return reply.content

    def stored_journal(self) -> bytes:
        """Return the platform's journal of the shard."""
        headers = {"Authorization": f"Bearer {self.lease}"}
        reply = worker_app(self.world).get(shard_route(self.shard_id, "journal"), headers=headers)
        if reply.status_code >= 400:
            raise Refused(reply)
        return reply.content


class FakeTrainer(FakeWorker):
    """The owner of a training run's shard."""

    def begins(self, *, total_steps: int, steps_done: int = 0) -> None:
        self.sync(training={"start": {"total_steps": total_steps, "steps_done": steps_done}})

    def step(self, number: int, metrics: dict[str, float], **validated: float) -> None:
        """Report a step that ended just now."""
        at_ms = round(self.world.services.clock.now().timestamp() * 1000)
        step = {"step": number, "timestamp_ms": at_ms, "metrics": metrics, "validation_rewards": validated}
        self.sync(training={"steps": [step]})

    def add_archive(self, step: int, folder: str = "") -> None:
        """Upload the archive that another machine resumes from."""
        name = f"resume/{folder or f'{step}-a'}/checkpoint.tar"
        part = {"step": step, "base_model": "osmosis/tiny", "files": {"checkpoint.tar": name}}
        grant = self.wants(name, b"archive")
        sent = [self.puts(grant, b"archive")] if grant.url else []
        self.sync(sent=sent, training={"checkpoints": [{**part, "is_resume": True}]})

    def add_checkpoint(self, step: int, weights: bytes = b"weights", *, reward: float | None = None) -> str:
        """Upload an adapter; return the name of the checkpoint."""
        files = {"adapter_model.safetensors": weights, "adapter_config.json": b"{}"}
        names = {
            name: f"checkpoints/{step}/{sha256(content).hexdigest()[:16]}-{name}"
            for name, content in files.items()
        }
        part = {"step": step, "base_model": "osmosis/tiny", "files": names, "reward": reward}
        grants = {name: self.wants(names[name], content) for name, content in files.items()}
        sent = [self.puts(grant, files[name]) for name, grant in grants.items() if grant.url]
        return self.sync(sent=sent, training={"checkpoints": [part]}).checkpoints[step]

    def add_validation(self, step: int) -> str:
        """Upload a validation of one file; return the key of its blob."""
        content = f"after step {step}".encode()
        version = version_of(step, content)
        name = f"validation/{version}/a-samples.jsonl"
        file = {"path": "validation/samples.jsonl", "kind": "validation", "size": len(content), "blob": name}
        grant = self.wants(name, content)
        sent = [self.puts(grant, content)] if grant.url else []
        self.sync(sent=sent, training={"validation": {"version": version, "files": [file]}})
        return f"runs/{self.run_id}/{name}"

"""The run queue under lost, late and repeated calls, dead workers and a dying platform, compared with a model.

The network loses, delays and repeats calls and replies, and workers die with or without their disk. After each step the
database is compared with ``model.py``, which knows what was acknowledged and whose lease is the current one.
"""

from __future__ import annotations

import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, select, update

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import (
    JOURNAL_DIVERGED,
    JOURNAL_OFFSET,
    LEASE_LOST,
    Assignment,
    ClaimRequest,
    FinishRequest,
    JournalPart,
    LogPart,
    ReleaseRequest,
    RunFilePart,
    ShardClosed,
    SyncReply,
    SyncRequest,
    WorkerLogLine,
)
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.platform.blobs.store import BlobStoreError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, DatabaseUnreachableError
from osmosis_ai.platform.db.tables import DbConversation, DbLogLine, DbRun, DbRunFile, DbRunShard, DbSample
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.runs.journals import JournalDivergedError, read_journal, stored_lines
from osmosis_ai.platform.runs.lifecycle import JournalOffsetError, LeaseLostError
from osmosis_ai.platform.services import PlatformServices, build_services
from tests.evaluation.builders import record
from tests.platform import fake_worker
from tests.platform.conftest import ManualClock, application
from tests.platform.databases import platform_database, postgres_database
from tests.platform.evaluations import submit_body
from tests.platform.fake_worker import (
    EVALS,
    FakeWorker,
    Refused,
    claim_request,
    expire_leases,
    journal_of,
    pool_token,
    settle,
)
from tests.platform.queue.model import CONFLICT, Attempt, Refusal, RunModel, Shard, is_done

MACHINES = ("ash", "elm")
OUTCOMES: dict[str, dict[str, Any]] = {
    "right": {"reward": 1.0},
    "wrong": {"reward": 0.0},
    "unscored": {"reward": None},
    "skipped": {"status": "skipped", "reward": None},
    "failed": {"status": "failed", "reward": None, "boundary": "provider", "error_type": "timeout"},
}
CODES: dict[type[Exception], str] = {
    LeaseLostError: LEASE_LOST,
    JournalOffsetError: JOURNAL_OFFSET,
    JournalDivergedError: JOURNAL_DIVERGED,
}
FATES = st.sampled_from(["arrives", "arrives", "arrives", "reply lost", "late", "twice"])
PICK = st.integers(0, 7)
ACTIONS = [
    *(["work"] * 8 + ["finish"] * 3 + ["release", "die", "misbehave", "lose the database"]),
    *("claim", "repeat a claim", "arrive late", "arrive late"),
    *("settle", "be killed", "be killed", "have no room", "restart", "wait", "wait", "set the clock"),
    *("stop", "retry", "retry"),
]


class Killed(BaseException):
    """The platform's process has been killed."""


# -- the two ways to call the queue ------------------------------------------------------------------


class DirectCalls:
    """Calls the queue as the routes do."""

    def __init__(self, services: PlatformServices) -> None:
        self.services = services

    def claim(self, bearer: str, request: ClaimRequest) -> Assignment | None:
        return self.services.queue.claim(request, self.services.worker_access.authorize(bearer, request))

    def call(self, name: str, shard_id: str, token: str, request: Any) -> Any:
        try:
            return getattr(self.services.queue, name)(shard_id, token, request)
        except ConflictError as error:
            raise Refusal(CODES.get(type(error), CONFLICT)) from error

    def journal(self, shard_id: str, token: str) -> bytes:
        self.services.queue.require_owner(shard_id, token)
        return b"".join(read_journal(self.services.db, shard_id))


class HttpCalls(DirectCalls):
    """Calls the queue over HTTP."""

    def claim(self, bearer: str, request: ClaimRequest) -> Assignment | None:
        try:
            return fake_worker.claim(self.services, bearer, request)
        except Refused as error:
            raise ConflictError(error.code) from error

    def call(self, name: str, shard_id: str, token: str, request: Any) -> Any:
        route = fake_worker.shard_route(shard_id, name)  # type: ignore[arg-type]
        try:
            reply = fake_worker.call(self.services, token, route, request).json()
        except Refused as error:
            if error.status == 503:
                raise DatabaseUnreachableError(error.body["error"]) from error
            raise Refusal(error.code) from error
        return (SyncReply if name == "sync" else ShardClosed).model_validate(reply)

    def journal(self, shard_id: str, token: str) -> bytes:
        worker = FakeWorker.__new__(FakeWorker)
        worker.services, worker.shard_id, worker.lease = self.services, shard_id, token
        return worker.stored_journal()


# -- workers -----------------------------------------------------------------------------------------


@dataclass
class Disk:
    """What a machine has of a shard: its journal, and the conversations of the attempts that it executed."""

    records: list[TerminalRecord] = field(default_factory=list)
    conversations: dict[Attempt, bytes] = field(default_factory=dict)

    @property
    def journal(self) -> bytes:
        return b"".join(each.to_line() for each in self.records)


@dataclass
class Worker:
    """A worker that believes that it owns a shard; ``sent`` bytes of its journal were acknowledged."""

    machine: str
    shard_id: str
    token: str
    disk: Disk
    sent: int
    log_lines: list[str] = field(default_factory=list)
    logs_sent: int = 0


@dataclass
class Call:
    """A call of a worker, as the network has it; ``effect`` is what the model does with it."""

    name: str
    worker: Worker
    request: Any
    effect: Callable[[datetime], Any]


@dataclass
class Claim:
    machine: str
    request: ClaimRequest


@dataclass
class Platform:
    """A platform, and what a test has of it; ``calls`` is a way to call its queue."""

    services: PlatformServices
    clock: ManualClock
    api: TestClient
    calls: DirectCalls
    bearer: str


class QueueMachine(RuleBasedStateMachine):
    """One run from its submit to its end, and through its retries."""

    platform: Platform

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[Worker] = []
        self.late: list[Call | Claim] = []
        self.claims: list[Claim] = []
        self.disks: dict[tuple[str, str], Disk] = {}
        self.made = 0
        self.ended: Any = None
        self.is_checked = False

    @property
    def now(self) -> datetime:
        return self.platform.clock.now()

    # -- steps -----------------------------------------------------------------------------------------

    @rule(
        action=st.sampled_from(ACTIONS),
        pick=PICK,
        outcomes=st.lists(st.sampled_from(list(OUTCOMES)), max_size=4),
        fate=FATES,
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def step(
        self, action: str, pick: int, outcomes: list[str], fate: str, flags: tuple[bool, bool, bool]
    ) -> None:
        """Let a user, the platform, the network, the clock or a worker do something."""
        model, self.is_checked = self.model, False
        if action == "stop" and not model.is_ended:
            self.stop()
        elif action == "retry" and model.is_ended:
            self.retry()
        elif action == "settle":
            self.settle()
        elif action in ("be killed", "have no room") and not model.is_interrupted:
            error = Killed() if action == "be killed" else BlobStoreError("there is no room.")
            self.settle_and_fail(pick + 1, error)
        elif action == "restart":
            self.restart()
        elif action == "wait":
            self.platform.clock.advance((0.6, 12.0, 31.0, 62.0)[pick % 4])
        elif action == "set the clock":
            self.platform.clock.jump((-400.0, -5.0, 400.0)[pick % 3])
        elif action == "claim":
            self.claim_shard(MACHINES[pick % 2], fate)
        elif action == "repeat a claim" and self.claims:
            self._send(self.claims[-1 - pick % len(self.claims)], fate)
        elif action == "arrive late" and self.late:
            call = self.late[pick % len(self.late)]
            if flags[0]:
                self.late.remove(call)
            self._send(call, "arrives" if fate == "late" else fate)
        elif (worker := self._worker(pick)) is not None:
            self._act(worker, action, pick, outcomes, fate, flags)

    def _act(
        self,
        worker: Worker,
        action: str,
        pick: int,
        outcomes: list[str],
        fate: str,
        flags: tuple[bool, bool, bool],
    ) -> None:
        if action == "release":
            self._release(worker, fate, *flags)
        elif action == "die":
            self.workers.remove(worker)
            if flags[0]:
                self.disks.pop((worker.machine, worker.shard_id), None)
        elif action == "misbehave":
            self._misbehave(worker, pick, flags)
        elif action == "lose the database" and not self.model.is_interrupted:
            self._lose_database(worker, is_written=flags[0])
        else:
            self._execute(worker, outcomes, pick)
            worker.log_lines.append(f"line {self._number()}")
            self._send(self._next_sync(worker, most=4), fate)
            if action == "finish":
                self._finish(worker, fate, "failed" if all(flags) else "finished")

    # -- users -----------------------------------------------------------------------------------------

    @initialize(rows=st.integers(2, 5), n=st.integers(1, 2), workers=st.sampled_from([3, 1]))
    def submit(self, rows: int, n: int, workers: int) -> None:
        body = submit_body(
            evaluation_config={"limit": rows, "n": n},
            advanced_config={"execution": {"pool": "gpu", "workers": workers}},
        )
        reply = self.platform.api.post(EVALS.route, json=body)
        assert reply.status_code == 200, reply.text
        self.run_id = reply.json()["id"]
        self.model = RunModel(rows, n, workers)

    def stop(self) -> None:
        reply = self.platform.api.post(f"{EVALS.route}/{self.run_id}/stop", json={})
        assert reply.status_code == 200, reply.text
        if not self.model.stops:
            self.model.stop(self.now)

    def retry(self) -> None:
        reply = self.platform.api.post(f"{EVALS.route}/{self.run_id}/retry", json={})
        if not self.model.unscored:
            assert reply.status_code == 409, reply.text
            return
        assert reply.status_code == 200, reply.text
        self.model.retry()
        self.ended = None

    # -- the platform ----------------------------------------------------------------------------------

    def settle(self) -> None:
        settle(self.platform.services)
        self.model.settle(self.now)

    def settle_and_fail(self, step: int, error: BaseException) -> None:
        """The platform is killed at its ``step``-th write of a shard of its own, or the store fails there."""
        services, model = self.platform.services, self.model
        services.queue.close_stopped()
        model.close_stopped(self.now)
        before = self._platform_shard()
        with failing_at(services, step, error) as met, suppress(Killed):
            services.platform_shards.execute_next()
        after = self._platform_shard()
        if after is None or before is None or after.attempt == before.attempt:
            assert met or model.take(self.now) is None
            return
        shard = model.take(self.now)
        assert shard is not None
        shard.token = after.lease_token
        # It has been executed, or returned, or its lease has to expire: nothing in between.
        if after.status not in ("pending", "running"):
            model.execute(shard, self.now)
        elif after.status == "pending":
            assert met and isinstance(error, BlobStoreError)
            shard.put_back(self.now, has_reason=True)
        else:
            assert met and isinstance(error, Killed)

    def _platform_shard(self) -> DbRunShard | None:
        """Return the last shard of the run that the platform itself executes."""
        mine = DbRunShard.run_id == self.run_id, DbRunShard.kind.in_(("prepare", "finalize"))
        with self.platform.services.db.session() as session:
            found = list(session.scalars(select(DbRunShard).where(*mine).order_by(DbRunShard.kind)))
        return found[0] if found else None

    def restart(self) -> None:
        old = self.platform.services
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "migrate", lambda _: None)
            services = build_services(old.config, clock=self.platform.clock)
        self.platform.services = self.platform.calls.services = services
        application(services)
        old.db.dispose()
        services.queue.extend_all()
        self.model.extend_all(self.now)
        self.model.is_interrupted = False

    # -- claims ----------------------------------------------------------------------------------------

    def claim_shard(self, machine: str, fate: str) -> None:
        request = ClaimRequest(
            claim_id=secrets.token_hex(16), sdk_version=__version__, machine=machine, isolation="off"
        )
        self.claims.append(Claim(machine, request))
        self._send(self.claims[-1], fate)

    def _claim(self, claim: Claim, *, is_heard: bool) -> None:
        try:
            expected = self.model.claim(claim.request.claim_id, claim.machine, self.now)
        except Refusal:
            with pytest.raises(ConflictError):
                self.platform.calls.claim(self.platform.bearer, claim.request)
            return
        found = self.platform.calls.claim(self.platform.bearer, claim.request)
        assert (found and found.shard.id) == (expected and expected.id)
        if found is None or expected is None:
            return
        token = found.lease.token.get_secret_value()
        assert expected.token in (None, token)
        expected.token = token
        digest = sha256(expected.journal).hexdigest() if expected.journal else None
        assert (found.shard.journal_bytes, found.shard.journal_sha256) == (len(expected.journal), digest)
        if is_heard:
            self._begin(claim.machine, expected)

    def _begin(self, machine: str, shard: Shard) -> None:
        """Continue from the machine's disk if it begins with the stored journal, else from the platform's."""
        assert shard.token is not None
        stored = self.platform.calls.journal(shard.id, shard.token)
        assert stored == shard.journal
        place = (machine, shard.id)
        if not self.disks.setdefault(place, Disk()).journal.startswith(stored):
            lines = stored.splitlines(keepends=True)
            self.disks[place] = Disk([TerminalRecord.from_line(line) for line in lines])
        # A machine has one worker of a shard at a time, and the former one was killed.
        self.workers = [each for each in self.workers if (each.machine, each.shard_id) != place]
        self.workers.append(Worker(machine, shard.id, shard.token, self.disks[place], len(stored)))

    # -- workers ---------------------------------------------------------------------------------------

    def _finish(self, worker: Worker, fate: str, outcome: Any) -> None:
        request = FinishRequest(outcome=outcome)
        place, model = (worker.shard_id, worker.token), self.model
        self._send(Call("finish", worker, request, lambda now: model.finish(*place, outcome, now)), fate)

    def _release(self, worker: Worker, fate: str, has_reason: bool, counts: bool, unfit: bool) -> None:
        request = ReleaseRequest(reason="it is full" if has_reason else None, counts=counts, unfit=unfit)
        place, model = (worker.shard_id, worker.token), self.model
        flags = {"has_reason": has_reason, "counts": counts, "unfit": unfit}
        self._send(Call("release", worker, request, lambda now: model.release(*place, now, **flags)), fate)

    def _misbehave(self, worker: Worker, pick: int, flags: Sequence[bool]) -> None:
        """Send what the platform must refuse: lines after a gap, other bytes, or another worker's attempt."""
        silent = f"r{4 * self._number()}"
        offset, written = len(worker.disk.journal) + 1, list[TerminalRecord]()
        if flags[0] and worker.disk.records:
            last = worker.disk.records[-1]
            offset = len(worker.disk.journal) - len(last.to_line())
            written = [record(last.row_index, last.run_index, rollout_id=silent)]
        elif flags[1]:
            every = {(row, number) for row in range(self.model.rows) for number in range(self.model.n)}
            foreign = sorted(every - self._attempts(worker)) or [(self.model.rows, 0)]
            offset, written = worker.sent, [record(*foreign[pick % len(foreign)], rollout_id=silent)]
        files = {"trajectories/unwanted.json": b"{}"}
        self._deliver(self._sync_call(worker, offset, written, files, (0, ["unwanted"])), is_heard=False)

    def _lose_database(self, worker: Worker, *, is_written: bool) -> None:
        """The database fails during a sync: before its transaction, or after that was committed."""
        call = self._next_sync(worker, most=4)
        if is_written:
            try:
                call.effect(self.now)
            except Refusal:
                return
        with (
            unreachable(self.platform.services.db, is_written=is_written),
            pytest.raises(DatabaseUnreachableError),
        ):
            self.platform.calls.call("sync", worker.shard_id, worker.token, call.request)
        self.model.is_interrupted = True

    # -- the network -----------------------------------------------------------------------------------

    def _send(self, call: Call | Claim, fate: str) -> None:
        if fate == "late":
            self.late.append(call)
            return
        for number in range(2 if fate == "twice" else 1):
            is_heard = fate == "arrives" or number == 1
            if isinstance(call, Claim):
                self._claim(call, is_heard=is_heard)
            else:
                self._deliver(call, is_heard=is_heard)

    def _deliver(self, call: Call, *, is_heard: bool = True) -> None:
        """Let the platform answer a call as the model does; the worker may hear the reply."""
        worker = call.worker
        arguments = call.name, worker.shard_id, worker.token, call.request
        try:
            expected = call.effect(self.now)
        except Refusal as refusal:
            with pytest.raises(Refusal, match=f"^{refusal}$"):
                self.platform.calls.call(*arguments)
            if is_heard:
                self._end(worker)
            return
        reply = self.platform.calls.call(*arguments)
        if call.name != "sync":
            assert reply.status == expected
            if is_heard:
                self._end(worker)
            return
        assert (reply.stop, reply.term_s) == (self.model.is_ending, 30.0)
        assert (reply.journal_bytes, reply.log_lines) == (len(expected.journal), expected.log_lines)
        if is_heard:
            worker.sent, worker.logs_sent = reply.journal_bytes, reply.log_lines

    def _end(self, worker: Worker) -> None:
        self.workers = [each for each in self.workers if each is not worker]

    def _next_sync(self, worker: Worker, most: int) -> Call:
        """Report what was not acknowledged yet, ``most`` records of it."""
        end, written = 0, list[TerminalRecord]()
        for each in worker.disk.records:
            end += len(each.to_line())
            if end > worker.sent and len(written) < most:
                written.append(each)
        files = {
            f"trajectories/{item_name(*attempt)}.json": worker.disk.conversations[attempt]
            for each in written
            if (attempt := (each.row_index, each.run_index)) in worker.disk.conversations
        }
        logs = worker.logs_sent, worker.log_lines[worker.logs_sent :]
        return self._sync_call(worker, worker.sent, written, files, logs)

    def _sync_call(
        self,
        worker: Worker,
        offset: int,
        written: list[TerminalRecord],
        files: dict[str, bytes],
        logs: tuple[int, list[str]],
    ) -> Call:
        lines = "".join(each.to_line().decode() for each in written)
        request = SyncRequest(
            journal=JournalPart(offset=offset, lines=lines),
            files=[
                RunFilePart(
                    path=path,
                    kind="trajectories",
                    size=len(content),
                    source_row_index=0,
                    content=zlib.compress(content),
                )
                for path, content in files.items()
            ],
            log=LogPart(
                first=logs[0], lines=[WorkerLogLine(timestamp=self.now, message=text) for text in logs[1]]
            ),
        )
        place, model = (worker.shard_id, worker.token), self.model
        return Call(
            "sync",
            worker,
            request,
            lambda now: model.sync(*place, now, offset=offset, records=written, files=files, logs=logs),
        )

    # -- what the workers know -------------------------------------------------------------------------

    def _worker(self, pick: int) -> Worker | None:
        """Return one of the workers; if there is none, one that takes over, if necessary from a silent one."""
        for _ in range(2):
            if self.workers:
                return self.workers[pick % len(self.workers)]
            if self.model.is_ended:
                self.retry()
            self.settle()
            self._check()
            self.claim_shard(MACHINES[pick % 2], "arrives")
            if not self.workers:
                self.platform.clock.advance(31.0)
        return None

    def _attempts(self, worker: Worker) -> frozenset[Attempt]:
        owned = [each.attempts for each in self.model.shards if each.id == worker.shard_id]
        return owned[0] if owned else frozenset()

    def _number(self) -> int:
        self.made += 1
        return self.made

    def _execute(self, worker: Worker, outcomes: list[str], pick: int) -> None:
        """Write the records of some attempts that the worker has left, most with their conversation."""
        for outcome in outcomes:
            done = {(each.row_index, each.run_index) for each in worker.disk.records}
            left = sorted(self._attempts(worker) - done)
            if not left:
                return
            attempt, number = left[pick % len(left)], self._number()
            if number % 4:
                worker.disk.conversations[attempt] = b'{"conversation": %d}' % number
            worker.disk.records.append(record(*attempt, rollout_id=f"r{number}", **OUTCOMES[outcome]))

    # -- what must hold after every step ---------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self._check()
        self.is_checked = True

    def _check(self) -> None:
        model, db = self.model, self.platform.services.db
        with db.session() as session:
            run = session.get_one(DbRun, self.run_id)
            asked = select(DbRunShard).where(DbRunShard.run_id == self.run_id)
            order = {"prepare": 0, "work": 1, "finalize": 2}
            shards = sorted(session.scalars(asked), key=lambda each: (order[each.kind], each.number))
            samples = session.scalars(select(DbSample).where(DbSample.run_id == self.run_id)).all()
            files = session.scalars(select(DbRunFile).where(DbRunFile.run_id == self.run_id)).all()
            mine = DbConversation.run_id == self.run_id
            inline = {each.path: each.content for each in session.scalars(select(DbConversation).where(mine))}
        status = (run.status, run.revision, run.accepted, run.stop_requested_at is not None)
        assert status == (model.status, model.revision, model.accepted, model.stops)
        assert (run.error is not None) == (model.fails and not (model.stops and model.is_ended))
        assert [each.kind for each in shards] == [each.kind for each in model.shards]
        for found, expected in zip(shards, model.shards, strict=True):
            expected.id = expected.id or found.id
            if expected.kind != "work" and expected.status == "running" and expected.token is None:
                expected.token = found.lease_token
            self._compare(found, expected)
        kept = {
            (each.row_index, each.run_index): (each.position, each.rollout_id, each.reward)
            for each in samples
        }
        assert kept == {
            attempt: (position, each.rollout_id, each.reward)
            for attempt, (position, each) in model.samples.items()
        }
        positions = [each.position for each in samples]
        assert len(set(positions)) == len(positions)
        assert all(position and 1 <= position <= run.accepted for position in positions)
        assert {each.path: each.revision for each in files} == {
            path: revision for path, (_, revision) in model.files.items()
        }
        for file in files:
            content = inline.pop(file.path) if file.blob_key is None else None
            expected_content = model.files[file.path][0]
            if content is not None:
                assert zlib.decompress(content) == expected_content
            elif model.is_ended:
                with self.platform.services.run_files.open(file) as opened:
                    assert opened.read() == expected_content
        assert not inline, "conversations without a file"
        if model.is_ended:
            self._check_end(run)

    def _compare(self, found: DbRunShard, expected: Shard) -> None:
        where = f"{expected.kind} {found.number}"
        assert found.id == expected.id, where
        assert found.status == expected.status, where
        if expected.status == "running":
            assert (found.lease_token, found.lease_expires_at) == (expected.token, expected.expires), where
        facts = (found.journal_bytes, found.failed_attempts, found.not_before)
        assert facts == (len(expected.journal), expected.failures, expected.not_before), where
        if expected.kind == "work":
            stored = b"".join(read_journal(self.platform.services.db, found.id))
            assert stored == (b"" if self.model.is_ended else expected.journal), where

    def _check_end(self, run: DbRun) -> None:
        """A run that has ended does not change any more, and has everything that was acknowledged."""
        facts = (run.completed_at, run.journal_blob, run.error, run.progress, run.metrics)
        if self.ended is not None:
            assert self.ended == facts
            return
        self.ended = facts
        model = self.model
        blobs = self.platform.services.blobs
        packed = b"".join(stored_lines(blobs, run.journal_blob)) if run.journal_blob else b""
        assert packed == model.journal
        # Each record has its conversation, if its worker had one, and no other.
        for attempt, (_, each) in model.samples.items():
            content = model.files.get(f"trajectories/{item_name(*attempt)}.json")
            number = int(each.rollout_id[1:])
            assert (content and content[0]) == (b'{"conversation": %d}' % number if number % 4 else None)
        mine = DbLogLine.subject_id == self.run_id
        with self.platform.services.db.session() as session:
            lines = list(
                session.execute(select(DbLogLine.message, DbLogLine.step).where(mine).order_by(DbLogLine.id))
            )
        said = [message.rpartition(": ")[2] for message, step in lines if step == ""]
        assert said == model.logged
        begun = [message for message, step in lines if step == "run" and "retried the run" in message]
        stops = [message for message, step in lines if step == "run" and "asked for the run" in message]
        endings = sum(step == "run" for _, step in lines) - len(begun) - len(stops)
        assert endings == model.endings == model.revision + 1
        if len(model.shards) > 1 and model.shards[-1].kind == "finalize":
            scored = [each for at, each in model.samples.values() if is_done(each) or at > model.reopened_at]
            assert run.progress == {"completed": len(scored), "total": model.rows * model.n}

    def teardown(self) -> None:
        """Let the run end, whatever has happened to it."""
        if not self.is_checked:
            # A step has failed; the next example needs a platform without this run.
            with self.platform.services.db.transaction() as session:
                session.execute(delete(DbRunShard).where(DbRunShard.run_id == self.run_id))
                session.execute(update(DbRun).where(DbRun.id == self.run_id).values(status="stopped"))
            self.restart()
            return
        if not self.model.is_ended:
            self.is_checked = False
            self.stop()
            for _ in range(3):
                self.platform.clock.advance(400.0)
                self.settle()
            assert self.model.is_ended
        self.agrees()


@contextmanager
def failing_at(services: PlatformServices, step: int, error: BaseException) -> Iterator[list[int]]:
    """Raise ``error`` instead of the ``step``-th write; gives a list that has it afterwards.

    Writes are those of the store, and those of the database if the platform is killed.
    """
    left, met = [step], list[int]()

    def failing(write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                met.append(step)
                raise error
            return write(*arguments, **options)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put", "delete"):
            patch.setattr(services.blobs, name, failing(getattr(services.blobs, name)))
        if isinstance(error, Killed):
            patch.setattr(services.db, "transaction", failing(services.db.transaction))
        yield met


@contextmanager
def unreachable(db: Database, *, is_written: bool) -> Iterator[None]:
    """Let transactions fail: before they begin, or after they were committed."""
    transaction = db.transaction

    @contextmanager
    def failing(**options: Any) -> Iterator[Any]:
        if is_written:
            with transaction(**options) as session:
                yield session
        raise DatabaseUnreachableError("the database does not answer.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db, "transaction", failing)
        yield


# -- the tests ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlatformConfig]:
    home = tmp_path / "platform"
    with postgres_database() if request.param == "postgresql" else platform_database(home) as url:
        yield PlatformConfig(home=home, database_url=url, port=8733)


EXAMPLES = {"sqlite": (45, 5), "postgresql": (12, 2)}
"""By engine, how many runs are executed by direct calls, and how many over HTTP."""


@pytest.mark.parametrize(
    ("calls", "times"),
    [(DirectCalls, 1), (HttpCalls, 1), pytest.param(DirectCalls, 20, marks=pytest.mark.nightly)],
)
def test_the_queue_does_what_its_model_does(
    api: TestClient,
    services: PlatformServices,
    clock: ManualClock,
    calls: type[DirectCalls],
    times: int,
) -> None:
    count = EXAMPLES["sqlite" if services.db.is_sqlite else "postgresql"][calls is HttpCalls]
    QueueMachine.platform = Platform(services, clock, api, calls(services), pool_token(services))
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=times * count,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
    QueueMachine.platform.services.db.dispose()


# -- calls at the same time ------------------------------------------------------------------------------

THREADS = 8


def at_once(act: Callable[[int], Any]) -> list[Any]:
    """Return what ``act`` returns in each of some threads, which begin at the same moment."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        barrier.wait(timeout=60)
        return act(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(begin, range(THREADS)))


@pytest.fixture
def pool(services: PlatformServices) -> Platform:
    return Platform(services, ManualClock(), None, DirectCalls(services), pool_token(services))  # type: ignore[arg-type]


def submitted(api: TestClient, services: PlatformServices, workers: int = 1) -> str:
    body = submit_body(
        evaluation_config={"limit": 6, "n": 1},
        advanced_config={"execution": {"pool": "gpu", "workers": workers}},
    )
    reply = api.post(EVALS.route, json=body)
    assert reply.status_code == 200, reply.text
    settle(services)
    return str(reply.json()["id"])


def shards_of(services: PlatformServices, *run_ids: str, kind: str = "work") -> list[DbRunShard]:
    mine = DbRunShard.run_id.in_(run_ids), DbRunShard.kind == kind
    with services.db.session() as session:
        return list(session.scalars(select(DbRunShard).where(*mine).order_by(DbRunShard.number)))


def claimed(pool: Platform, run_id: str) -> FakeWorker:
    assignment = pool.calls.claim(pool.bearer, claim_request(run_id=run_id))
    assert assignment is not None
    return FakeWorker(pool.services, assignment)


def test_each_shard_has_one_owner(api: TestClient, services: PlatformServices, pool: Platform) -> None:
    run_id = submitted(api, services, workers=3)
    owners: list[Assignment] = []

    def claim_until_all_are_owned(_: int) -> None:
        for _ in range(1000):
            if len(owners) >= 3:
                return
            if (found := pool.calls.claim(pool.bearer, claim_request())) is not None:
                owners.append(found)
        raise AssertionError("a shard was not claimed")

    at_once(claim_until_all_are_owned)
    assert {each.shard.id: each.lease.token.get_secret_value() for each in owners} == {
        shard.id: shard.lease_token for shard in shards_of(services, run_id)
    }
    assert len(owners) == 3 and {shard.attempt for shard in shards_of(services, run_id)} == {1}


def test_a_repeated_claim_gets_one_shard(api: TestClient, services: PlatformServices, pool: Platform) -> None:
    runs = [submitted(api, services) for _ in range(4)]
    request = claim_request()
    found = at_once(lambda _: pool.calls.claim(pool.bearer, request))
    leases = {each.lease.token.get_secret_value() for each in found if each is not None}
    owned = [shard for shard in shards_of(services, *runs) if shard.status == "running"]
    assert leases == {shard.lease_token for shard in owned}
    assert len(owned) == 1


def test_a_repeated_sync_is_accepted_once(
    api: TestClient, services: PlatformServices, pool: Platform
) -> None:
    worker = claimed(pool, submitted(api, services))
    written = fake_worker.records(6)
    request = SyncRequest(
        journal=JournalPart(offset=0, lines=journal_of(written).decode()),
        files=[worker.conversation(row) for row in range(6)],
        log=LogPart(first=0, lines=[WorkerLogLine(timestamp=services.clock.now(), message="once")]),
    )
    replies = at_once(lambda _: pool.calls.call("sync", worker.shard_id, worker.lease, request))
    assert {each.journal_bytes for each in replies} == {len(journal_of(written))}
    assert worker.stored_journal() == journal_of(written)
    assert [each.position for each in worker.samples()] == [1, 2, 3, 4, 5, 6]
    assert worker.run.accepted == 6
    assert worker.messages().count("once") == 1
    with services.db.session() as session:
        assert len(session.scalars(select(DbRunFile)).all()) == 6
        assert len(session.scalars(select(DbConversation)).all()) == 6


def test_a_late_owner_and_those_who_take_over(
    api: TestClient, services: PlatformServices, pool: Platform, clock: ManualClock
) -> None:
    """Either the former owner's records are accepted and it keeps the shard, or another one gets it without them."""
    worker = claimed(pool, submitted(api, services))
    for row in range(6):
        expire_leases(clock)
        stored = len(worker.stored_journal())
        request = SyncRequest(journal=JournalPart(offset=stored, lines=journal_of([record(row)]).decode()))

        def act(number: int, worker: FakeWorker = worker, request: SyncRequest = request) -> Any:
            if number:
                return pool.calls.claim(pool.bearer, claim_request())
            with suppress(Refusal):
                return pool.calls.call("sync", worker.shard_id, worker.lease, request)
            return None

        accepted, *claims = at_once(act)
        owners = [each for each in claims if each is not None]
        assert len(owners) == (accepted is None)
        for owner in owners:
            assert owner.shard.journal_bytes == stored
            with pytest.raises(Refusal, match=LEASE_LOST):
                pool.calls.call("sync", worker.shard_id, worker.lease, request)
            worker = FakeWorker(services, owner)
            worker.sync(journal=JournalPart(offset=stored, lines=journal_of([record(row)]).decode()))
    assert worker.stored_journal() == journal_of(fake_worker.records(6))


def test_a_slow_claim_does_not_get_the_lease_of_another_worker(
    api: TestClient,
    services: PlatformServices,
    pool: Platform,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard whose lease expires before its claim is answered may be claimed by another worker meanwhile."""
    run_id = submitted(api, services)
    answer, others = Assignments.of, list[FakeWorker]()

    def answer_late(assignments: Assignments, shard_id: str, *, next_poll_s: float) -> Assignment:
        monkeypatch.setattr(Assignments, "of", answer)
        expire_leases(clock)
        others.append(claimed(pool, run_id))
        return assignments.of(shard_id, next_poll_s=next_poll_s)

    monkeypatch.setattr(Assignments, "of", answer_late)
    assert pool.calls.claim(pool.bearer, claim_request()) is None
    others[0].records(1)


def test_a_run_ends_once(api: TestClient, services: PlatformServices, pool: Platform) -> None:
    run_id = submitted(api, services, workers=3)
    workers = [claimed(pool, run_id) for _ in range(3)]
    for worker in workers:
        worker.records(2)

    def finish(number: int) -> str:
        worker = workers[number % 3]
        reply = pool.calls.call("finish", worker.shard_id, worker.lease, FinishRequest(outcome="finished"))
        return str(reply.status)

    assert at_once(finish) == ["finished"] * THREADS
    at_once(lambda _: services.platform_shards.execute_next())
    (finalized,) = shards_of(services, run_id, kind="finalize")
    run = workers[0].run
    assert (run.status, finalized.attempt, run.accepted) == ("finished", 1, 6)
    assert workers[0].messages().count("finished") == 1
    assert b"".join(stored_lines(services.blobs, run.journal_blob or "")) == b"".join(
        worker.journal for worker in workers
    )

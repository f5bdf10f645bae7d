"""The run queue under lost, late and repeated calls, dead workers and a dying platform, compared with a model.

The network loses, delays and repeats calls and replies, and workers die with or without their disk. After each step the
database is compared with ``model.py``, which knows what was acknowledged and whose lease is the current one.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete, select, update

from osmosis_ai.api.models.workers import (
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
    shard_route,
)
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbConversation, DbLogLine, DbRun, DbRunFile, DbRunShard, DbSample
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.runs.journals import read_journal, stored_lines
from osmosis_ai.platform.services import PlatformServices
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, World, application
from tests.platform.databases import platform_database, postgres_database
from tests.platform.fake_worker import (
    EVALS,
    FakeWorker,
    Killed,
    Refused,
    call,
    claim,
    claim_request,
    expire_leases,
    journal_of,
    pool_token,
    records,
    settle,
)
from tests.platform.queue.model import Attempt, Refusal, RunModel, Shard, is_done

MACHINES = ("ash", "elm")
OUTCOMES: dict[str, dict[str, Any]] = {
    "right": {"reward": 1.0},
    "wrong": {"reward": 0.0},
    "unscored": {"reward": None},
    "skipped": {"status": "skipped", "reward": None},
    "failed": {"status": "failed", "reward": None, "boundary": "provider", "error_type": "timeout"},
}
FATES = st.sampled_from(["arrives", "arrives", "arrives", "reply lost", "late", "twice"])
ACTIONS = [
    *(["work"] * 8 + ["finish"] * 3 + ["release", "die", "misbehave"]),
    *("claim", "repeat a claim", "arrive late", "arrive late"),
    *("settle", "be killed", "be killed", "restart", "wait", "wait", "set the clock"),
    *("stop", "retry", "retry"),
]


@dataclass(eq=False)
class Worker:
    """A worker that believes that it owns a shard; ``sent`` bytes of its journal were acknowledged."""

    machine: str
    shard_id: str
    token: str
    disk: list[TerminalRecord]
    sent: int
    log_lines: list[str] = field(default_factory=list)
    logs_sent: int = 0


@dataclass
class Call:
    """A call of a worker, as the network has it; ``effect`` is what the model does with it."""

    name: Any
    worker: Worker
    request: Any
    effect: Callable[..., Any]


def conversation_of(written: TerminalRecord) -> bytes | None:
    """Return what a worker has of an attempt; of some it has nothing."""
    number = int(written.rollout_id[1:])
    return b'{"conversation": %d}' % number if number % 4 else None


def path_of(written: TerminalRecord) -> str:
    return f"trajectories/{item_name(written.row_index, written.run_index)}.json"


class QueueMachine(RuleBasedStateMachine):
    """One run from its submit to its end, and through its retries."""

    world: World
    clock: ManualClock
    api: TestClient
    bearer: str

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[Worker] = []
        self.late: list[Call | ClaimRequest] = []
        self.claims: list[ClaimRequest] = []
        self.disks: dict[tuple[str, str], list[TerminalRecord]] = {}
        self.tokens: set[str] = set()
        self.made = 0
        self.ended: Any = None
        self.is_checked = False

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @rule(
        action=st.sampled_from(ACTIONS),
        pick=st.integers(0, 7),
        outcomes=st.lists(st.sampled_from(list(OUTCOMES)), min_size=1, max_size=3),
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
        elif action == "be killed":
            self.be_killed(pick + 1)
        elif action == "restart":
            self.restart()
        elif action == "wait":
            self.clock.advance((0.6, 12.0, 31.0, 62.0)[pick % 4])
        elif action == "set the clock":
            self.clock.jump((-400.0, -5.0, 400.0)[pick % 3])
        elif action == "claim":
            self.claim_shard(MACHINES[pick % 2], fate)
        elif action == "repeat a claim" and self.claims:
            self.send(self.claims[-1 - pick % len(self.claims)], fate)
        elif action == "arrive late" and self.late:
            sent = self.late[pick % len(self.late)]
            if flags[0]:
                self.late.remove(sent)
            self.send(sent, "arrives" if fate == "late" else fate)
        elif (worker := self.any_worker(pick)) is not None:
            place = worker.shard_id, worker.token
            if action == "release":
                reason, counts = "it is full" if flags[0] else None, flags[1]
                request = ReleaseRequest(reason=reason, counts=counts)
                self.send(Call("release", worker, request, partial(model.release, *place, *flags[:2])), fate)
            elif action == "die":
                self.workers.remove(worker)
                if flags[0]:
                    self.disks.pop((worker.machine, worker.shard_id), None)
            elif action == "misbehave":
                self.misbehave(worker, pick, flags)
            else:
                self.execute(worker, outcomes, pick)
                self.send(self.next_sync(worker), fate)
                if fate == "reply lost":
                    # It repeats what it has sent, with what it has recorded since.
                    self.execute(worker, outcomes, pick)
                    self.send(self.next_sync(worker), "arrives")
                if action == "finish":
                    if not flags[2]:
                        self.complete(worker, outcomes, pick)
                    outcome: Any = "failed" if all(flags) else "finished"
                    ending = FinishRequest(outcome=outcome)
                    self.send(Call("finish", worker, ending, partial(model.finish, *place, outcome)), fate)

    # -- users -----------------------------------------------------------------------------------------

    @initialize(rows=st.integers(2, 5), n=st.integers(1, 2), workers=st.sampled_from([3, 1]))
    def submit(self, rows: int, n: int, workers: int) -> None:
        execution = {"execution": {"pool": "gpu", "workers": workers}}
        evaluation = {"limit": rows, "n": n}
        self.run_id = EVALS.taken(self.api, evaluation_config=evaluation, advanced_config=execution)["id"]
        self.model = RunModel(rows, n, workers)

    def stop(self) -> None:
        reply = self.api.post(f"{EVALS.route}/{self.run_id}/stop", json={})
        assert reply.status_code == 200, reply.text
        if not self.model.stops:
            self.model.stop(self.now)

    def retry(self) -> None:
        reply = self.api.post(f"{EVALS.route}/{self.run_id}/retry", json={})
        if not self.model.unscored:
            assert reply.status_code == 409, reply.text
            return
        assert reply.status_code == 200, reply.text
        self.model.retry()
        self.ended = None

    # -- the platform ----------------------------------------------------------------------------------

    def settle(self) -> None:
        settle(self.world)
        self.model.settle(self.now)

    def be_killed(self, step: int) -> None:
        """The platform is killed at its ``step``-th write while it executes a shard of its own."""
        model = self.model
        self.world.services.queue.close_stopped()
        model.close_stopped(self.now)
        before = self.platform_shard()
        with killed_at(self.world, step) as met, suppress(Killed):
            self.world.services.platform_shards.execute_next()
        after = self.platform_shard()
        if after is None or before is None or after.attempt == before.attempt:
            assert met or model.take(self.now) is None
            return
        shard = model.take(self.now)
        assert shard is not None
        shard.token = after.lease_token
        # It has been executed, or its lease has to expire: nothing in between.
        if after.status != "running":
            model.execute(shard, self.now)
        else:
            assert met

    def platform_shard(self) -> DbRunShard | None:
        """Return the last shard of the run that the platform itself executes."""
        mine = DbRunShard.run_id == self.run_id, DbRunShard.kind != "work"
        with self.world.services.db.session() as session:
            return session.scalars(select(DbRunShard).where(*mine).order_by(DbRunShard.kind)).first()

    def restart(self) -> None:
        old = self.world
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "migrate", lambda _: None)
            config = old.services.config
            QueueMachine.world = World(PlatformServices(config, clock=self.clock))
        application(self.world)
        old.services.db.dispose()
        self.world.services.queue.extend_all()
        self.model.extend_all(self.now)

    # -- claims ----------------------------------------------------------------------------------------

    def claim_shard(self, machine: str, fate: str) -> None:
        self.claims.append(claim_request(machine=machine, isolation="off"))
        self.send(self.claims[-1], fate)

    def claim(self, request: ClaimRequest, *, is_heard: bool) -> None:
        try:
            expected = self.model.claim(request.claim_id, self.now)
        except Refusal as refusal:
            with pytest.raises(Refused, match=f"409 {refusal}"):
                claim(self.world, self.bearer, request)
            return
        found = claim(self.world, self.bearer, request)
        assert (found and found.shard.id) == (expected and expected.id)
        if found is None or expected is None:
            return
        token = found.lease.token.get_secret_value()
        assert token == expected.token or (expected.token is None and token not in self.tokens)
        expected.token = token
        self.tokens.add(token)
        digest = sha256(expected.journal).hexdigest() if expected.journal else None
        assert (found.shard.journal_bytes, found.shard.journal_sha256) == (len(expected.journal), digest)
        if is_heard:
            self.begin(str(request.machine), expected, FakeWorker(self.world, found).stored_journal())

    def begin(self, machine: str, shard: Shard, stored: bytes) -> None:
        """Continue from the machine's disk if it begins with the stored journal, else from the platform's."""
        assert stored == shard.journal and shard.token is not None
        place = (machine, shard.id)
        if not journal_of(self.disks.setdefault(place, [])).startswith(stored):
            self.disks[place] = [TerminalRecord.from_line(line) for line in stored.splitlines(keepends=True)]
        # A machine has one worker of a shard at a time, and the former one was killed.
        self.workers = [each for each in self.workers if (each.machine, each.shard_id) != place]
        self.workers.append(Worker(machine, shard.id, shard.token, self.disks[place], len(stored)))

    # -- workers ---------------------------------------------------------------------------------------

    def any_worker(self, pick: int) -> Worker | None:
        """Return one of the workers; if there is none, one that takes over, if necessary from a silent one."""
        for _ in range(2):
            if self.workers:
                return self.workers[pick % len(self.workers)]
            if self.model.is_ended:
                self.retry()
            self.settle()
            self.check()
            self.claim_shard(MACHINES[pick % 2], "arrives")
            if not self.workers:
                self.clock.advance(31.0)
        return None

    def attempts_of(self, worker: Worker) -> frozenset[Attempt]:
        owned = [each.attempts for each in self.model.shards if each.id == worker.shard_id]
        return owned[0] if owned else frozenset()

    def execute(self, worker: Worker, outcomes: list[str], pick: int) -> None:
        """Write the records of some attempts that the worker has left, and a line to its log."""
        for outcome in outcomes:
            done = {(each.row_index, each.run_index) for each in worker.disk}
            if not (left := sorted(self.attempts_of(worker) - done)):
                break
            self.made += 1
            attempt = left[pick % len(left)]
            worker.disk.append(record(*attempt, rollout_id=f"r{self.made}", **OUTCOMES[outcome]))
        worker.log_lines.append(f"line {self.made} {len(worker.log_lines)}")

    def complete(self, worker: Worker, outcomes: list[str], pick: int) -> None:
        """Execute and report everything that the worker has left."""
        self.execute(worker, outcomes * len(self.model.attempts), pick)
        while worker in self.workers and worker.sent < len(journal_of(worker.disk)):
            self.send(self.next_sync(worker), "arrives")

    def next_sync(self, worker: Worker) -> Call:
        """Report what was not acknowledged yet, at most four records of it."""
        end, unsent = 0, list[TerminalRecord]()
        for each in worker.disk:
            end += len(each.to_line())
            if end > worker.sent:
                unsent.append(each)
        files = {path_of(each): content for each in unsent[:4] if (content := conversation_of(each))}
        logs = worker.logs_sent, worker.log_lines[worker.logs_sent :]
        return self.sync_call(worker, worker.sent, unsent[:4], files, logs)

    def misbehave(self, worker: Worker, pick: int, flags: Sequence[bool]) -> None:
        """Send what the platform must refuse: lines after a gap, other bytes, a second score, or another's attempt or file."""
        size = len(journal_of(worker.disk))
        own = self.attempts_of(worker)
        foreign = sorted(set(self.model.attempts) - own) or [(self.model.rows, 0)]
        owner = min(own, default=(0, 0))
        scored = [each for each in worker.disk if each.reward is not None]
        offset, written = size + 1, list[TerminalRecord]()
        if flags[0] and worker.disk:
            last = worker.disk[-1]
            offset = size - len(last.to_line())
            written = [record(last.row_index, last.run_index, rollout_id="r0")]
        elif flags[1]:
            offset, written = worker.sent, [record(*foreign[pick % len(foreign)], rollout_id="r0")]
        elif flags[2] and scored:
            offset, written = worker.sent, [record(scored[0].row_index, scored[0].run_index, rollout_id="r0")]
        elif pick % 2:
            offset, owner = worker.sent, foreign[0]
        unwanted = {f"artifacts/{item_name(*owner)}/unwanted": b"{}"}, (0, ["unwanted"])
        self.deliver(self.sync_call(worker, offset, written, *unwanted), is_heard=False)

    # -- the network -----------------------------------------------------------------------------------

    def send(self, sent: Call | ClaimRequest, fate: str) -> None:
        if fate == "late":
            self.late.append(sent)
            return
        for number in range(2 if fate == "twice" else 1):
            is_heard = fate == "arrives" or number == 1
            if isinstance(sent, ClaimRequest):
                self.claim(sent, is_heard=is_heard)
            else:
                self.deliver(sent, is_heard=is_heard)

    def call(self, sent: Call) -> Any:
        route = shard_route(sent.worker.shard_id, sent.name)
        reply = call(self.world, sent.worker.token, route, sent.request).json()
        return (SyncReply if sent.name == "sync" else ShardClosed).model_validate(reply)

    def deliver(self, sent: Call, *, is_heard: bool) -> None:
        """Let the platform answer a call as the model does; the worker may hear the reply."""
        worker = sent.worker
        is_over = sent.name != "sync"
        try:
            expected = sent.effect(now=self.now)
        except Refusal as refusal:
            is_over = True
            with pytest.raises(Refused, match=f"^409 {refusal}:"):
                self.call(sent)
        else:
            reply = self.call(sent)
            if is_over:
                assert reply.status == expected
            else:
                assert (reply.stop, reply.term_s) == (self.model.is_ending, 30.0)
                assert (reply.journal_bytes, reply.log_lines) == (len(expected.journal), expected.log_lines)
                if is_heard:
                    worker.sent, worker.logs_sent = reply.journal_bytes, reply.log_lines
        if is_over and is_heard and worker in self.workers:
            self.workers.remove(worker)

    def sync_call(
        self,
        worker: Worker,
        offset: int,
        written: list[TerminalRecord],
        files: dict[str, bytes],
        logs: tuple[int, list[str]],
    ) -> Call:
        request = SyncRequest(
            journal=JournalPart(offset=offset, lines=journal_of(written).decode()),
            files=[
                RunFilePart(
                    path=path,
                    kind=path.partition("/")[0],
                    size=len(content),
                    content=zlib.compress(content),
                    source_row_index=0,
                )
                for path, content in files.items()
            ],
            log=LogPart(
                first=logs[0], lines=[WorkerLogLine(timestamp=self.now, message=text) for text in logs[1]]
            ),
        )
        place = worker.shard_id, worker.token
        return Call("sync", worker, request, partial(self.model.sync, *place, offset, written, files, logs))

    # -- what must hold after every step ---------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self.check()
        self.is_checked = True

    def check(self) -> None:
        model = self.model
        with self.world.services.db.session() as session:
            run = session.get_one(DbRun, self.run_id)
            shards = session.scalars(select(DbRunShard).where(DbRunShard.run_id == self.run_id)).all()
            samples = session.scalars(select(DbSample).where(DbSample.run_id == self.run_id)).all()
            files = session.scalars(select(DbRunFile).where(DbRunFile.run_id == self.run_id)).all()
            mine = DbConversation.run_id == self.run_id
            inline = {each.path: each.content for each in session.scalars(select(DbConversation).where(mine))}
        status = (run.status, run.revision, run.accepted, run.stop_requested_at is not None)
        assert status == (model.status, model.revision, model.accepted, model.stops)
        assert (run.error is not None) == (model.fails and not (model.stops and model.is_ended))
        kinds = ("prepare", "work", "finalize")
        in_order = sorted(shards, key=lambda each: (kinds.index(each.kind), each.number))
        assert [each.kind for each in in_order] == [each.kind for each in model.shards]
        for found, expected in zip(in_order, model.shards, strict=True):
            self.compare(found, expected)
        kept = {
            (each.row_index, each.run_index): (each.position, each.rollout_id, each.reward)
            for each in samples
        }
        assert kept == {
            attempt: (position, each.rollout_id, each.reward)
            for attempt, (position, each) in model.samples.items()
        }
        assert {each.path: each.revision for each in files} == {
            path: revision for path, (_, revision) in model.files.items()
        }
        for file in files:
            content = model.files[file.path][0]
            if file.blob_key is None:
                assert zlib.decompress(inline.pop(file.path)) == content
            elif model.is_ended:
                with self.world.services.run_files.open(file) as opened:
                    assert opened.read() == content
        assert not inline, "conversations without a file"
        if model.is_ended:
            self.check_end(run)

    def compare(self, found: DbRunShard, expected: Shard) -> None:
        expected.id = expected.id or found.id
        where = f"{expected.kind} {found.number}"
        assert (found.id, found.status) == (expected.id, expected.status), where
        if expected.status == "running":
            expected.token = expected.token or found.lease_token
            assert (found.lease_token, found.lease_expires_at) == (expected.token, expected.expires), where
        facts = (found.journal_bytes, found.failed_attempts, found.not_before)
        assert facts == (len(expected.journal), expected.failures, expected.not_before), where
        stored = b"".join(read_journal(self.world.services.db, found.id))
        assert stored == (b"" if self.model.is_ended else expected.journal), where

    def check_end(self, run: DbRun) -> None:
        """A run that has ended does not change any more, and has everything that was acknowledged."""
        model = self.model
        facts = (run.completed_at, run.journal_blob, run.error, run.progress, run.metrics)
        if self.ended is not None:
            assert self.ended == facts
            return
        self.ended = facts
        packed = (
            b"".join(stored_lines(self.world.services.blobs, run.journal_blob)) if run.journal_blob else b""
        )
        assert packed == model.journal
        for _, each in model.samples.values():
            assert model.files.get(path_of(each), (None, 0))[0] == conversation_of(each)
        mine = DbLogLine.subject_id == self.run_id
        with self.world.services.db.session() as session:
            asked = select(DbLogLine.message, DbLogLine.step).where(mine).order_by(DbLogLine.id)
            lines = session.execute(asked).all()
        assert [message.rpartition(": ")[2] for message, step in lines if step == ""] == model.logged
        asked_for = ("retried the run", "asked for the run")
        steps = [message for message, step in lines if step == "run"]
        endings = [message for message in steps if not any(each in message for each in asked_for)]
        assert len(endings) == model.endings == model.revision + 1
        if model.shards[-1].kind == "finalize":
            scored = [each for at, each in model.samples.values() if is_done(each) or at > model.reopened_at]
            assert run.progress == {"completed": len(scored), "total": model.rows * model.n}

    def teardown(self) -> None:
        """Let the run end, whatever has happened to it."""
        if not self.is_checked:
            # A step has failed; the next example needs a platform without this run.
            with self.world.services.db.transaction() as session:
                session.execute(delete(DbRunShard).where(DbRunShard.run_id == self.run_id))
                session.execute(update(DbRun).where(DbRun.id == self.run_id).values(status="stopped"))
            self.restart()
            return
        if not self.model.is_ended:
            self.is_checked = False
            self.stop()
            for _ in range(3):
                self.clock.advance(400.0)
                self.settle()
            assert self.model.is_ended
        self.agrees()


@contextmanager
def killed_at(world: World, step: int) -> Iterator[list[int]]:
    """Kill the platform instead of its ``step``-th write to store or database; gives a list that has it afterwards."""
    left, met = [step], list[int]()

    def counted(write: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            met.append(step)
            raise Killed
        return write(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (world.services.blobs, "put"),
            (world.services.blobs, "delete"),
            (world.services.db, "transaction"),
        ):
            patch.setattr(owner, name, partial(counted, getattr(owner, name)))
        yield met


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlatformConfig]:
    home = tmp_path / "platform"
    with postgres_database() if request.param == "postgresql" else platform_database(home) as url:
        yield PlatformConfig(home=home, database_url=url, port=8733)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_the_queue_does_what_its_model_does(
    api: TestClient, world: World, clock: ManualClock, times: int
) -> None:
    QueueMachine.world, QueueMachine.clock, QueueMachine.api = world, clock, api
    QueueMachine.bearer = pool_token(world)
    examples = times * (36 if world.services.db.is_sqlite else 10)
    checks = list(HealthCheck)
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(max_examples=examples, stateful_step_count=30, suppress_health_check=checks),
    )
    QueueMachine.world.services.db.dispose()


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
def bearer(world: World) -> str:
    return pool_token(world)


def submitted(api: TestClient, world: World, workers: int = 1) -> str:
    """Submit an evaluation of 6 rows, and let the platform prepare it; return its id."""
    execution = {"execution": {"pool": "gpu", "workers": workers}}
    run = EVALS.taken(api, evaluation_config={"limit": 6, "n": 1}, advanced_config=execution)
    settle(world)
    return str(run["id"])


def shards_of(world: World, *run_ids: str, kind: str = "work") -> list[DbRunShard]:
    mine = DbRunShard.run_id.in_(run_ids), DbRunShard.kind == kind
    with world.services.db.session() as session:
        return list(session.scalars(select(DbRunShard).where(*mine).order_by(DbRunShard.number)))


def test_each_shard_has_one_owner(api: TestClient, world: World, bearer: str) -> None:
    run_id = submitted(api, world, workers=3)
    owners: list[Assignment] = []

    def claim_until_all_are_owned(_: int) -> None:
        for _ in range(1000):
            if len(owners) >= 3:
                return
            if (found := claim(world, bearer)) is not None:
                owners.append(found)
        raise AssertionError("a shard was not claimed")

    at_once(claim_until_all_are_owned)
    shards = shards_of(world, run_id)
    leases = {each.shard.id: each.lease.token.get_secret_value() for each in owners}
    assert leases == {shard.id: shard.lease_token for shard in shards}
    assert len(owners) == 3 and {shard.attempt for shard in shards} == {1}


def test_a_repeated_claim_gets_one_shard(api: TestClient, world: World, bearer: str) -> None:
    runs = [submitted(api, world) for _ in range(4)]
    request = claim_request()
    found = at_once(lambda _: claim(world, bearer, request))
    leases = {each.lease.token.get_secret_value() for each in found if each is not None}
    owned = [shard for shard in shards_of(world, *runs) if shard.status == "running"]
    assert leases == {shard.lease_token for shard in owned}
    assert len(owned) == 1


def test_a_repeated_sync_is_accepted_once(api: TestClient, world: World) -> None:
    submitted(api, world)
    worker = FakeWorker.claims(world, "gpu")
    worker.write(records(6))
    request: dict[str, Any] = {
        "journal": worker.part(),
        "files": [worker.conversation(row) for row in range(6)],
        "log": LogPart(first=0, lines=[WorkerLogLine(timestamp=world.services.clock.now(), message="once")]),
    }
    replies = at_once(lambda _: worker.sync(**request))
    assert {each.journal_bytes for each in replies} == {len(worker.journal)}
    assert worker.stored_journal() == worker.journal
    assert [each.position for each in worker.samples()] == [1, 2, 3, 4, 5, 6]
    assert (worker.run.accepted, worker.messages().count("once")) == (6, 1)
    with world.services.db.session() as session:
        for table in (DbRunFile, DbConversation):
            assert len(session.scalars(select(table)).all()) == 6


def test_a_late_owner_and_those_who_take_over(
    api: TestClient, world: World, bearer: str, clock: ManualClock
) -> None:
    """Either the former owner's records are accepted and it keeps the shard, or another one gets it without them."""
    submitted(api, world)
    worker = FakeWorker.claims(world, "gpu")
    for row in range(6):
        expire_leases(clock)
        stored = len(worker.stored_journal())
        part = JournalPart(offset=stored, lines=record(row).to_line().decode())

        def act(number: int, worker: FakeWorker = worker, part: JournalPart = part) -> Any:
            if number:
                return claim(world, bearer)
            with suppress(Refused):
                return worker.sync(journal=part)
            return None

        accepted, *claims = at_once(act)
        owners = [each for each in claims if each is not None]
        assert len(owners) == (accepted is None)
        for owner in owners:
            assert owner.shard.journal_bytes == stored
            with pytest.raises(Refused, match="409 LEASE_LOST"):
                worker.sync(journal=part)
            worker = FakeWorker(world, owner)
            worker.sync(journal=part)
    assert worker.stored_journal() == journal_of(records(6))


def test_a_slow_claim_does_not_get_the_lease_of_another_worker(
    api: TestClient, world: World, bearer: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard whose lease expires before its claim is answered may be claimed by another worker meanwhile."""
    submitted(api, world)
    answer, others = Assignments.of, list[FakeWorker]()

    def answer_late(assignments: Assignments, shard_id: str, *, next_poll_s: float) -> Assignment:
        monkeypatch.setattr(Assignments, "of", answer)
        expire_leases(clock)
        others.append(FakeWorker.claims(world, "gpu"))
        return assignments.of(shard_id, next_poll_s=next_poll_s)

    monkeypatch.setattr(Assignments, "of", answer_late)
    assert claim(world, bearer) is None
    others[0].records(1)


def test_a_run_ends_once(api: TestClient, world: World) -> None:
    run_id = submitted(api, world, workers=3)
    workers = [FakeWorker.claims(world, "gpu") for _ in range(3)]
    for worker in workers:
        worker.records_rest()
    endings = at_once(lambda number: workers[number % 3].finishes(completes=False, settles=False).status)
    assert endings == ["finished"] * THREADS
    at_once(lambda _: world.services.platform_shards.execute_next())
    (finalized,) = shards_of(world, run_id, kind="finalize")
    run = workers[0].run
    assert (run.status, finalized.attempt, run.accepted) == ("finished", 1, 6)
    assert workers[0].messages().count("finished") == 1
    assert b"".join(stored_lines(world.services.blobs, run.journal_blob or "")) == b"".join(
        worker.journal for worker in workers
    )

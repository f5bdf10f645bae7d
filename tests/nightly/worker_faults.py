"""Kill or cut off everything that a run depends on, in random order, and compare the results with an undisturbed run.

    python -m tests.nightly.worker_faults [--seed N] [--faults worker=10,server=10,…] [--minutes 20] [--slack-s 0]
    python -m tests.nightly.worker_faults --ray [raylet=3,head=3]

A platform with PostgreSQL and an S3 store, two worker machines behind relays that can be cut, and a slow model execute one
evaluation after another. Faults are `kill -9` of worker, rollout server, platform, PostgreSQL, store and machine, and network
cuts of half a lease and of two leases; some follow the previous one at once. A fault counts if the journal shows that it was
in mid-run. With ``--ray``, raylets and heads of a Ray cluster are killed instead. The exit status is 1 unless all of this holds:

- Accepted records are never lost, changed or doubled; samples, conversations and metrics equal those of an undisturbed run.
- A run that can move to the other machine does so within two leases.
- No process outlives its worker by more than ten seconds; a machine that was cut off runs no rollout after two leases.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_ai.services.demo import prepare_scratch
from tests.e2e.platform_process import PROGRAM, ROLLOUT_SERVER, WORKER, Platform, Run
from tests.e2e.relay import Relay
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.test_platform_kill import published
from tests.platform.postgres_server import PostgresCluster
from tests.platform.real_ray import HEAD, RAY, RealRay
from tests.platform.s3_server import CREDENTIALS, S3Server
from tests.standin_model import Reply, StandInModel

KINDS = ("worker", "server", "platform", "postgres", "s3", "machine", "half-cut", "two-cut")
RAY_KINDS = ("raylet", "head")
OWNER_LOST = frozenset({"worker", "machine", "two-cut"})
"""Faults after which another machine may claim the shard."""
LEASE_S, OUTLIVED_S = 3.0, 10.0
CONFIG, TOKEN = "configs/eval/nightly.toml", "nightly.token"
LOOK_S = 0.1


def say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {sentence}", flush=True)


# -- a slow model ------------------------------------------------------------------------------------


def answer(body: dict[str, Any]) -> Reply:
    """Answer right, wrong or with a tool call, by the conversation and the seed only: repeated requests get the same."""
    messages = body["messages"]
    draw = hashlib.sha256(json.dumps([messages, body.get("seed")], sort_keys=True).encode()).digest()
    question = next(message["content"] for message in messages if message["role"] == "user")
    factors = [int(found.replace(",", "")) for found in re.findall(r"-?\d[\d,]*", question)][:2]
    if len(factors) < 2 or draw[0] < 64:
        return Reply(content=f"I would say #### {draw[1]}")
    if draw[0] < 128 and messages[-1]["role"] == "user":
        return Reply(content=None, tool_calls=[("multiply", {"a": factors[0], "b": factors[1]})])
    return Reply(content=f"It is #### {factors[0] * factors[1]}")


@contextmanager
def slow_model(latency_ms: float) -> Iterator[str]:
    """Serve the model in a thread of this process; give its URL."""
    started, loop, urls = threading.Event(), asyncio.new_event_loop(), []

    async def serve() -> None:
        async with StandInModel(answer, latency_s=latency_ms / 1000, record=False) as model:
            urls.append(model.base_url)
            started.set()
            await asyncio.Event().wait()

    task = loop.create_task(serve())

    def work() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    started.wait()
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


# -- the parts ---------------------------------------------------------------------------------------


class Machine:
    """A worker machine with its own data directory and its own connection to the platform."""

    def __init__(self, world: World, name: str) -> None:
        self.name, self._world = name, world
        self.home = world.scratch.root / name
        self.relay = Relay(int(world.platform.port))
        self.is_cut = False
        self.start()

    def start(self) -> None:
        secret = {"OSMOSIS_DATABASE_URL", "OSMOSIS_BLOBS_URL", *CREDENTIALS}
        env = {name: value for name, value in self._world.platform.env.items() if name not in secret}
        env |= {"OSMOSIS_HOME": str(self.home), "OSMOSIS_CACHE_DIR": str(self.home / "cache")}
        words = ["platform", "worker", "--pool", "gpu", "--token-file", TOKEN, "--url", self.relay.url]
        workspace = self._world.platform.workspace
        with (self._world.scratch.root / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, *words], cwd=workspace, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def is_up(self) -> bool:
        return self.process.poll() is None

    def power_off(self) -> None:
        self.process.kill()
        self.process.wait()

    def cut(self, *, refuses: bool) -> None:
        """Cut it off from the platform; with ``refuses``, connections fail at once."""
        self.is_cut = True
        self.relay.cut(refuses=refuses)

    def heal(self, *, forgets: bool) -> None:
        self.relay.heal(forgets=forgets)
        self.is_cut = False

    def executes(self, shard_id: str, run_name: str) -> bool:
        return (self.home / "runs" / shard_id / "evaluation" / run_name).exists()

    def journal(self, run_name: str) -> list[bytes]:
        """Return the committed lines of this machine's journal of a run."""
        for path in self.home.glob(f"runs/*/evaluation/{run_name}/events.jsonl"):
            with suppress(OSError):
                return path.read_bytes().split(b"\n")[:-1]
        return []


class World:
    """A platform with its database and file store, and two worker machines unless it has another ``executor``."""

    def __init__(
        self,
        directory: Path,
        model_url: str,
        given: argparse.Namespace,
        executor: Mapping[str, str] | None = None,
    ) -> None:
        self.samples = given.rows * given.attempts
        self.machines: list[Machine] = []
        self.scratch = prepare_scratch(directory)
        pool = "" if executor else '\n[advanced.execution]\npool = "gpu"\n'
        config = (self.scratch.workspace / "configs/eval/multiply.toml").read_text()
        for key, value in {
            "model_path": '"hosted_vllm/stand-in"',
            "limit": given.rows,
            "n": given.attempts,
            "batch_size": 4,
        }.items():
            config, count = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", config)
            assert count == 1, key
        config += f'\n[env]\nHOSTED_VLLM_API_BASE = "{model_url}"\n{pool}'
        (self.scratch.workspace / CONFIG).write_text(config)
        self.scratch.push()
        self.postgres, self.s3 = PostgresCluster(), S3Server()
        self.postgres.start()
        self.s3.start()
        settings = {
            "OSMOSIS_DATABASE_URL": self.postgres.url,
            "OSMOSIS_BLOBS_URL": self.s3.bucket,
            "OSMOSIS_LEASE_SECONDS": f"{LEASE_S:.0f}",
            **CREDENTIALS,
            **(executor or {}),
        }
        self.platform = Platform(self.scratch, PROGRAM, settings)
        self.platform.command("platform", "connect", str(self.scratch.origin))
        self.platform.command("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        if not executor:
            self.platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
            self.machines = [Machine(self, "east"), Machine(self, "west")]

    def start_platform(self) -> None:
        """Start the platform, repeatedly while its database is unavailable, like a service manager."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with suppress(ValueError):  # it ended without a URL
                return self.platform.start()
            self.platform.process.wait()
            time.sleep(0.3)
        raise RuntimeError("the platform does not start; see platform.log")

    def fetch(self, run: Run) -> None:
        words = ["eval", "download", run.name, "--yes", "--type", "metrics,trajectories,journal"]
        self.platform.command(*words)

    def close(self) -> None:
        for machine in self.machines:
            machine.power_off()
            machine.relay.close()
        self.platform.process.kill()
        self.platform.process.wait()
        self.postgres.close()
        self.s3.close()


# -- processes ---------------------------------------------------------------------------------------


class Living(NamedTuple):
    """A process; its id alone may be reused later."""

    pid: int
    began: int

    @property
    def command(self) -> str:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace")
        return ""


@dataclass(eq=False)
class WatchedWorker:
    """A worker, its descendants, and when it and all of them had ended, in monotonic seconds."""

    process: Living
    host: int
    shard_id: str
    below: set[Living] = field(default_factory=set)
    ended_at: float | None = None
    quiet_at: float | None = None

    @property
    def outlived_s(self) -> float:
        return 0.0 if self.ended_at is None else (self.quiet_at or time.monotonic()) - self.ended_at

    def living(self) -> list[Living]:
        alive, _ = processes()
        return sorted(each for each in set(self.below) if alive.get(each.pid) == each.began)


class Census:
    """Looks at the workers of all hosts and their descendants, including orphaned ones, in a thread."""

    def __init__(self, world: World) -> None:
        self._world, self._ended = world, threading.Event()
        self.workers: dict[Living, WatchedWorker] = {}
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def worker_of(self, machine: Machine) -> WatchedWorker | None:
        at_work = (each for each in list(self.workers.values()) if each.host == machine.process.pid)
        return next((each for each in at_work if each.ended_at is None), None)

    def _work(self) -> None:
        while not self._ended.wait(0.15):
            alive, children = processes()
            for host in [machine.process.pid for machine in self._world.machines]:
                for process in children.get(host, ()):
                    if process not in self.workers and WORKER in process.command.split("\0"):
                        with suppress(OSError):  # it has just ended
                            # Workers run in the directory of their shard.
                            shard_id = Path(f"/proc/{process.pid}/cwd").readlink().name
                            self.workers[process] = WatchedWorker(process, host, shard_id)
            for worker in self.workers.values():
                if worker.quiet_at is None:
                    self._update(worker, alive, children)

    @staticmethod
    def _update(worker: WatchedWorker, alive: dict[int, int], children: dict[int, list[Living]]) -> None:
        ahead = [each for each in (worker.process, *worker.below) if alive.get(each.pid) == each.began]
        found = set(worker.below)
        while ahead:
            new = set(children.get(ahead.pop().pid, ())) - found
            found |= new
            ahead += new
        worker.below = found
        if alive.get(worker.process.pid) != worker.process.began:
            worker.ended_at = worker.ended_at or time.monotonic()
            if all(alive.get(each.pid) != each.began for each in found):
                worker.quiet_at = time.monotonic()


def processes() -> tuple[dict[int, int], dict[int, list[Living]]]:
    """Return the start time of each living process, and the children of each."""
    alive: dict[int, int] = {}
    children: dict[int, list[Living]] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                words = (directory / "stat").read_text().rpartition(")")[2].split()
                if words[0] not in "ZX":
                    found = Living(int(directory.name), int(words[19]))
                    alive[found.pid] = found.began
                    children.setdefault(int(words[1]), []).append(found)
    return alive, children


# -- runs --------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """The results of one kind of fault; ``takeovers`` in seconds."""

    done: int = 0
    counted: int = 0
    lost: int = 0
    doubled: int = 0
    takeovers: list[float] = field(default_factory=list)


@dataclass
class Verdicts:
    tallies: dict[str, Tally] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    slowest_rest_s: float = 0.0
    slowest_outlived_s: float = 0.0

    def of(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally())

    def violate(self, sentence: str) -> None:
        self.violations.append(sentence)
        say(f"VIOLATION: {sentence}")

    def table(self) -> str:
        lines = [f"{'kind':<12}{'done':>6}{'counted':>9}{'lost':>6}{'doubled':>9}{'slowest takeover':>18}"]
        for kind, it in sorted(self.tallies.items()):
            slowest = f"{max(it.takeovers):.1f} s of {len(it.takeovers)}" if it.takeovers else "-"
            lines.append(f"{kind:<12}{it.done:>6}{it.counted:>9}{it.lost:>6}{it.doubled:>9}{slowest:>18}")
        return "\n".join(lines)


class RunWatch:
    """An active run, whose accepted records are read from the platform's database."""

    def __init__(self, world: World, verdicts: Verdicts) -> None:
        self.run = world.platform.submit(CONFIG)
        self.accepted: dict[tuple[int, int], str] = {}
        self.status, self.attempt, self.last_kind = "pending", 0, "none"
        self._world, self._verdicts = world, verdicts

    @property
    def is_over(self) -> bool:
        return self.status in ("finished", "failed", "stopped")

    def look(self) -> bool:
        """Read its state and check that no accepted record was lost or changed; return whether it has changed."""
        import psycopg

        try:
            with psycopg.connect(self._world.postgres.url, options="-c statement_timeout=2000") as connection:
                state = connection.execute(
                    "SELECT status, (SELECT coalesce(sum(attempt), 0) FROM run_shards WHERE run_id = runs.id AND"
                    " kind = 'work') FROM runs WHERE id = %s",
                    [self.run.id],
                ).fetchone()
                rows = connection.execute(
                    "SELECT row_index, run_index, rollout_id FROM samples WHERE run_id = %s", [self.run.id]
                ).fetchall()
        except psycopg.Error:
            return False
        accepted = {(row, attempt): rollout for row, attempt, rollout in rows}
        gone = [place for place, rollout in self.accepted.items() if accepted.get(place) != rollout]
        if gone:
            self._verdicts.of(self.last_kind).lost += len(gone)
            self._verdicts.violate(
                f"{self.run.name}: accepted records were lost or changed: {sorted(gone)[:5]}"
            )
        assert state is not None
        changed = (*state, len(accepted)) != (self.status, self.attempt, len(self.accepted))
        self.accepted, (self.status, self.attempt) = accepted, state
        return changed

    def compare(self, calm: Run) -> None:
        """Compare it, ended, with the undisturbed run."""
        if self.status != "finished":
            self._verdicts.violate(f"{self.run.name} ended as {self.status}")
            return
        self._world.fetch(self.run)
        records = [json.loads(line) for line in (self.run.results / "events.jsonl").read_bytes().splitlines()]
        keys = [(record["row_index"], record["run_index"]) for record in records]
        if doubled := len(keys) - len(set(keys)):
            self._verdicts.of(self.last_kind).doubled += doubled
        mine, theirs = samples(self.run.results), samples(calm.results)
        for what, ours, expected in (
            ("journal", sorted(keys), sorted(self.accepted)),
            ("number of samples", len(keys), self._world.samples),
            ("samples", published(self.run.results), published(calm.results)),
            ("metrics", numbers(self.run.results), numbers(calm.results)),
            ("conversations", mine, theirs),
        ):
            if ours != expected:
                shown = "\n".join(map(str, (ours, expected)))
                self._verdicts.violate(f"{self.run.name}: its {what} differ: {shown[:2000]}")
        say(f"compared {self.run.name} (attempt {self.attempt})")


# -- faults ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault after ``records`` new records of a run and ``delay_s``; ``rides`` follows the previous one at once."""

    kind: str
    records: int
    delay_s: float
    away_s: float
    rides: bool
    refuses: bool
    forgets: bool
    draw: float


def plan(counts: Mapping[str, int], draw: random.Random) -> list[Fault]:
    """Return the given number of faults of each kind, in random order."""
    order = [kind for kind, count in sorted(counts.items()) for _ in range(count)]
    draw.shuffle(order)
    faults: list[Fault] = []
    owner_lost = False  # since the last fault that waited for records
    for kind in order:
        # A run fails if its owners are lost repeatedly without a record in between.
        rides = draw.random() < 0.35 and not (kind in OWNER_LOST and owner_lost)
        owner_lost = kind in OWNER_LOST or (rides and owner_lost)
        away = {"platform": (0.0, 4.0), "postgres": (0.0, 6.0), "s3": (0.2, 6.0), "machine": (0.0, 4.0)}
        away |= {"half-cut": (0.5 * LEASE_S,) * 2, "two-cut": (2 * LEASE_S,) * 2}
        if kind in ("postgres", "s3") and draw.random() < 0.1:
            away[kind] = (10.5, 12.0)  # more than three leases
        faults.append(
            Fault(
                kind,
                records=draw.randrange(1, 16),
                delay_s=draw.uniform(0.0, 1.5 if rides else 0.3),
                away_s=draw.uniform(*away.get(kind, (0.0, 0.0))),
                rides=rides,
                refuses=draw.random() < 0.3,
                forgets=draw.random() < 0.5,
                draw=draw.random(),
            )
        )
    return faults


@dataclass
class Healing:
    """Restores the target of a fault when it is due, in a thread, because several may be due at a time."""

    kind: str
    due: float
    heal: Callable[[], None]
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def begin(self) -> None:
        def work() -> None:
            try:
                self.heal()
            except BaseException as error:  # the edge of this thread; the other one raises it
                self.error = error

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def is_done(self) -> bool:
        if self.error is not None:
            raise RuntimeError(f"{self.kind} could not be restored") from self.error
        return self.thread is not None and not self.thread.is_alive()


class Series:
    """Executes evaluations until all faults have been injected or the time is over, and checks each."""

    def __init__(
        self, world: World, faults: list[Fault], verdicts: Verdicts, given: argparse.Namespace
    ) -> None:
        self._world, self.faults, self._verdicts = world, faults, verdicts
        self._slack_s, self._until = given.slack_s, time.monotonic() + given.minutes * 60
        self._census = Census(world)
        self._healings: list[Healing] = []
        self._away: set[str] = set()
        self._takeover: tuple[RunWatch, int, str, float] | None = None
        self._rests: list[tuple[Machine, int, WatchedWorker, float]] = []
        self._reported: set[Living] = set()
        self._rested: set[Living] = set()
        self._fell_at = self._changed_at = self._waits_since = time.monotonic()
        self._mark = 0

    def run(self, draw: random.Random) -> None:
        try:
            calm = RunWatch(self._world, self._verdicts)
            while not calm.is_over:
                self._look([calm])
                time.sleep(LOOK_S)
            self._world.fetch(calm.run)
            calm.compare(calm.run)
            while self.faults and time.monotonic() < self._until:
                self._round(
                    calm.run,
                    [RunWatch(self._world, self._verdicts) for _ in range(1 + (draw.random() < 0.4))],
                )
            until = time.monotonic() + OUTLIVED_S + self._slack_s + 1
            while time.monotonic() < until:
                self._look([])
                if all(each.quiet_at or not each.ended_at for each in list(self._census.workers.values())):
                    break
                time.sleep(LOOK_S)
        finally:
            self._census.close()

    def _round(self, calm: Run, watches: list[RunWatch]) -> None:
        """Inject faults until some runs, executed in parallel, have ended."""
        self._mark, self._changed_at = 0, time.monotonic()
        self._waits_since = time.monotonic()
        while self._healings or not all(watch.is_over for watch in watches):
            self._look(watches)
            self._heal()
            if self.faults and not all(watch.is_over for watch in watches):
                self._let_fall(watches)
            if time.monotonic() - self._changed_at > 180:
                raise RuntimeError(
                    f"no progress: {[(w.run.name, w.status, len(w.accepted)) for w in watches]}"
                )
            time.sleep(LOOK_S)
        for watch in watches:
            watch.compare(calm)

    def _let_fall(self, watches: list[RunWatch]) -> None:
        """Inject the next fault if its moment has come."""
        fault, now = self.faults[0], time.monotonic()
        if self._takeover is not None and not fault.rides:
            return
        open_watches = [watch for watch in watches if not watch.is_over]
        watch = open_watches[int(fault.draw * len(open_watches))]
        machine = self._owner(watch)
        # A new owner may not have fetched the journal yet.
        records = max(len(machine.journal(watch.run.name)) if machine else 0, len(watch.accepted))
        if not fault.rides and records < self._mark + fault.records:
            return
        if now < max(self._fell_at, self._waits_since) + fault.delay_s:
            return
        heal = machine and self._inject(fault, machine)
        if machine is None or heal is None:
            if now - self._waits_since > 20:
                self.faults.append(self.faults.pop(0))  # another time
                self._waits_since = now
            return
        self.faults.pop(0)
        counted = 0 < records < self._world.samples and watch.status == "running"
        tally = self._verdicts.of(fault.kind)
        tally.done, tally.counted = tally.done + 1, tally.counted + counted
        if not counted:
            self.faults.append(fault)  # again, until it was injected in mid-run
        for each in watches:
            each.last_kind = fault.kind
        when = (
            "right after the previous one" if fault.rides else "in mid-run" if counted else "not in mid-run"
        )
        say(
            f"{fault.kind} at {records} of {self._world.samples} of {watch.run.name} on {machine.name} ({when})"
        )
        self._watch_owner(fault, machine, watch)
        if fault.away_s:
            self._healings.append(Healing(fault.kind, now + fault.away_s, heal))
        self._fell_at = self._changed_at = self._waits_since = now
        self._mark = records

    def _inject(self, fault: Fault, machine: Machine) -> Callable[[], None] | None:
        """Inject a fault; return what restores its target, or None if there is no target now."""
        world, kind, worker = self._world, fault.kind, self._census.worker_of(machine)
        parts = {
            "platform": (lambda: world.platform.kill("platform"), world.start_platform),
            "postgres": (world.postgres.kill, world.postgres.start),
            "s3": (world.s3.kill, world.s3.start),
        }
        if kind in parts:
            kill, start = parts[kind]
            if kind in self._away:
                return None
            self._away.add(kind)
            kill()

            def heal() -> None:
                start()
                self._away.discard(kind)

            return heal
        if kind == "machine":
            if not machine.is_up:
                return None
            machine.power_off()
            return machine.start
        if worker is None or (machine.is_cut and kind.endswith("cut")):
            return None
        if kind.endswith("cut"):
            machine.cut(refuses=fault.refuses)
            return lambda: machine.heal(forgets=fault.forgets)
        servers = [each for each in worker.living() if ROLLOUT_SERVER in each.command]
        victims = [worker.process] if kind == "worker" else servers
        with suppress(ProcessLookupError, IndexError):
            os.kill(victims[int(fault.draw * len(victims))].pid, signal.SIGKILL)
            return lambda: None
        return None

    def _watch_owner(self, fault: Fault, machine: Machine, watch: RunWatch) -> None:
        idle = [
            each
            for each in self._world.machines
            if each is not machine and each.is_up and not each.is_cut and not self._census.worker_of(each)
        ]
        self._takeover = None
        if fault.kind in OWNER_LOST and idle and not self._healings and watch.status == "running":
            self._takeover = watch, watch.attempt, fault.kind, time.monotonic()
        worker = self._census.worker_of(machine)
        if fault.kind == "two-cut" and worker is not None:
            self._rests.append((machine, machine.process.pid, worker, time.monotonic()))

    def _owner(self, watch: RunWatch) -> Machine | None:
        """Return the machine that executes a run; of two that believe so, the one with the longer journal."""
        at_work = [
            machine
            for machine in self._world.machines
            if (worker := self._census.worker_of(machine))
            and machine.executes(worker.shard_id, watch.run.name)
        ]
        return max(at_work, key=lambda machine: len(machine.journal(watch.run.name)), default=None)

    def _heal(self) -> None:
        for healing in list(self._healings):
            if healing.is_done():
                self._healings.remove(healing)
                self._changed_at = time.monotonic()
            elif healing.thread is None and time.monotonic() >= healing.due:
                if healing.kind == "two-cut":
                    self._end_rests()
                healing.begin()

    def _look(self, watches: list[RunWatch]) -> None:
        for watch in watches:
            if not watch.is_over and watch.look():
                self._changed_at = time.monotonic()
        if self._takeover is not None:
            watch, attempt, kind, since = self._takeover
            took_s = time.monotonic() - since
            if watch.attempt > attempt:
                self._verdicts.of(kind).takeovers.append(took_s)
                if took_s > 2 * LEASE_S + self._slack_s:
                    self._verdicts.violate(f"{watch.run.name} moved {took_s:.1f} s after the {kind}")
            elif not watch.is_over and took_s > 60:
                self._verdicts.violate(f"{watch.run.name} did not move after the {kind}")
            if watch.attempt > attempt or watch.is_over or took_s > 60:
                self._takeover = None
        for worker in list(self._census.workers.values()):
            outlived_s = worker.outlived_s
            self._verdicts.slowest_outlived_s = max(self._verdicts.slowest_outlived_s, outlived_s)
            if outlived_s > OUTLIVED_S + self._slack_s and worker.process not in self._reported:
                self._reported.add(worker.process)
                self._verdicts.violate(
                    f"processes outlived the worker of {worker.shard_id} by {outlived_s:.0f} s"
                )
        for _machine, _host, worker, since in self._rests:
            if worker.process not in self._rested and (worker.ended_at or not worker.living()):
                self._rested.add(worker.process)
                rest_s = time.monotonic() - since
                self._verdicts.slowest_rest_s = max(self._verdicts.slowest_rest_s, rest_s)

    def _end_rests(self) -> None:
        """Check that machines that were cut off for two leases have ended their rollouts."""
        over = time.monotonic() - 2 * LEASE_S + 1.0  # the cut began a moment after its fault was noted
        for rest in [each for each in self._rests if each[3] <= over]:
            machine, host, worker, _ = rest
            self._rests.remove(rest)
            if host == machine.process.pid and not worker.ended_at and (left := worker.living()):
                commands = [each.command.replace("\0", " ")[:200] for each in left]
                self._verdicts.violate(
                    f"processes on {machine.name} two leases after it was cut off: {commands}"
                )


# -- a Ray cluster -----------------------------------------------------------------------------------


class RaySeries:
    """Kills nodes and the head of a Ray cluster that executes the runs."""

    def __init__(self, world: World, cluster: RealRay, verdicts: Verdicts) -> None:
        self._world, self._cluster, self._verdicts = world, cluster, verdicts
        self._nodes: list[str] = []
        self._started, self._changed_at = 0, time.monotonic()

    def run(self, kinds: list[str], draw: random.Random, until: float) -> None:
        """Inject each fault in the middle of a run, until the time is over; ``kinds`` keeps those that were not injected."""
        calm = self._finish(RunWatch(self._world, self._verdicts))
        self._world.fetch(calm.run)
        while kinds and time.monotonic() < until:
            watch, mark = RunWatch(self._world, self._verdicts), 0
            while kinds and not watch.is_over and time.monotonic() < until:
                self._look(watch)
                if len(watch.accepted) >= mark + draw.randrange(5, 20) and (node := self._node_of(watch)):
                    mark = len(watch.accepted)
                    self._fall(kinds.pop(0), node, watch)
            self._finish(watch).compare(calm.run)

    def _node_of(self, watch: RunWatch) -> str | None:
        program = f"worker\0--run\0{watch.run.id}"
        return next((name for name in self._nodes if self._cluster.processes(program, name)), None)

    def _fall(self, kind: str, node: str, watch: RunWatch) -> None:
        at, attempt, began = len(watch.accepted), watch.attempt, time.monotonic()
        if kind == "raylet":
            self._cluster.kill("raylet/raylet", node)
            self._nodes.remove(node)
        else:
            self._cluster.kill_head()
            self._cluster.start_head()
            self._nodes.clear()  # they do not find their cluster and end by themselves
        tally, watch.last_kind = self._verdicts.of(kind), kind
        tally.done, tally.counted = tally.done + 1, tally.counted + (0 < at < self._world.samples)
        say(f"{kind} at {at} of {self._world.samples} of {watch.run.name}")
        while watch.attempt == attempt and not watch.is_over:
            self._look(watch)
        if watch.attempt > attempt:
            tally.takeovers.append(time.monotonic() - began)

    def _finish(self, watch: RunWatch) -> RunWatch:
        while not watch.is_over:
            self._look(watch)
        return watch

    def _look(self, watch: RunWatch) -> None:
        # On a busy machine, a restarted node may exceed Ray's own limit of 30 s.
        if not self._cluster.is_up(HEAD):
            self._cluster.kill_head()
            self._cluster.start_head()
        self._nodes = [name for name in self._nodes if self._cluster.is_up(name)]
        while len(self._nodes) < 2 and self._cluster.answers():
            self._started += 1
            self._nodes.append(f"node-{self._started}")
            self._cluster.start_node(self._nodes[-1])
        if watch.look():
            self._changed_at = time.monotonic()
        # A cluster needs minutes to restart after its head was killed.
        if time.monotonic() - self._changed_at > 600:
            raise RuntimeError(f"{watch.run.name} makes no progress, at {len(watch.accepted)}")
        time.sleep(2 * LOOK_S)


def run_on_ray(directory: Path, model: str, given: argparse.Namespace, verdicts: Verdicts) -> int:
    """Kill nodes and heads of a cluster; return the number of faults for which there was no time."""
    if RAY is None:
        raise SystemExit("error: Ray is not installed (pip install '.[ray]').")
    kinds = [kind for kind, count in sorted(given.ray.items()) for _ in range(count)]
    draw = random.Random(given.seed)
    draw.shuffle(kinds)
    own = {"OSMOSIS_HOME": str(directory / "home"), "OSMOSIS_CACHE_DIR": str(directory / "cache")}
    cluster = RealRay(directory, own, cpus=0)
    try:
        while not cluster.answers():
            time.sleep(LOOK_S)
        executor = {
            "OSMOSIS_EXECUTOR": "ray",
            "OSMOSIS_RAY_ADDRESS": cluster.cluster.address,
            "OSMOSIS_RAY_TOKEN_FILE": str(cluster.token_file),
        }
        world = World(directory / "demo", model, given, executor)
        try:
            RaySeries(world, cluster, verdicts).run(kinds, draw, time.monotonic() + given.minutes * 60)
        finally:
            world.close()
    finally:
        cluster.close()
    return len(kinds)


def counts_of(words: str, kinds: Sequence[str]) -> dict[str, int]:
    """Read the number of faults of each kind: ``worker=10,s3=2``."""
    counts = dict(word.split("=") for word in words.split(","))
    if wrong := counts.keys() - set(kinds):
        raise argparse.ArgumentTypeError(f"unknown kinds: {', '.join(wrong)}")
    return {kind: int(count) for kind, count in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--faults", type=lambda words: counts_of(words, KINDS), default=dict.fromkeys(KINDS, 10)
    )
    parser.add_argument(
        "--ray", type=lambda words: counts_of(words, RAY_KINDS), nargs="?", const=dict.fromkeys(RAY_KINDS, 3)
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="time limit for the faults")
    parser.add_argument("--slack-s", type=float, default=0.0, help="added to time limits, for a busy machine")
    parser.add_argument("--rows", type=int, default=100, help="rows of each run")
    parser.add_argument("--attempts", type=int, default=4, help="attempts on each row")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="latency of the model")
    given = parser.parse_args()
    say(f"seed {given.seed}, faults {given.ray or given.faults}")
    verdicts = Verdicts()
    # Ray creates sockets in it, whose paths must be short. The logs are kept if a check fails.
    directory = Path(tempfile.mkdtemp(prefix="of-", dir="/tmp"))
    with slow_model(given.latency_ms) as model:
        if given.ray:
            left = run_on_ray(directory, model, given, verdicts)
        else:
            world, draw = World(directory / "demo", model, given), random.Random(given.seed)
            series = Series(world, plan(given.faults, draw), verdicts, given)
            try:
                series.run(draw)
            finally:
                world.close()
            left = len(series.faults)
    if left:
        verdicts.violate(f"{left} faults were not injected within {given.minutes:g} minutes")
    print(verdicts.table())
    say(f"rollouts ended at most {verdicts.slowest_rest_s:.1f} s after a machine was cut off")
    say(f"processes outlived their worker by at most {verdicts.slowest_outlived_s:.1f} s; data: {directory}")
    return 1 if verdicts.violations else 0


if __name__ == "__main__":
    sys.exit(main())

"""A machine that executes runs: claims shards, and starts and watches a worker process for each.

`osmosis platform worker` runs a host, and so do `platform start` (in a thread, over a private socket) and the jobs of a Ray
cluster. A host owns no state: the worker of a shard holds its lease, and the host only returns the shards of workers that
died.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Literal

from osmosis_ai._version import __version__
from osmosis_ai.api.models.workers import Assignment, ClaimReply, ClaimRequest, ReleaseRequest, SyncRequest
from osmosis_ai.controller.server_process import granted_cores
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.worker.client import PlatformUnreachableError, StoreAwayError, WorkerClient
from osmosis_ai.platform.worker.process import (
    StartWorker,
    WorkerExit,
    WorkingDirectory,
    remove_old,
    worker_starter,
)
from osmosis_ai.processes.addresses import on_stop_signals
from osmosis_ai.processes.child_process import ChildProcess, describe_exit
from osmosis_ai.processes.privacy import disable_inspection
from osmosis_ai.sandbox.gpus import VISIBLE_ENV, counted_gpus
from osmosis_ai.sandbox.isolation import IsolationSetting, SandboxCapability, check_sandbox, choose_isolation
from osmosis_ai.ui.numbers import amount, duration

Ending = Literal["ended", "left", "lease_lost", "unreachable", "died"]
"""How a worker ended: its shard has ended or was released; it was asked to leave; another worker has the shard, or the
platform refuses this one; the platform was unreachable; or it crashed."""
RUN_PATIENCE_S = 600.0
"""How long a host that was started for one run waits for it; as long as a ticket is valid."""
_ROUND_S = 0.2
_LAST_CALLS_S = 2.0
_LOOK_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SWEPT_EVERY_S = 3600.0
_YOUNG_S = 60.0
"""How long the host keeps the lease of a new worker, whose start may take longer than a lease."""
_HUNG_TERMS = 4
"""After so many terms of its lease in which it did not respond, a worker is killed."""
_LONGEST_PROBLEM = 500
_MOST_NAMED = 5
_MESSAGES: dict[Ending, str] = {
    "ended": "done with the run {}",
    "left": "released the run {}",
    "lease_lost": "lost the run {}: it ended, another worker has it, or the token was revoked",
}


@dataclass(frozen=True)
class HostOptions:
    """The resources that a machine offers, and for how long."""

    pool: str | None = None
    run_id: str | None = None
    slots: int = 1
    once: bool = False
    idle_exit_s: float | None = None
    labels: tuple[str, ...] = ()
    cpus: float | None = None
    gpus: int = 0
    memory_gb: float | None = None
    machine: str | None = None
    sandbox: SandboxCapability | None = None
    isolation: IsolationSetting | None = None

    @property
    def patience_s(self) -> float:
        """How long the host runs without a worker, in seconds."""
        if self.idle_exit_s is not None:
            return self.idle_exit_s
        return float("inf") if self.run_id is None else RUN_PATIENCE_S

    @property
    def is_single(self) -> bool:
        return self.once or self.run_id is not None

    def request(self, claim_id: str) -> ClaimRequest:
        problem = None
        if self.sandbox is not None and not self.sandbox.works:
            said = "; ".join(filter(None, (self.sandbox.problem, self.sandbox.remedy)))
            problem = " ".join(said.split())[:_LONGEST_PROBLEM]
        return ClaimRequest.of(
            self,
            claim_id=claim_id,
            sdk_version=__version__,
            sandbox=self.sandbox.works if self.sandbox is not None else None,
            sandbox_problem=problem,
            labels=list(self.labels),
        )


@dataclass
class ExecutedShard:
    """A shard that this machine has claimed; ``ending`` is None while its worker runs."""

    run_id: str
    run_name: str
    attempt: int
    ending: Ending | None = None


@dataclass
class _Hosted:
    """A worker process; ``touched_at`` is its last sign of life, which changed last at ``seen_at``."""

    shard: ExecutedShard
    assignment: Assignment
    directory: WorkingDirectory
    process: ChildProcess
    started_at: float
    kept_at: float
    seen_at: float
    touched_at: float = 0.0
    is_asked_to_end: bool = False
    is_hung: bool = False


def host_runs(
    address: str, token: str, options: HostOptions, *, say: Callable[[str], None]
) -> list[ExecutedShard]:
    """Execute a platform's runs on this machine, in its own ``OSMOSIS_HOME``, until asked to stop."""
    disable_inspection(os.environ)
    config = from_environment()
    client = WorkerClient(address, token)
    # The workers in all slots share the processors.
    cpus = None if options.cpus is None else min(options.cpus, granted_cores() / options.slots)
    start = worker_starter(config, address, cpus=cpus)
    config.prepare_home()
    sandbox = check_sandbox(config.home)
    if config.isolation == "required" or config.network == "none":
        choose_isolation("required", sandbox, config.network or "host")
    machine = socket.gethostname()[:128] or None
    options = replace(options, machine=machine, sandbox=sandbox, isolation=config.isolation)
    host = Host(client, start, options, config.runs_dir, address=address, say=say)
    with contextlib.closing(client), on_stop_signals(host.ask_to_end):
        seen = counted_gpus()
        if seen is not None and seen < options.gpus:
            # They may be hidden in a container.
            say(
                f"--gpus {options.gpus}, but this machine has {seen or 'none'} (/dev/nvidia*, {VISIBLE_ENV}); runs "
                "that require GPUs are still executed"
            )
        return host.run()


@dataclass
class Host:
    """The workers of one machine; ``say`` prints a message, and the address is for messages."""

    client: WorkerClient
    start_worker: StartWorker
    options: HostOptions
    runs_dir: Path
    _: KW_ONLY
    address: str = ""
    say: Callable[[str], None]
    # If set by the platform in this process, a claim is due.
    claimable: threading.Event = field(default_factory=threading.Event)
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._hosted: list[_Hosted] = []
        self._executed: list[ExecutedShard] = []
        self._calls: list[threading.Thread] = []
        self._answers: queue.SimpleQueue[ClaimReply | Exception] = queue.SimpleQueue()
        self._claim_id = secrets.token_hex(16)
        self._is_claiming = self._has_greeted = self._has_left = False
        self._released: set[str] = set()
        self._refused: Exception | None = None
        self._waits_for: Exception | None = None
        self._said = ""
        self._failures = self._unanswered = 0
        self._claim_at = self._sweep_at = 0.0
        self._busy_at = self.monotonic()
        self._asked_to_end = 0
        self._parent = os.getppid()

    def ask_to_end(self) -> None:
        """Release the shards and end; asked again, end the workers at once; a third time, end at once."""
        self._asked_to_end += 1

    def run(self) -> list[ExecutedShard]:
        """Execute shards until there is a reason to end; return them."""
        try:
            return self._run()
        finally:
            self._wait_for(self._leave(), unless_asked=2)

    def processes(self) -> Sequence[ChildProcess]:
        return [hosted.process for hosted in self._hosted]

    def _run(self) -> list[ExecutedShard]:
        try:
            while not self._is_over():
                self._tend()
                if self._may_claim():
                    self._claim()
                with contextlib.suppress(queue.Empty):
                    round_s = _LOOK_S if self.claimable.is_set() else _ROUND_S
                    self._answered(self._answers.get(timeout=round_s))
            with contextlib.suppress(queue.Empty):
                while True:
                    self._answered(self._answers.get(block=False))
        except KeyboardInterrupt:
            self._leave_at_once()
            raise
        finally:
            for hosted in self._hosted:
                hosted.process.kill()
        for call in self._calls:
            call.join()
        if self._refused is not None:
            if runs := len({shard.run_id for shard in self._executed}):
                self.say(f"executed {amount(runs, 'run')}")
            raise self._refused
        return self._executed

    @property
    def _is_leaving(self) -> bool:
        return self._asked_to_end > 0 or self._refused is not None

    def _is_over(self) -> bool:
        if self.options.run_id is not None and os.getppid() != self._parent:
            self._asked_to_end = max(1, self._asked_to_end)  # the job that started this process is gone
        if self._asked_to_end > 1:
            raise KeyboardInterrupt
        self._calls = [call for call in self._calls if call.is_alive()]
        if self._hosted or self._calls:
            return False
        is_done = self.options.is_single and bool(self._executed)
        return self._is_leaving or is_done or self._is_out_of_patience()

    def _is_out_of_patience(self) -> bool:
        if self._is_claiming or self.monotonic() < self._busy_at + self.options.patience_s:
            return False
        if self._waits_for is not None:
            raise self._waits_for
        if self.options.run_id is not None:
            raise OsmosisError(
                f"the run {self.options.run_id} could not be claimed: it does not exist for this worker, has ended, or "
                "another worker executes it.",
                hint="look at it with `osmosis eval info` or `osmosis train info`",
            )
        return True

    def _may_claim(self) -> bool:
        if self._is_leaving or self._is_claiming or (self.options.is_single and self._executed):
            return False
        if self.claimable.is_set() and not self._failures and not self._unanswered:
            self._claim_at = 0.0
        return self.monotonic() >= self._claim_at and len(self._hosted) < self.options.slots

    def _claim(self) -> None:
        """Claim in a thread, because signals and workers cannot wait for the answer."""
        request = self.options.request(self._claim_id)
        self.claimable.clear()
        self._is_claiming = True

        def ask() -> None:
            try:
                self._answers.put(self.client.claim(request))
            except Exception as error:  # the edge of this thread; the main one handles it
                self._answers.put(error)

        threading.Thread(target=ask, name="claim", daemon=True).start()
        if (now := self.monotonic()) >= self._sweep_at:
            self._sweep_at = now + _SWEPT_EVERY_S
            self._call(lambda: remove_old(self.runs_dir))

    def _answered(self, answer: ClaimReply | Exception) -> None:
        self._is_claiming = False
        if isinstance(answer, ClaimReply):
            self._waits_for, self._unanswered = None, 0
            self._greet()
            if answer.assignment is None:
                self._failures = 0
                self._claim_at = self.monotonic() + answer.next_poll_s
            else:
                self._claim_id = secrets.token_hex(16)
                self._begin(answer.assignment)
        elif isinstance(answer, PlatformUnreachableError):
            # The same claim again: it may have been answered.
            self._waits_for = answer
            self._claim_later(answer)
        elif isinstance(answer, OsmosisError) and answer.code == "CONFLICT" and self.options.run_id is None:
            self._claim_id = secrets.token_hex(16)
            self._claim_later(answer)
        else:
            # A ticket may expire while its run waits for the store.
            is_ticket = self.options.run_id is not None and isinstance(self._waits_for, StoreAwayError)
            self._refused = self._waits_for if is_ticket else answer
            if self._hosted:
                self.say(f"no more runs are claimed: {answer}")

    def _claim_later(self, error: OsmosisError) -> None:
        self._pause(self._unanswered)
        self._unanswered += 1
        if error.message != self._said:
            self._said = error.message
            self.say(f"trying again: {error.message}")

    def _greet(self) -> None:
        if self._has_greeted or self._is_leaving or not self.address:
            return
        self._has_greeted = True
        if self.options.run_id is None:
            self.say(f"executes runs of {self.address}")
        else:
            self.say(
                f"executes the run {self.options.run_id} of {self.address}, and waits for it for at most "
                f"{duration(self.options.patience_s)}"
            )

    def _begin(self, assignment: Assignment) -> None:
        if self._is_leaving:
            self._release(assignment, ReleaseRequest())
            return
        shard = ExecutedShard(assignment.run.id, assignment.run.name, assignment.lease.attempt)
        self._executed.append(shard)
        self._said = ""
        try:
            process = self.start_worker(assignment)
        except OSError as error:
            where, why = socket.gethostname(), error.strerror or error
            problem = f"the machine {where} could not start a worker: {why}"
            self._give_up(shard, assignment, ReleaseRequest(reason=problem, counts=True, unfit=True))
            return
        now, part = self.monotonic(), assignment.shard
        directory = WorkingDirectory(self.runs_dir, part.id)
        self._hosted.append(_Hosted(shard, assignment, directory, process, now, now, now))
        which = f", worker {part.number + 1} of {part.count}" if part.count > 1 else ""
        self.say(f"executing the run {shard.run_name} (claim {shard.attempt}{which})")

    def _tend(self) -> None:
        for hosted in list(self._hosted):
            status = hosted.process.poll()
            if status is not None:
                hosted.process.kill()  # what it started, too
                self._hosted.remove(hosted)
                self._busy_at = self.monotonic()
                self._handle_exit(hosted, status)
            elif self._is_leaving and not hosted.is_asked_to_end:
                hosted.is_asked_to_end = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(hosted.process.pid, signal.SIGTERM)
            else:
                self._keep_lease(hosted)
                self._end_if_hung(hosted)

    def _keep_lease(self, hosted: _Hosted) -> None:
        """Keep the lease of a worker whose start may take longer."""
        now, lease, shard_id = self.monotonic(), hosted.assignment.lease, hosted.assignment.shard.id
        if now - hosted.started_at <= _YOUNG_S and now - hosted.kept_at >= lease.term_s / 3:
            hosted.kept_at = now
            self._call(lambda: self.client.sync(shard_id, lease.token, SyncRequest()))

    def _end_if_hung(self, hosted: _Hosted) -> None:
        """Kill a worker that has not responded for long: it would keep its place for ever."""
        now, touched_at = self.monotonic(), hosted.directory.touched_at()
        if touched_at != hosted.touched_at:
            hosted.touched_at, hosted.seen_at = touched_at, now
        elif now - hosted.seen_at > _HUNG_TERMS * hosted.assignment.lease.term_s:
            hosted.is_hung = True
            hosted.process.kill()

    def _handle_exit(self, hosted: _Hosted, status: int) -> None:
        """Return a shard whose worker could not."""
        shard, assignment = hosted.shard, hosted.assignment
        if status == WorkerExit.ENDED:
            shard.ending = "left" if hosted.is_asked_to_end else "ended"
            self._failures = 0
        elif status == WorkerExit.LEASE_LOST:
            shard.ending = "lease_lost"
        elif hosted.is_asked_to_end and status == -signal.SIGTERM:
            shard.ending = "left"  # it was asked before it could listen
            self._release(assignment, ReleaseRequest())
        elif status == WorkerExit.BUSY:
            reason = "an earlier worker on the same machine has not ended yet"
            self._give_up(shard, assignment, ReleaseRequest(reason=reason))
        elif status == WorkerExit.UNREACHABLE:
            reason = hosted.directory.take_failure() or "the platform was unreachable"
            self._give_up(shard, assignment, ReleaseRequest(reason=reason), "unreachable")
        else:
            how = (
                "a process of its learner died"
                if status == WorkerExit.LEARNER_LOST
                else describe_exit(status)
            )
            how = "it did not respond" if hosted.is_hung else how
            where = f"{hosted.directory.log} on the machine {socket.gethostname()}"
            reason = f"the worker died ({how}); its output is in {where}"
            if self.monotonic() - hosted.started_at >= _LONGEST_PAUSE_S:
                self._failures = 0
            self._give_up(shard, assignment, ReleaseRequest(reason=reason, counts=True))
        if shard.ending in _MESSAGES:
            self.say(_MESSAGES[shard.ending].format(shard.run_name))
        self.claimable.set()

    def _give_up(
        self, shard: ExecutedShard, assignment: Assignment, request: ReleaseRequest, ending: Ending = "died"
    ) -> None:
        """Release a shard with a reason, and pause before the next claim, which may be of the same shard."""
        shard.ending = ending
        self._release(assignment, request)
        self.say(f"released the run {shard.run_name}: {request.reason}")
        self._pause(self._failures)
        self._failures += 1

    def _pause(self, times: int) -> None:
        self._claim_at = self.monotonic() + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(times, 16))

    def _leave_at_once(self) -> None:
        """End the workers and release their shards, within a moment."""
        for hosted in self._hosted:
            hosted.process.kill()
        calls = [self._release(hosted.assignment, ReleaseRequest()) for hosted in self._hosted]
        self._wait_for([*calls, *self._leave()], unless_asked=3)
        left = [(hosted.shard.run_name, hosted.assignment.shard.id) for hosted in self._hosted]
        again = "attempts that were not reported run again"
        if released := [name for name, shard in left if shard in self._released]:
            self.say(f"released {_named(released)} for another worker; {again}")
        if others := [name for name, shard in left if shard not in self._released]:
            leases = "its lease has" if len(others) == 1 else "their leases have"
            self.say(
                f"could not release {_named(others)}: another worker may continue when {leases} expired; {again}"
            )

    def _leave(self) -> list[threading.Thread]:
        """Announce once that this host claims no more, if the platform has ever answered."""
        if not self._has_greeted or self._has_left:
            return []
        self._has_left = True
        request = self.options.request(self._claim_id).model_copy(update={"leaves": True})
        return [self._call(lambda: self.client.claim(request))]

    def _release(self, assignment: Assignment, request: ReleaseRequest) -> threading.Thread:
        shard_id, lease = assignment.shard.id, assignment.lease

        def release() -> None:
            self.client.end(shard_id, lease.token, request, lasting_s=lease.term_s)
            self._released.add(shard_id)

        return self._call(release)

    def _call(self, call: Callable[[], object]) -> threading.Thread:
        """Make a call in a thread; the platform notices a failed one by silence, or when the lease expires."""

        def run() -> None:
            with contextlib.suppress(OsmosisError, RuntimeError):
                call()

        thread = threading.Thread(target=run, name="call", daemon=True)
        thread.start()
        self._calls.append(thread)
        return thread

    def _wait_for(self, calls: list[threading.Thread], *, unless_asked: int) -> None:
        deadline = self.monotonic() + _LAST_CALLS_S
        while running := [call for call in calls if call.is_alive()]:
            if self._asked_to_end >= unless_asked or self.monotonic() >= deadline:
                break
            running[0].join(_LOOK_S)


def _named(runs: Sequence[str]) -> str:
    further = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return f"the run{'' if len(runs) == 1 else 's'} {', '.join(runs[:_MOST_NAMED])}{further}"

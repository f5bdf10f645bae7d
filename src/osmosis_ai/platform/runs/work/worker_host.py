"""Worker host: claim runs and supervise a worker process for each.

The host owns no run. The worker repeats the host's claim under the same id and gets the same answer, since nothing was
sent in between. Secrets and the lease therefore reach the worker directly. The host keeps only the lease's token, to
release the run of a dead worker, and repeats the claim until the worker has started, which on a busy machine may take
longer than a lease.
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
from collections.abc import Callable

from pydantic import SecretStr

from osmosis_ai.api.wire.workers import LONGEST_WAIT_S, AssignedLease, Assignment, ReleaseRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.execute.worker_process import NOT_MINE, WorkerProcess
from osmosis_ai.platform.runs.work.host_terms import HostTerms
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    PlatformLink,
    PlatformUnreachableError,
    StoreAwayError,
    explained,
)
from osmosis_ai.platform.runs.work.taken_runs import TakenRuns
from osmosis_ai.platform.runs.work.worked_runs import (
    ENDINGS,
    SENTENCES,
    ComingRun,
    HostedWorker,
    KeptClaim,
    WorkedRun,
    words_of_left,
)
from osmosis_ai.processes import describe_exit

StartClaimed = Callable[[str, str], WorkerProcess]
"""Starts the worker of a run (its id), which is to repeat the claim of this id."""

ROUND_S = 0.2
LAST_WORD_S = 2.0
"""For how long a machine that ends tries to say that it leaves, and one that is to end at once to let go of its runs."""
_LOOK_S = 0.05
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_SWEPT_EVERY_S = 3600.0


class WorkerHost:
    """The workers of one machine."""

    def __init__(
        self,
        link: PlatformLink,
        start_worker: StartClaimed,
        terms: HostTerms,
        taken: TakenRuns,
        *,
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._start_worker = start_worker
        self._terms = terms
        self._taken = taken
        self._say = say
        self._takes = terms.told(terms.address) if terms.address is not None else None
        self._monotonic = monotonic
        self._workers: list[HostedWorker] = []
        self._coming: list[ComingRun] = []
        self._worked: list[WorkedRun] = []
        self._chores: list[threading.Thread] = []
        self._answers: queue.SimpleQueue[Assignment | ComingRun | Exception | None] = queue.SimpleQueue()
        self._let_go: set[SecretStr] = set()
        self._claim_id = secrets.token_hex(16)
        self._is_asking = False
        self._refused: Exception | None = None
        self._has_heard = self._has_left = False
        self._unreached: Exception | None = None
        self._store_away: Exception | None = None
        self._told = ""
        self._failures = self._unanswered = 0
        self._not_before = self._sweep_at = 0.0
        self._busy_at = monotonic()
        self._asked_to_end = 0
        self._parent = os.getppid()

    def ask_to_end(self) -> None:
        """Put the runs aside and end; asked again, let go of them as they are; a third time, end at once."""
        self._asked_to_end += 1

    def run(self) -> list[WorkedRun]:
        """Take runs until there is a reason to end; return those that were taken."""
        try:
            return self._take_runs()
        finally:
            self._hear_out(self._leave(), unless_asked=2)

    def _take_runs(self) -> list[WorkedRun]:
        try:
            while not self._is_over():
                self._tend_workers()
                if self._takes_more() and not self._is_asking and self._monotonic() >= self._not_before:
                    self._ask()
                with contextlib.suppress(queue.Empty):
                    self._take(self._answers.get(timeout=ROUND_S))
            with contextlib.suppress(queue.Empty):
                while True:
                    self._take(self._answers.get(block=False))  # what came too late to be worked on
        except KeyboardInterrupt:
            self._leave_at_once()
            raise
        finally:
            for worker in self._workers:
                worker.process.kill()
        for chore in self._chores:
            chore.join()
        if self._refused is not None:
            if self._worked:
                self._say(f"worked on {len(self._worked)} run{'' if len(self._worked) == 1 else 's'}")
            raise self._refused
        return self._worked

    # -- when to end ---------------------------------------------------------------------------

    @property
    def _is_leaving(self) -> bool:
        return self._asked_to_end > 0 or self._refused is not None

    def _is_over(self) -> bool:
        if self._terms.run_id is not None and os.getppid() != self._parent:
            self._asked_to_end = max(1, self._asked_to_end)  # the job that began us is gone
        if self._asked_to_end > 1:
            raise KeyboardInterrupt
        self._chores = [each for each in self._chores if each.is_alive()]
        if self._workers or self._coming or self._chores:
            return False
        return self._is_leaving or (self._is_single and bool(self._worked)) or self._was_idle_for_long()

    @property
    def _is_single(self) -> bool:
        return self._terms.once or self._terms.run_id is not None

    def _was_idle_for_long(self) -> bool:
        if self._is_asking or self._idle_left_s() > 0:
            return False
        if (waited_for := self._store_away or self._unreached) is not None:
            raise waited_for
        if self._terms.run_id is not None and self._refused is None:
            raise OsmosisError(
                self._terms.missed, hint="look at it with `osmosis eval info` or `osmosis train info`"
            )
        return True

    def _idle_left_s(self) -> float:
        return self._busy_at + self._terms.patience_s - self._monotonic()

    # -- claims --------------------------------------------------------------------------------

    def _takes_more(self) -> bool:
        if self._is_leaving or (self._is_single and (self._worked or self._coming)):
            return False
        return len(self._workers) + len(self._coming) < self._terms.slots

    def _ask(self) -> None:
        """Claim in a thread of its own, because the platform takes its time to answer and signals do not wait."""
        # The first answer says that this machine is taken: it is not waited for.
        wait_s = max(0.0, min(LONGEST_WAIT_S, self._idle_left_s())) if self._has_heard else 0.0
        offer = self._terms.offer(self._claim_id, wait_s)

        def ask() -> None:
            answer: Assignment | Exception | None
            try:
                answer = self._link.claim(offer)
            except Exception as error:  # the edge of this thread; the other one raises it
                answer = error
            self._answers.put(answer)

        if self._is_to_sweep():
            self._do("sweep", self._taken.sweep)
        self._is_asking = True
        threading.Thread(target=ask, name="claim", daemon=True).start()

    def _is_to_sweep(self) -> bool:
        """Tell whether what is old is to be cleared away: before the first claim, and before another one now and then."""
        if (now := self._monotonic()) < self._sweep_at:
            return False
        self._sweep_at = now + _SWEPT_EVERY_S
        return True

    def _take(self, answer: Assignment | ComingRun | Exception | None) -> None:
        if isinstance(answer, ComingRun):
            if answer in self._coming:
                self._coming.remove(answer)
                self._begin(answer)
            return
        self._is_asking = False
        if not isinstance(answer, Exception):
            self._unanswered = 0
            self._say_what_is_taken()
        self._has_heard = self._has_heard or not isinstance(answer, PlatformUnreachableError)
        self._unreached = answer if isinstance(answer, Exception) and not self._has_heard else None
        # A ticket may be void before the store is back: what its run waits for is the store all the same.
        waited_for, self._store_away = self._store_away, None
        if isinstance(answer, StoreAwayError) and self._terms.run_id is not None:
            self._store_away = answer
        if answer is None:
            self._failures = 0  # an idle host has recovered from earlier failures
            self._not_before = self._monotonic() + _FIRST_PAUSE_S  # of a platform that does not wait
            if self._terms.run_id is not None:
                self._say_once(f"still waits: {self._terms.missed}")
        elif isinstance(answer, PlatformUnreachableError):
            # And then the same claim: it may have been answered.
            self._pause(answer.message, self._unanswered)
            self._unanswered += 1
        elif isinstance(answer, OsmosisError) and answer.code == "CONFLICT" and self._terms.run_id is None:
            self._claim_id = secrets.token_hex(16)
            self._pause(answer.message, self._unanswered)
            self._unanswered += 1
        elif isinstance(answer, Exception):
            self._refused = waited_for or explained(answer)
            if self._workers:
                self._say(f"no more runs are taken: {answer}")
        elif self._is_leaving:
            self._release(answer.run.id, answer.lease, None)
        else:
            self._make_place(answer)

    def _say_what_is_taken(self) -> None:
        # Said when a claim was answered: who is refused, or reaches nobody, takes nothing.
        if self._takes is not None and not self._is_leaving:
            self._say(self._takes)
            self._takes = None

    def _make_place(self, assignment: Assignment) -> None:
        """Make a run's place on the disk, in a thread of its own: what another process clears away there may take long."""
        claim = KeptClaim(assignment.run.id, self._claim_id, assignment.lease, self._monotonic())
        coming, self._claim_id = ComingRun(assignment, claim), secrets.token_hex(16)
        self._coming.append(coming)
        self._told = ""

        def make() -> None:
            try:
                self._taken.take(claim.run_id, claim.claim_id)
            except OSError as error:
                coming.error = error
            self._answers.put(coming)

        threading.Thread(target=make, name="claim a place", daemon=True).start()

    def _begin(self, coming: ComingRun) -> None:
        assignment, claim = coming.assignment, coming.claim
        run = WorkedRun(assignment.run.id, assignment.run.name, assignment.lease.attempt)
        try:
            if coming.error is not None:
                raise coming.error
            process = self._start_worker(run.id, claim.claim_id)
        except OSError as error:
            run.ending = "set_back"
            self._worked.append(run)
            why = f"the machine {socket.gethostname()} could not start its worker: {error.strerror or error}"
            self._release(run.id, claim.lease, why, of_machine=True)
            self._count_failure(run, why)
            return
        self._workers.append(HostedWorker(run, claim, process, self._monotonic()))
        self._worked.append(run)
        self._say(f"took the run {run.name} (attempt {run.attempt})")

    def _pause(self, reason: str | None, times: int) -> None:
        """Try again later, twice as much later each of the ``times``; a reason that is to be said is said once."""
        self._not_before = self._monotonic() + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(times, 16))
        if reason is not None:
            self._say_once(f"trying again: {reason}")

    def _say_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._say(sentence)
            self._told = sentence

    # -- workers -------------------------------------------------------------------------------

    def _tend_workers(self) -> None:
        while self._is_leaving and self._coming:
            early = self._coming.pop().claim
            self._release(early.run_id, early.lease, None)
        for coming in self._coming:
            self._keep_claim(coming.claim)
        for worker in list(self._workers):
            status = worker.process.poll()
            if status is not None:
                worker.process.kill()  # what it started, too
                self._workers.remove(worker)
                self._busy_at = self._monotonic()
                self._handle_exit(worker, status)
            elif self._is_leaving:
                worker.ask_to_end()
            else:
                self._keep_claim(worker.claim)

    def _keep_claim(self, claim: KeptClaim) -> None:
        """Repeat a claim in its own thread until a worker has started, since the start may outlast a lease."""
        now = self._monotonic()
        if claim.has_begun or now - claim.claimed_at < claim.lease.term_s / 3:
            return
        claim.claimed_at = now
        offer = self._terms.offer(claim.claim_id, 0.0).model_copy(update={"run_id": claim.run_id})

        def ask() -> None:
            try:
                again = self._link.claim(offer)
            except CredentialRefusedError as error:
                self._refused = error
            except OsmosisError as error:
                claim.has_begun = claim.has_begun or error.code == "CONFLICT"
            else:
                claim.has_begun = again is None  # or it is another's by now, which the worker will hear, too
                claim.lease = again.lease if again is not None else claim.lease

        threading.Thread(target=ask, name="claim again", daemon=True).start()

    def _handle_exit(self, worker: HostedWorker, status: int) -> None:
        """Let go of what the worker could not let go of itself."""
        run = worker.run
        if worker.is_told and status == -signal.SIGTERM:
            status = NOT_MINE  # it was asked before it could listen
        run.ending = ENDINGS.get(status, "died")
        if run.ending == "ended":
            self._failures = 0
            run.ending = "left" if worker.is_told else "ended"
        if run.ending in SENTENCES:
            self._say(SENTENCES[run.ending].format(run.name))
        if run.ending in ("ended", "left", "refused"):
            return
        if run.ending == "lease_lost":
            self._do("lost run", lambda: self._taken.lose(run.id, worker.claim.claim_id))
        reason = f"its worker died ({describe_exit(status)})" if run.ending == "died" else None
        if run.ending in ("died", "not_mine"):
            self._release(run.id, worker.claim.lease, reason)
        if run.ending == "set_back":
            reason = self._taken.why_set_back(run.id)
        if run.ending == "lease_lost" or self._monotonic() - worker.began_at >= _LONGEST_PAUSE_S:
            self._failures = 0  # a machine that was cut off, or that could work for so long, is a good one
        self._count_failure(run, reason)

    def _count_failure(self, run: WorkedRun, reason: str | None) -> None:
        """Make a pause before the next run, which may be the same one; ``reason``: what is to be said of this one."""
        if reason is not None:
            self._say(f"let go of the run {run.name}: {reason}")
        self._pause(None, self._failures)
        self._failures += 1

    def _leave_at_once(self) -> None:
        """End the workers, and let go of their runs, for a moment or until asked to end once more."""
        for worker in self._workers:
            worker.process.kill()
        left = [(each.run.name, each.claim) for each in self._workers]
        left += [(each.assignment.run.name, each.claim) for each in self._coming]
        telling = [self._release(claim.run_id, claim.lease, None) for _, claim in left]
        self._hear_out([*telling, *self._leave()], unless_asked=3)
        let_go = set(self._let_go)
        for sentence in words_of_left([(name, claim.lease.token in let_go) for name, claim in left]):
            self._say(sentence)

    def _leave(self) -> list[threading.Thread]:
        """Announce once, in a thread, that this host takes no more runs. Skipped if the platform never answered."""
        if not self._has_heard or self._has_left:
            return []
        self._has_left = True
        offer = self._terms.offer(self._claim_id, 0.0)

        def tell() -> None:
            # If this fails or the platform does not know the message, it notices the silence.
            with contextlib.suppress(OsmosisError, RuntimeError):
                self._link.leave(offer)

        return [self._do("leave", tell)]

    def _hear_out(self, telling: list[threading.Thread], *, unless_asked: int) -> None:
        """Wait for last words, for a moment or until this machine was asked so often to end."""
        deadline = self._monotonic() + LAST_WORD_S
        while still := [each for each in telling if each.is_alive()]:
            if self._asked_to_end >= unless_asked or self._monotonic() >= deadline:
                break
            still[0].join(_LOOK_S)

    def _release(
        self, run_id: str, lease: AssignedLease, setback: str | None, *, of_machine: bool = False
    ) -> threading.Thread:
        """Release a run in its own thread, retrying while the platform is unavailable and the lease lasts."""
        request = ReleaseRequest(lease=lease.token, setback=setback, of_machine=of_machine)

        def tell() -> None:
            # What cannot be let go of by then is free. Who leaves at once closes the link over it.
            with contextlib.suppress(OsmosisError, RuntimeError):
                self._link.release(run_id, request)
                self._let_go.add(lease.token)

        return self._do("release", tell)

    def _do(self, name: str, chore: Callable[[], None]) -> threading.Thread:
        """Do something in a thread of its own that is to be done before this machine ends by itself."""
        thread = threading.Thread(target=chore, name=name, daemon=True)
        thread.start()
        self._chores.append(thread)
        return thread

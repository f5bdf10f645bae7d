"""A series of runs with faults, and the checks during and after each run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.platform_process import Run

from nightly.census import OUTLIVED_S, Census, WatchedWorker
from nightly.faults import OWNER_LOST, Fault, Healing, Injector
from nightly.machines import CONFIG, LEASE_S, Machine, World
from nightly.verdicts import Ledger, RunWatch, Verdicts

_LOOK_S = 0.1
_PATIENCE_S = 20.0
"""How long a fault waits for a target, in seconds."""
_STUCK_S = 180.0
"""The maximum time without a fault, a record or a change of state, in seconds."""
_GIVEN_UP_TAKEOVER_S = 60.0


@dataclass
class _Takeover:
    """A run that waits for another owner since a fault."""

    watch: RunWatch
    attempt: int
    kind: str
    since: float


@dataclass
class _Rest:
    """A machine that was cut off; its worker must have ended its rollouts within two leases."""

    machine: Machine
    worker: WatchedWorker
    host: int
    since: float
    quiet_s: float | None = None


class Series:
    """Executes evaluations until all faults have been injected, or the time is over.

    Args:
        faults: In their order.
        verdicts: Receives the results.
        until: The end, in monotonic seconds.
        slack_s: Added to every time limit, for a busy machine.
    """

    def __init__(
        self, world: World, faults: list[Fault], verdicts: Verdicts, *, until: float, slack_s: float
    ) -> None:
        self._world = world
        self._faults = faults
        self._verdicts = verdicts
        self._until = until
        self._slack_s = slack_s
        self._ledger = Ledger(world.postgres.url)
        self._census = Census(lambda: [machine.process.pid for machine in world.machines])
        self._injector = Injector(world, self._census)
        self._healings: list[Healing] = []
        self._takeover: _Takeover | None = None
        self._rests: list[_Rest] = []
        self._outlived: list[WatchedWorker] = []
        self._fell_at = self._changed_at = self._waits_since = time.monotonic()
        self._mark = self._seen = 0
        self._began = time.monotonic()

    def run(self, runs_at_once: Callable[[], int]) -> None:
        """Execute the series; ``runs_at_once`` returns the number of runs of the next round."""
        try:
            calm = self._calm()
            while self._faults and time.monotonic() < self._until:
                self._round(calm, runs_at_once())
            self._await_quiet()
        finally:
            self._census.close()
            self._ledger.close()

    def _calm(self) -> Run:
        """Execute and download an undisturbed run."""
        run = self._world.platform.submit(CONFIG)
        watch = RunWatch(run, self._verdicts)
        while not watch.is_over:
            self._look([watch])
            time.sleep(_LOOK_S)
        self._fetch(watch)
        watch.compare(run, self._world.samples)
        self._say(f"the undisturbed run took {time.monotonic() - self._began:.0f} s")
        return run

    def _round(self, calm: Run, runs: int) -> None:
        """Execute runs in parallel, and inject faults until they have ended."""
        watches = [RunWatch(self._world.platform.submit(CONFIG), self._verdicts) for _ in range(runs)]
        self._mark, self._changed_at = 0, time.monotonic()
        self._waits_since = time.monotonic()
        while self._healings or not all(watch.is_over for watch in watches):
            self._look(watches)
            self._heal()
            if self._faults and not all(watch.is_over for watch in watches):
                self._let_fall(watches)
            if time.monotonic() - self._changed_at > _STUCK_S:
                raise RuntimeError(
                    f"there is no progress: {[(w.run.name, w.status, len(w.accepted)) for w in watches]}"
                )
            time.sleep(_LOOK_S)
        for watch in watches:
            self._fetch(watch)
            if watch.status != "finished":
                self._verdicts.violate(f"{watch.run.name} ended as {watch.status}")
            else:
                watch.compare(calm, self._world.samples)
        self._say(
            f"compared {', '.join(watch.run.name for watch in watches)} (attempts {[w.attempt for w in watches]})"
        )

    # -- faults --------------------------------------------------------------------------------

    def _let_fall(self, watches: list[RunWatch]) -> None:
        """Inject the next fault if its moment has come."""
        fault, now = self._faults[0], time.monotonic()
        if self._takeover is not None and not fault.rides:
            return
        open_watches = [watch for watch in watches if not watch.is_over]
        watch = open_watches[int(fault.draw * len(open_watches))]
        machine = self._owner(watch)
        records = self._records(watch, machine)
        if not fault.rides and records < self._mark + fault.records:
            return
        if now < max(self._fell_at, self._waits_since) + fault.delay_s:
            return
        injected = None if machine is None else self._injector.inject(fault, machine)
        if injected is None or machine is None:
            if now - self._waits_since > _PATIENCE_S:
                self._faults.append(self._faults.pop(0))  # another time
                self._waits_since = now
            return
        self._faults.pop(0)
        counted = 0 < records < self._world.samples and watch.status == "running"
        tally = self._verdicts.of(fault.kind)
        tally.done, tally.counted = tally.done + 1, tally.counted + counted
        if not counted:
            self._faults.append(fault)  # again, until it was injected in mid-run
        for each in watches:
            each.last_kind = fault.kind
        when = (
            "right after the previous one" if fault.rides else "in mid-run" if counted else "not in mid-run"
        )
        away = f", unavailable for {fault.away_s:.1f} s" if injected.heal else ""
        self._say(
            f"{fault.kind} at {records} of {self._world.samples} of {watch.run.name} on {machine.name}{away} ({when})"
        )
        self._watch_owner(fault, machine, watch)
        if injected.heal is not None:
            self._healings.append(Healing(fault.kind, now + fault.away_s, injected.heal))
        self._fell_at = self._changed_at = self._waits_since = now
        self._mark = records

    def _watch_owner(self, fault: Fault, machine: Machine, watch: RunWatch) -> None:
        others = [each for each in self._world.machines if each is not machine]
        idle = [
            each
            for each in others
            if each.is_up and not each.is_cut and not self._census.worker_of(each.process.pid)
        ]
        self._takeover = None
        if fault.kind in OWNER_LOST and idle and not self._healings and watch.status == "running":
            self._takeover = _Takeover(watch, watch.attempt, fault.kind, time.monotonic())
        worker = self._census.worker_of(machine.process.pid)
        if fault.kind == "two-cut" and worker is not None:
            self._rests.append(_Rest(machine, worker, machine.process.pid, time.monotonic()))

    def _owner(self, watch: RunWatch) -> Machine | None:
        """Return the machine that executes a run; of two that believe so, the one with the longer journal."""
        at_work = []
        for machine in self._world.machines:
            worker = self._census.worker_of(machine.process.pid)
            if worker is not None and machine.executes(worker.shard_id, watch.run.name):
                at_work.append(machine)
        return max(at_work, key=lambda machine: len(self._journal(watch, machine)), default=None)

    def _records(self, watch: RunWatch, machine: Machine | None) -> int:
        """Return the number of records of a run; a new owner may not have fetched the journal yet."""
        return max(len(self._journal(watch, machine)) if machine else 0, len(watch.accepted))

    def _journal(self, watch: RunWatch, machine: Machine) -> list[bytes]:
        return machine.journal(watch.run.name)

    def _heal(self) -> None:
        for healing in list(self._healings):
            if healing.is_begun:
                if healing.is_done():
                    self._healings.remove(healing)
                    self._changed_at = time.monotonic()
            elif time.monotonic() >= healing.due:
                if healing.kind == "two-cut":
                    self._end_rests()
                healing.begin()

    # -- checks --------------------------------------------------------------------------------

    def _look(self, watches: list[RunWatch]) -> None:
        for watch in watches:
            if not watch.is_over and (row := self._ledger.read(watch.run.id)) is not None:
                if (len(row.accepted), row.attempt, row.status) != (
                    len(watch.accepted),
                    watch.attempt,
                    watch.status,
                ):
                    self._changed_at = time.monotonic()
                watch.update(row)
                if row.error:
                    print(f"  {watch.run.name}: {row.error}", flush=True)
        self._look_at_takeover()
        self._look_at_rests()
        self._look_at_ends()

    def _look_at_takeover(self) -> None:
        waiting = self._takeover
        if waiting is None:
            return
        took_s = time.monotonic() - waiting.since
        bar_s = 2 * LEASE_S + self._slack_s
        if waiting.watch.attempt > waiting.attempt:
            self._verdicts.of(waiting.kind).takeovers.append(took_s)
            if took_s > bar_s:
                self._verdicts.violate(
                    f"{waiting.watch.run.name} moved {took_s:.1f} s after the {waiting.kind}"
                )
            self._takeover = None
        elif waiting.watch.is_over:
            self._takeover = None
        elif took_s > _GIVEN_UP_TAKEOVER_S:
            self._verdicts.violate(f"{waiting.watch.run.name} did not move after the {waiting.kind}")
            self._takeover = None

    def _look_at_rests(self) -> None:
        for rest in self._rests:
            if rest.quiet_s is None and (rest.worker.ended_at or not self._census.below(rest.worker)):
                rest.quiet_s = time.monotonic() - rest.since

    def _end_rests(self) -> None:
        """Check that machines that were cut off for two leases have ended their rollouts."""
        self._look_at_rests()
        over = time.monotonic() - 2 * LEASE_S + 1.0  # the cut began a moment after its fault was noted
        ended = [rest for rest in self._rests if rest.since <= over]
        self._rests = [rest for rest in self._rests if rest.since > over]
        for rest in ended:
            left = self._census.below(rest.worker)
            if rest.quiet_s is not None:
                self._verdicts.slowest_rest_s = max(self._verdicts.slowest_rest_s, rest.quiet_s)
            elif left and rest.host == rest.machine.process.pid:
                commands = [self._census.command(pid) for pid in left]
                self._verdicts.violate(
                    f"processes on {rest.machine.name} two leases after it was cut off: {commands}"
                )

    def _look_at_ends(self) -> None:
        for worker in self._census.workers():
            outlived_s = worker.outlived_s
            is_known = worker in self._outlived
            self._verdicts.slowest_outlived_s = max(self._verdicts.slowest_outlived_s, outlived_s)
            if outlived_s > OUTLIVED_S + self._slack_s and not is_known:
                self._outlived.append(worker)
                self._verdicts.violate(
                    f"processes outlived the worker of {worker.shard_id} by {outlived_s:.0f} s"
                )

    def _await_quiet(self) -> None:
        """Wait until all descendants of ended workers have ended, up to the limit."""
        until = time.monotonic() + OUTLIVED_S + self._slack_s + 1
        while any(worker.quiet_at is None and worker.ended_at for worker in self._census.workers()):
            self._look_at_ends()
            if time.monotonic() > until:
                return
            time.sleep(_LOOK_S)

    def _fetch(self, watch: RunWatch) -> None:
        words = ["eval", "download", watch.run.name, "--yes", "--type", "metrics,trajectories,journal"]
        self._world.platform.command(*words)

    def _say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {sentence}", flush=True)

"""The faults: kinds, their order, and how each is injected."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tests.e2e.platform_process import ROLLOUT_SERVER

from nightly.census import Census
from nightly.machines import LEASE_S, Machine, World

KINDS = ("worker", "server", "platform", "postgres", "s3", "machine", "half-cut", "two-cut")
"""The part that is killed, or the number of leases for which a machine is cut off."""
OWNER_LOST = frozenset({"worker", "machine", "two-cut"})
"""Faults after which another machine may claim the shard."""
_AWAY_S = {"platform": (0.0, 4.0), "postgres": (0.0, 6.0), "s3": (0.2, 6.0), "machine": (0.0, 4.0)}
_LONG_AWAY_S = (10.5, 12.0)
"""More than three leases."""
_CUT_LEASES = {"half-cut": 0.5, "two-cut": 2.0}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: One of :data:`KINDS`.
        records: The number of new records of the run to wait for.
        delay_s: The time to wait after that.
        away_s: How long the target is unavailable.
        rides: Whether it follows the previous fault without waiting for records.
        refuses: Whether a cut refuses connections instead of leaving them without an answer.
        forgets: Whether a cut closes the existing connections at its end.
        draw: Chooses the target; between 0 and 1.
    """

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
    for kind in order:
        # A run fails if its owners are lost repeatedly without a record in between.
        rides = draw.random() < 0.35 and not (
            kind in OWNER_LOST and any(each.kind in OWNER_LOST for each in _burst(faults))
        )
        faults.append(
            Fault(
                kind,
                records=draw.randrange(1, 16),
                delay_s=draw.uniform(0.0, 1.5 if rides else 0.3),
                away_s=_away_s(kind, draw),
                rides=rides,
                refuses=draw.random() < 0.3,
                forgets=draw.random() < 0.5,
                draw=draw.random(),
            )
        )
    return faults


def _burst(faults: list[Fault]) -> list[Fault]:
    """Return the faults since the last one that waited for records."""
    burst: list[Fault] = []
    for fault in reversed(faults):
        burst.append(fault)
        if not fault.rides:
            break
    return burst


def _away_s(kind: str, draw: random.Random) -> float:
    if kind in _CUT_LEASES:
        return _CUT_LEASES[kind] * LEASE_S
    if kind in ("postgres", "s3") and draw.random() < 0.1:
        return draw.uniform(*_LONG_AWAY_S)
    return draw.uniform(*_AWAY_S.get(kind, (0.0, 0.0)))


@dataclass(frozen=True)
class Injected:
    """A fault that was injected; ``heal`` restores what is unavailable, if anything is."""

    heal: Callable[[], None] | None = None


class Injector:
    """Injects faults into a world."""

    def __init__(self, world: World, census: Census) -> None:
        self._world = world
        self._census = census
        self._away: set[str] = set()

    def inject(self, fault: Fault, machine: Machine) -> Injected | None:
        """Inject a fault, into this machine if it concerns one; None if its target does not exist now."""
        how = {
            "worker": lambda: self._kill_worker(machine),
            "server": lambda: self._kill_server(machine, fault.draw),
            "machine": lambda: self._power_off(machine),
            "half-cut": lambda: self._cut(machine, fault),
            "two-cut": lambda: self._cut(machine, fault),
        }
        return how[fault.kind]() if fault.kind in how else self._kill_part(fault.kind)

    def _kill_worker(self, machine: Machine) -> Injected | None:
        worker = self._census.worker_of(machine.process.pid)
        return None if worker is None else _killed(worker.process.pid)

    def _kill_server(self, machine: Machine, draw: float) -> Injected | None:
        worker = self._census.worker_of(machine.process.pid)
        found = [] if worker is None else sorted(self._census.below(worker, ROLLOUT_SERVER))
        return _killed(found[int(draw * len(found))]) if found else None

    def _power_off(self, machine: Machine) -> Injected | None:
        if not machine.is_up:
            return None
        machine.power_off()
        return Injected(machine.start)

    def _cut(self, machine: Machine, fault: Fault) -> Injected | None:
        if machine.is_cut or self._census.worker_of(machine.process.pid) is None:
            return None
        machine.cut(refuses=fault.refuses)
        return Injected(lambda: machine.heal(forgets=fault.forgets))

    def _kill_part(self, kind: str) -> Injected | None:
        """Kill a part that all machines need, unless it is unavailable already."""
        world = self._world
        kill, start = {
            "platform": (lambda: world.platform.kill("platform"), world.start_platform),
            "postgres": (world.postgres.kill, world.postgres.start),
            "s3": (world.s3.kill, world.s3.start),
        }[kind]
        if kind in self._away:
            return None
        self._away.add(kind)
        kill()

        def heal() -> None:
            start()
            self._away.discard(kind)

        return Injected(heal)


def _killed(pid: int) -> Injected | None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return Injected()
    return None


class Healing:
    """Restores the target of a fault in a thread, because several may be due at a time; ``due`` in monotonic seconds."""

    def __init__(self, kind: str, due: float, heal: Callable[[], None]) -> None:
        self.kind = kind
        self.due = due
        self._heal = heal
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it is in progress or done."""
        return self._thread is not None

    def begin(self) -> None:
        """Begin to restore it."""
        self._thread = threading.Thread(target=self._work, name=f"heal {self.kind}", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        """Whether it is restored; a RuntimeError if that failed."""
        if self._thread is None or self._thread.is_alive():
            return False
        if self._error is not None:
            raise RuntimeError(f"{self.kind} could not be restored") from self._error
        return True

    def _work(self) -> None:
        try:
            self._heal()
        except BaseException as error:  # the edge of this thread; the other one raises it
            self._error = error

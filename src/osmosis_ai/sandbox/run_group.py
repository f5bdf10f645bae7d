"""Control group of a run: limits, one leaf per part, and cleanup.

    <delegated>/osmosis-run-<run>.<process>.<since>/            memory.max, pids.max, cpu.max of the run
    <delegated>/osmosis-run-<run>.<process>.<since>/server-1/   one part; out of memory, only this part ends, as a whole

A program moves itself to its leaf before it becomes the sandbox, so no process of the run ever runs outside. If the
move fails, the program does not run. The name contains the creating process and its start time in kernel ticks, so that
the next process can clean up after one that was killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.sandbox.control_groups import Delegation, enable, processes_of
from osmosis_ai.sandbox.limits import RunLimits
from osmosis_ai.sandbox.resource_control import MetLimit, Resource, limit_words

logger = logging.getLogger(__name__)

PREFIX = "osmosis-run-"
SCOPE = "cgroup of a systemd scope"
RESOURCE_OF: dict[str, Resource] = {"memory": "memory", "pids": "processes", "cpu": "CPU"}
_JOIN = 'echo $$ > "$0" && exec "$@"'
_CPU_PERIOD_US = 100_000
_MORE_MEMORY = "give the run more with `memory_gb` under [advanced.execution], or have fewer rollouts at once"
_FEWER_PROCESSES = "threads count, too: start fewer of both for each rollout, or have fewer rollouts at once"
_GIB = 1024**3
_ENDING_S = 10.0
_POLL_S = 0.01


@dataclass(frozen=True)
class RunGroup:
    """A group that is there, for the programs of one run."""

    path: Path
    controllers: tuple[str, ...]
    limits: RunLimits
    _before: dict[str, tuple[int, int, int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def make(cls, place: Delegation, run: str, limits: RunLimits) -> RunGroup:
        """Make the group of a run."""
        assert place.path is not None
        own = os.getpid()
        group = cls(place.path / f"{PREFIX}{run}.{own}.{_began(own)}", place.controllers, limits)
        group.path.mkdir(exist_ok=True)
        for name, value in group._written().items():
            # Without an account of swap, that file alone is not there.
            if name != "memory.swap.max" or (group.path / name).exists():
                (group.path / name).write_text(value)
        if "memory" in group.controllers:
            enable(group.path, "memory")
        return group

    @property
    def holds(self) -> frozenset[Resource]:
        """What it limits of the run as a whole."""
        return frozenset(RESOURCE_OF[name] for name in self.controllers)

    @property
    def words(self) -> str:
        """What holds, and what does not, in a few words."""
        by = SCOPE if self.path.parent.name.endswith(".scope") else "cgroup"
        return limit_words(self.holds, by=by)

    def command(self, program: Sequence[str], part: str) -> list[str]:
        """Return the command that joins the leaf of ``part``, then becomes ``program``; without a leaf it fails."""
        leaf = self.path / part
        with contextlib.suppress(OSError):
            leaf.mkdir(exist_ok=True)
            if "memory" in self.controllers:
                (leaf / "memory.oom.group").write_text("1")
        self._before[part] = self._met(part)
        return ["/bin/sh", "-c", _JOIN, str(leaf / "cgroup.procs"), *program]

    def end_of(self, part: str) -> MetLimit | None:
        """Say which limit a part that has ended met since it was started last; None where none is known."""
        met, killed, refused = (
            now - before
            for now, before in zip(self._met(part), self._before.get(part, (0, 0, 0)), strict=True)
        )
        if met and killed:
            words = f"killed for memory: the run's limit is {self.limits.memory_gb or 0:g} GB"
            return MetLimit(words, _MORE_MEMORY)
        if refused:
            return MetLimit(
                f"refused a process: the run's limit is {self.limits.processes}", _FEWER_PROCESSES
            )
        return None

    @property
    def refused(self) -> int:
        """How often the run was refused a process or a thread, of which not every program dies."""
        most = _number(self.path / "pids.peak")
        if most is not None and most < self.limits.processes:
            return 0
        return _pairs(self.path / "pids.events").get("max", 0)

    def close(self) -> None:
        """End whatever is left in it, and the group."""
        end_group(self.path)

    def _met(self, part: str) -> tuple[int, int, int]:
        """Return the run's memory limit hits, the part's killed processes, and the run's refused forks."""
        met, killed = (_pairs(group / "memory.events") for group in (self.path, self.path / part))
        return met.get("oom", 0), killed.get("oom_kill", 0), self.refused

    def _written(self) -> dict[str, str]:
        """Return what is written into which file of the group."""
        limits = self.limits
        written: dict[str, str] = {}
        if "memory" in self.controllers and limits.memory_gb is not None:
            written |= {"memory.max": str(int(limits.memory_gb * _GIB)), "memory.swap.max": "0"}
        if "pids" in self.controllers:
            written["pids.max"] = str(limits.processes)
        if "cpu" in self.controllers and limits.cpus is not None:
            written["cpu.max"] = f"{max(1000, int(limits.cpus * _CPU_PERIOD_US))} {_CPU_PERIOD_US}"
        return written


def sweep(place: Path) -> int:
    """End the groups whose makers are gone; return how many there were."""
    found = [group for group in _groups(place) if not _has_owner(group.name)]
    for group in found:
        end_group(group)
    return len(found)


def end_group(group: Path, timeout_s: float = _ENDING_S) -> bool:
    """End all processes of a group and remove it; return whether it is gone."""
    deadline = time.monotonic() + timeout_s
    while group.exists():
        _kill(group)
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):  # a process is still on its way out
                Path(folder).rmdir()
        if time.monotonic() > deadline:
            logger.warning("the control group %s does not end", group)
            return False
        if group.exists():
            time.sleep(_POLL_S)
    return True


def _kill(group: Path) -> None:
    try:
        kill = os.open(group / "cgroup.kill", os.O_WRONLY)
        with contextlib.closing(os.fdopen(kill, "w")) as file:
            file.write("1")
    except OSError:  # Linux before 5.14, or it is gone
        for folder, _, _ in os.walk(group):
            for pid in processes_of(Path(folder)):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def _groups(place: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (entry for entry in place.iterdir() if entry.name.startswith(PREFIX))


def _has_owner(name: str) -> bool:
    _, _, owner = name.partition(".")
    pid, _, since = owner.partition(".")
    return pid.isdigit() and _began(int(pid)) == since


def _began(pid: int) -> str | None:
    """Return when a process began, in the kernel's ticks; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _pairs(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}

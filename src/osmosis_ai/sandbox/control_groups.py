"""Limit the resources of a run: by a control group if possible, otherwise by process limits.

A control group (version 2) limits memory, processes and processors of all programs of a run together. Otherwise each
program's shell sets per-process kernel limits. These only advise on processors, do not limit the combined memory of
several processes, and do not limit the number of root's processes.

A process may manage only a delegated subtree (Linux, admin-guide/cgroup-v2, "Delegation"; systemd.io,
CGROUP_DELEGATION): a service with `Delegate=yes`, a container with a writable hierarchy, or root on a machine
without systemd. A group with managed children must not contain processes, so its processes move to a leaf next to the
runs' groups, if all of them are our own. Without a delegated group, systemd may start each worker in a delegated scope.

    <delegated>/osmosis-run-<run>.<process>.<since>/            memory.max, pids.max, cpu.max of the run
    <delegated>/osmosis-run-<run>.<process>.<since>/server-1/   one part; out of memory, only this part ends, as a whole

A program moves itself to its leaf before it becomes the sandbox, or does not run. The name contains the creating
process and its start time in kernel ticks, so that the next process can clean up after one that was killed.
"""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

logger = logging.getLogger(__name__)

Resource = Literal["memory", "processes", "CPU"]
# By the kernel's controllers.
RESOURCE_OF: dict[str, Resource] = {"memory": "memory", "pids": "processes", "cpu": "CPU"}
CONTROLLERS = tuple(RESOURCE_OF)
CGROUP_ENV = "OSMOSIS_CGROUP"
"""``off``: control groups are not used."""
_IS_OFF = f"{CGROUP_ENV}=off"
LEAF = "osmosis-main"
PREFIX = "osmosis-run-"
SCOPE = "cgroup of a systemd scope"
MAX_PROCESSES = 4096
"""Includes threads; a server with a thread for each of its rollouts stays far below."""
TEMPORARY_BYTES = 2 * 1024**3
"""Size of each directory in memory: /tmp, the home, /dev/shm."""
_GIB = 1024**3
_CPU_PERIOD_US = 100_000
_MOVING_S = 10.0
_SYSTEMD_TIMEOUT_S = 10.0
_MEMBERS_POLL_S = 0.02
_ENDING_S = 10.0
_ENDING_POLL_S = 0.01
_JOIN = 'echo $$ > "$0" && exec "$@"'
# $0 is the hierarchy's mount. Dash's `read` splits lines like `0::/user.slice/...`.
_SHOW_CONTROLLERS = 'while IFS=: read -r n c path; do [ "$n" = 0 ] && cat "$0$path/cgroup.controllers"; done < /proc/self/cgroup'
_MORE_MEMORY = "give the run more with `memory_gb` under [advanced.execution], or have fewer rollouts at once"
_FEWER_PROCESSES = "threads count, too: start fewer of both for each rollout, or have fewer rollouts at once"
_NOT_OURS = "the processes in its group (cgroup) are not this platform's alone"
_NOT_DELEGATED = "the cgroup of this process is not delegated to it"


@dataclass(frozen=True)
class RunLimits:
    """Limits of one run; a process limit counts each sandbox alone (Linux 5.14 and newer), but not root's processes."""

    memory_gb: float | None = None
    cpus: float | None = None
    processes: int = MAX_PROCESSES
    temporary_bytes: int = TEMPORARY_BYTES
    processors: tuple[int, ...] = ()

    def shell(self, limited: Collection[Resource] = ()) -> str:
        """Return a POSIX shell command that limits the shell and its children, except by the resources in ``limited``."""
        words = ["ulimit -c 0"]
        if "processes" not in limited:
            # `-u` is bash's option, `-p` that of dash and busybox.
            words.append(f"{{ ulimit -u {self.processes} || ulimit -p {self.processes}; }}")
        if self.memory_gb is not None and "memory" not in limited:
            words.append(f"ulimit -d {max(1, int(self.memory_gb * _GIB // 1024))}")
        if self.processors:
            # From util-linux; without it, all processors are used.
            words.append(f"taskset -pc {','.join(map(str, self.processors))} $$ >/dev/null")
        return " 2>/dev/null; ".join(words) + " 2>/dev/null"


def processors_for(cpus: float | None) -> tuple[int, ...]:
    """Choose ``cpus`` processors of this process at random; empty for all."""
    if cpus is None or not hasattr(os, "sched_getaffinity"):
        return ()
    available = sorted(os.sched_getaffinity(0))
    count = math.ceil(cpus)
    return tuple(sorted(random.SystemRandom().sample(available, count))) if count < len(available) else ()


class MetLimit(NamedTuple):
    words: str
    remedy: str


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of each process, without a control group; ``problem`` is the reason."""

    problem: str | None = None
    holds: frozenset[Resource] = frozenset()
    refused: int = 0

    @property
    def words(self) -> str:
        return limit_words(self.holds, by="cgroup")

    def command(self, program: Sequence[str], part: str) -> list[str]:
        return list(program)

    def end_of(self, part: str) -> MetLimit | None:
        return None  # unknown

    def close(self) -> None: ...


def limit_words(held: frozenset[Resource], *, by: str, user: int | None = None) -> str:
    """Describe what limits a run whose group limits the resources ``held``."""
    user = os.geteuid() if user is None else user
    by_group = [name for name in RESOURCE_OF.values() if name in held]
    by_process, absent = [], []
    if "memory" not in held:
        by_process.append("memory of each process")
        absent.append("memory of the run")
    if "processes" not in held:
        (absent if user == 0 else by_process).append("processes")
    if "CPU" not in held:
        absent.append("CPU")
    limits = [f"{how} ({', '.join(what)})" for how, what in ((by, by_group), ("rlimits", by_process)) if what]
    unlimited = f"; unlimited: {', '.join(absent)}" if absent else ""
    return f"limits: {', '.join(limits)}{unlimited}"


@dataclass(frozen=True)
class Delegation:
    """The group in which this process can create others, or the problem."""

    path: Path | None = None
    controllers: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class ProcessView:
    """The kernel's view of this process and its parents; tests use another tree."""

    proc: Path = Path("/proc")
    systemd: Path = Path("/run/systemd/system")
    pid: int = os.getpid()
    user: int = os.geteuid()
    patience_s: float = 1.0

    def ancestors(self, pid: int) -> Iterator[int]:
        while pid > 0:
            yield pid
            stat = _stat_of(pid, self.proc)
            pid = int(stat[1]) if stat else 0


def look_at_delegation(view: ProcessView | None = None) -> Delegation:
    """Find the group that is delegated to this process, without changing anything."""
    view = view or ProcessView()
    own = own_group(view.proc)
    if own is None:
        return Delegation(problem="the kernel shows no control groups of version 2 (cgroup v2)")
    base = own.parent if own.name == LEAF else own
    available = _words(base / "cgroup.controllers")
    controllers = tuple(name for name in CONTROLLERS if name in available)
    if not controllers:
        return Delegation(
            problem=f"the cgroup of this process has none of the controllers {', '.join(CONTROLLERS)}"
        )
    if not all(os.access(place, os.W_OK) for place in (base, base / "cgroup.subtree_control")):
        return Delegation(problem=_NOT_DELEGATED)
    problem = _delegation_problem(base, view) if own == base else None
    return Delegation(base, controllers) if problem is None else Delegation(problem=problem)


def arrange(found: Delegation) -> Delegation:
    """Prepare a delegated group for runs; return what is really limited there."""
    base = found.path
    if base is None:
        return found
    try:
        if not _is_root(base):
            _empty(base)
        enabled = tuple(name for name in found.controllers if enable(base, name))
    except OSError as error:
        return Delegation(problem=f"the cgroup of this process cannot be set up: {error.strerror or error}")
    if not enabled:
        return Delegation(problem="the cgroup of this process cannot enable any controller")
    return Delegation(base, enabled)


def own_group(proc: Path = Path("/proc")) -> Path | None:
    """Return the directory of this process's group in the unified hierarchy, if visible."""
    path = next((line[3:] for line in _lines(proc / "self" / "cgroup") if line.startswith("0::")), None)
    if path is None or ".." in path.split("/"):
        return None
    for root, mount in _mounts(proc):
        with suppress(ValueError):
            found = mount / Path(path).relative_to(root)
            if (found / "cgroup.procs").exists():
                return found
    return None


def hierarchy_mount(proc: Path = Path("/proc")) -> Path | None:
    return next((mount for _, mount in _mounts(proc)), None)


def enable(group: Path, controller: str) -> bool:
    """Enable a controller for a group's children; return whether it is enabled."""
    control = group / "cgroup.subtree_control"
    if controller not in _words(control):
        with suppress(OSError):  # another owner, or processes in the group
            control.write_text(f"+{controller}")
    return controller in _words(control)


def processes_of(group: Path) -> list[int]:
    return [int(line) for line in _lines(group / "cgroup.procs")]


def _mounts(proc: Path) -> Iterator[tuple[str, Path]]:
    for line in _lines(proc / "self" / "mountinfo"):
        place, _, kind = line.partition(" - ")
        if kind.split(" ", 1)[0] == "cgroup2":
            root, mount = place.split()[3:5]
            yield root, Path(mount.replace("\\040", " "))


def _delegation_problem(base: Path, view: ProcessView) -> str | None:
    """Return why this process must not change its group; None if it may."""
    if _is_root(base):
        return _NOT_DELEGATED if view.systemd.is_dir() or view.user != 0 else None
    is_containers = not (base.parent / "cgroup.procs").exists()
    if not is_containers and not _is_given(base, view):
        return _NOT_DELEGATED
    above = set(view.ancestors(view.pid)) if is_containers else {view.pid}
    deadline = time.monotonic() + view.patience_s
    # A process that lost its parent while it ends has no owner until it is gone.
    while any(pid not in above and view.pid not in view.ancestors(pid) for pid in processes_of(base)):
        if time.monotonic() >= deadline:
            return _NOT_OURS
        time.sleep(_MEMBERS_POLL_S)
    return None


def _is_root(group: Path) -> bool:
    """Return whether it is the kernel's root, which may have processes and children."""
    return not (group / "cgroup.events").exists()


def _is_given(group: Path, view: ProcessView) -> bool:
    """Return whether a group was delegated, and is the topmost delegated one."""
    for name in ("user.delegate", "trusted.delegate"):  # systemd's marks
        with suppress(OSError, AttributeError):
            if os.getxattr(group, name) == b"1":
                return True
    if view.user == 0:  # root can write everywhere, so this needs a machine without systemd
        return not view.systemd.is_dir()
    if not os.access(group.parent / "cgroup.procs", os.W_OK):
        return True
    # The user's systemd does not mark delegated groups (252).
    program = shutil.which("systemctl")
    if program is None or not view.systemd.is_dir():
        return False
    asked = [program, "--user", "show", "--property=Delegate", "--property=ControlGroup", "--", group.name]
    facts = dict(line.split("=", 1) for line in _systemd_output(asked).splitlines() if "=" in line)
    # Another group may have a unit of that name.
    return facts.get("Delegate") == "yes" and str(group).endswith(facts.get("ControlGroup") or "\n")


def _systemd_output(command: Sequence[str]) -> str:
    """Return the output of a systemd command; empty if it fails or takes too long."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SYSTEMD_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _empty(base: Path) -> None:
    """Move the processes of a group into its leaf."""
    leaf = base / LEAF
    leaf.mkdir(exist_ok=True)
    deadline = time.monotonic() + _MOVING_S
    # A process forked meanwhile is in its parent's old group.
    while (left := processes_of(base)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid))


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class RunGroup:
    path: Path
    controllers: tuple[str, ...]
    limits: RunLimits
    _before: dict[str, tuple[int, int, int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def make(cls, place: Delegation, run: str, limits: RunLimits) -> RunGroup:
        """Create the group of a run; raises OSError."""
        assert place.path is not None
        own = os.getpid()
        path = place.path / f"{PREFIX}{run}.{own}.{_start_ticks(own)}"
        path.mkdir(exist_ok=True)
        if "memory" in place.controllers and limits.memory_gb is not None:
            (path / "memory.max").write_text(str(int(limits.memory_gb * _GIB)))
            if (path / "memory.swap.max").exists():  # absent without an account of swap
                (path / "memory.swap.max").write_text("0")
        if "pids" in place.controllers:
            (path / "pids.max").write_text(str(limits.processes))
        if "cpu" in place.controllers and limits.cpus is not None:
            share_us = max(1000, int(limits.cpus * _CPU_PERIOD_US))
            (path / "cpu.max").write_text(f"{share_us} {_CPU_PERIOD_US}")
        if "memory" in place.controllers:
            enable(path, "memory")
        return cls(path, place.controllers, limits)

    @property
    def holds(self) -> frozenset[Resource]:
        return frozenset(RESOURCE_OF[name] for name in self.controllers)

    @property
    def words(self) -> str:
        return limit_words(self.holds, by=SCOPE if self.path.parent.name.endswith(".scope") else "cgroup")

    def command(self, program: Sequence[str], part: str) -> list[str]:
        """Return the command that joins the leaf of ``part`` and becomes ``program``, or fails."""
        leaf = self.path / part
        with suppress(OSError):
            leaf.mkdir(exist_ok=True)
            if "memory" in self.controllers:
                (leaf / "memory.oom.group").write_text("1")
        self._before[part] = self._met(part)
        return ["/bin/sh", "-c", _JOIN, str(leaf / "cgroup.procs"), *program]

    def end_of(self, part: str) -> MetLimit | None:
        """Return the limit that an ended part met since its last start, if known."""
        before = self._before.get(part, (0, 0, 0))
        met, killed, refused = (now - then for now, then in zip(self._met(part), before, strict=True))
        if met and killed:
            words = f"killed for memory: the run's limit is {self.limits.memory_gb or 0:g} GB"
            return MetLimit(words, _MORE_MEMORY)
        if refused:
            words = f"refused a process: the run's limit is {self.limits.processes}"
            return MetLimit(words, _FEWER_PROCESSES)
        return None

    @property
    def refused(self) -> int:
        """How often the run was refused a process or a thread."""
        peak = _words(self.path / "pids.peak")
        if peak and int(peak[0]) < self.limits.processes:
            return 0
        return _pairs(self.path / "pids.events").get("max", 0)

    def close(self) -> None:
        end_group(self.path)

    def _met(self, part: str) -> tuple[int, int, int]:
        """Return the run's memory limit hits, the part's killed processes, and the run's refused forks."""
        met, killed = (_pairs(group / "memory.events") for group in (self.path, self.path / part))
        return met.get("oom", 0), killed.get("oom_kill", 0), self.refused


def sweep(place: Path) -> int:
    """End the groups whose creators are gone; return their number."""
    ended = 0
    for group in place.glob(f"{PREFIX}*"):
        pid, _, since = group.name.partition(".")[2].partition(".")
        if not pid.isdigit() or _start_ticks(int(pid)) != since:
            end_group(group)
            ended += 1
    return ended


def end_group(group: Path, timeout_s: float = _ENDING_S) -> bool:
    """Kill all processes of a group and remove it; return whether it is gone."""
    deadline = time.monotonic() + timeout_s
    while group.exists():
        try:
            with os.fdopen(os.open(group / "cgroup.kill", os.O_WRONLY), "w") as file:
                file.write("1")
        except OSError:  # Linux before 5.14, or the group is gone
            for folder, _, _ in os.walk(group):
                for pid in processes_of(Path(folder)):
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # a process is still ending
                Path(folder).rmdir()
        if time.monotonic() > deadline:
            logger.warning("the control group %s cannot be removed", group)
            return False
        if group.exists():
            time.sleep(_ENDING_POLL_S)
    return True


def _start_ticks(pid: int) -> str | None:
    """Return when a process started, in kernel ticks; None if it does not exist."""
    stat = _stat_of(pid)
    return stat[19] if stat else None


def _stat_of(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """Return a process's state, parent and the other fields after its name; empty if it does not exist."""
    # The name in parentheses may hold anything.
    return " ".join(_lines(proc / str(pid) / "stat")).rpartition(")")[2].split()


def _pairs(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, _lines(file))}


ResourceControl = RunGroup | ProcessLimits


@dataclass(frozen=True)
class MachineControl:
    """The mechanism that limits runs on this machine; ``starter`` is the command that starts a worker in a systemd scope."""

    delegation: Delegation
    starter: tuple[str, ...] = ()
    by_scope: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        controllers = self.by_scope if self.starter else self.delegation.controllers
        held = frozenset(RESOURCE_OF[name] for name in controllers)
        words = limit_words(held, by=SCOPE if self.starter else "cgroup")
        return words if controllers else f"{words}; no cgroup: {self.delegation.problem}"


def look_at_control(found: Delegation | None = None) -> MachineControl:
    """Find out what would limit runs, without changing anything; may block on systemd.

    It is the delegated group, otherwise workers in a systemd scope, if that limits anything.
    """
    found = found or _look()
    program, mount = shutil.which("systemd-run"), hierarchy_mount()
    if found.path is not None or found.problem == _IS_OFF or program is None or mount is None:
        return MachineControl(found)
    whose = [] if os.geteuid() == 0 else ["--user"]
    starter = (program, *whose, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")
    available = _systemd_output([*starter, "/bin/sh", "-c", _SHOW_CONTROLLERS, str(mount)]).split()
    controllers = tuple(name for name in CONTROLLERS if name in available)
    return MachineControl(found, starter, controllers) if controllers else MachineControl(found)


def prepare_control() -> MachineControl:
    """Prepare the limits of runs, before any of them is started; may block on systemd."""
    return look_at_control(arrange(_look()))


def control_run(run: str, limits: RunLimits) -> ResourceControl:
    """Return a new resource control for a run's programs; close it when the run has ended here."""
    found = arrange(_look())
    if found.path is None:
        return ProcessLimits(found.problem)
    left = sweep(found.path)
    if left:
        logger.info("%d control groups of ended workers were removed", left)
    try:
        return RunGroup.make(found, run, limits)
    except OSError as error:
        return ProcessLimits(f"no group (cgroup) can be made: {error.strerror or error}")


def _look() -> Delegation:
    is_off = os.environ.get(CGROUP_ENV, "").strip() == "off"
    return Delegation(problem=_IS_OFF) if is_off else look_at_delegation()

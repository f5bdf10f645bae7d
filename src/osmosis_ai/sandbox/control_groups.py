"""Find the version 2 control groups that this process may manage, and the limits they support.

A process may manage only a delegated subtree (Linux, admin-guide/cgroup-v2, "Delegation"; systemd.io,
CGROUP_DELEGATION): a service with `Delegate=yes`, a container with a writable hierarchy, or root on a machine
without systemd. A group with managed children must not contain processes, so its processes move to a leaf next to the
runs' groups, and only if all of them are our own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")
"""What is limited, as the kernel calls it."""
LEAF = "osmosis-main"
_MOVING_S = 10.0
_ASKING_S = 10.0
_LOOKING_S = 0.02
_NOT_OURS = "the processes in its group (cgroup) are not this platform's alone"
_NOT_GIVEN = "the cgroup of this process is not delegated to it"


@dataclass(frozen=True)
class Delegation:
    """What this process may arrange."""

    path: Path | None = None
    controllers: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class ProcessView:
    """What the kernel says of this process and of those around it; a test shows another tree."""

    proc: Path = Path("/proc")
    systemd: Path = Path("/run/systemd/system")
    pid: int = os.getpid()
    user: int = os.geteuid() if hasattr(os, "geteuid") else -1
    patience_s: float = 1.0

    def parent(self, pid: int) -> int:
        """Return a process's parent; 0 where there is none."""
        try:
            # The name in parentheses may hold anything; the state and the parent come after it.
            stat = (self.proc / str(pid) / "stat").read_text("utf-8", "replace")
            return int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def line(self, pid: int) -> Iterator[int]:
        """Yield a process, its parent, and so on."""
        while pid > 0:
            yield pid
            pid = self.parent(pid)


def look_at_delegation(view: ProcessView | None = None) -> Delegation:
    """Find out what this process may arrange, and change nothing."""
    view = view or ProcessView()
    own = own_group(view.proc)
    if own is None:
        return Delegation(problem="the kernel shows no control groups of version 2 (cgroup v2)")
    base = own.parent if own.name == LEAF else own
    there = _words(base / "cgroup.controllers")
    controllers = tuple(name for name in CONTROLLERS if name in there)
    if not controllers:
        return Delegation(
            problem=f"the cgroup of this process has none of the controllers {', '.join(CONTROLLERS)}"
        )
    if not all(os.access(place, os.W_OK) for place in (base, base / "cgroup.subtree_control")):
        return Delegation(problem=_NOT_GIVEN)
    if own == base:
        problem = _against(base, view)
        if problem is not None:
            return Delegation(problem=problem)
    return Delegation(base, controllers)


def arrange(found: Delegation, view: ProcessView | None = None) -> Delegation:
    """Make groups of runs possible where ``found`` says that they are; return what really is limited there."""
    if found.path is None:
        return found
    view = view or ProcessView()
    base = found.path
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
    """Return the directory of this process's group in the unified hierarchy; None where none is to be seen."""
    path = next(
        (line[3:] for line in _lines(proc / "self" / "cgroup") if line.startswith("0::")),
        None,
    )
    if path is None or ".." in path.split("/"):
        return None
    for root, mount in _mounts(proc):
        with suppress(ValueError):
            found = mount / Path(path).relative_to(root)
            if (found / "cgroup.procs").exists():
                return found
    return None


def hierarchy_mount(proc: Path = Path("/proc")) -> Path | None:
    """Return where the unified hierarchy is mounted; None where it is not."""
    return next((mount for _, mount in _mounts(proc)), None)


def enable(group: Path, controller: str) -> bool:
    """Have a group limit its children's share of something; return whether the kernel took it."""
    control = group / "cgroup.subtree_control"
    if controller not in _words(control):
        with suppress(OSError):  # another owner, or processes that are not allowed here
            control.write_text(f"+{controller}")
    return controller in _words(control)


def processes_of(group: Path) -> list[int]:
    """Return the processes that are in a group itself."""
    return [int(line) for line in _lines(group / "cgroup.procs")]


def _mounts(proc: Path) -> Iterator[tuple[str, Path]]:
    for line in _lines(proc / "self" / "mountinfo"):
        place, _, kind = line.partition(" - ")
        if kind.split(" ", 1)[0] == "cgroup2":
            root, mount = place.split()[3:5]
            yield root, Path(mount.replace("\\040", " "))


def _against(base: Path, view: ProcessView) -> str | None:
    """Return why the group of this process is not its to arrange; None where it is."""
    if _is_root(base):
        return _NOT_GIVEN if view.systemd.is_dir() or view.user != 0 else None
    is_containers = not (base.parent / "cgroup.procs").exists()
    if not is_containers and not _is_given(base, view):
        return _NOT_GIVEN
    above = set(view.line(view.pid)) if is_containers else {view.pid}
    deadline = time.monotonic() + view.patience_s
    # What lost its parent as it ended is nobody's, until it is gone.
    while any(pid not in above and view.pid not in view.line(pid) for pid in processes_of(base)):
        if time.monotonic() >= deadline:
            return _NOT_OURS
        time.sleep(_LOOKING_S)
    return None


def _is_root(group: Path) -> bool:
    """Tell whether it is the kernel's own root, which may have processes beside children."""
    return not (group / "cgroup.events").exists()


def _is_given(group: Path, view: ProcessView) -> bool:
    """Tell whether a group was given away, and is the topmost of what was."""
    return _is_marked(group) or _is_border(group, view) or _says_users_systemd(group, view)


def _is_marked(group: Path) -> bool:
    """Tell whether systemd says that it gave the group away."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError, AttributeError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _is_border(group: Path, view: ProcessView) -> bool:
    """Tell whether what is writable begins here; to root everything is, so it needs a machine without systemd."""
    if view.user == 0:
        return not view.systemd.is_dir()
    return not os.access(group.parent / "cgroup.procs", os.W_OK)


def _says_users_systemd(group: Path, view: ProcessView) -> bool:
    """Ask the user's systemd: all that is below it may be written to, and it marks no group that it gives away (252)."""
    program = shutil.which("systemctl")
    if view.user == 0 or program is None or not view.systemd.is_dir():
        return False
    asked = [program, "--user", "show", "--property=Delegate", "--property=ControlGroup", "--", group.name]
    facts = dict(line.split("=", 1) for line in said_by(asked).splitlines() if "=" in line)
    # A unit of that name may be in another group.
    return facts.get("Delegate") == "yes" and str(group).endswith(facts.get("ControlGroup") or "\n")


def said_by(command: Sequence[str]) -> str:
    """Return what a command of systemd's prints; nothing where it fails, or does not end for long."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASKING_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _empty(base: Path) -> None:
    """Move the processes of a group into its leaf."""
    leaf = base / LEAF
    leaf.mkdir(exist_ok=True)
    deadline = time.monotonic() + _MOVING_S
    # What is forked meanwhile is where its parent was.
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

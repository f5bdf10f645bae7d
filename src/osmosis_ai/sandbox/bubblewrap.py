"""The one command line of bubblewrap: what a sandboxed program sees of its machine, and nothing else does.

Everything is absent unless it is named here. The environment is that of the process which starts the command, whole
and made for this program: with ``--clearenv`` its values would have to be arguments, which everybody may read.

Ending bubblewrap ends all that came of it, new sessions included. ``--die-with-parent`` is tied to the *thread* that
started it (PR_SET_PDEATHSIG in prctl(2)): start it from one that lives as long as the program is to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.sandbox.gpus import VISIBLE_ENV, GpuGrant
from osmosis_ai.sandbox.limits import RunLimits
from osmosis_ai.sandbox.network import Network
from osmosis_ai.sandbox.places import ETC, SDK, SYSTEM, reachable_as
from osmosis_ai.sandbox.resource_control import ProcessLimits, ResourceControl

HOME = "/home/rollout"
HOST_NAME = "rollout"
USER_ID = "1000"
_ETC = Path(__file__).with_name("etc")
_KERNELS_FOLDERS = ("acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "scsi", "tty")
_KERNELS_FILES = (
    *("kcore", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "mtrr"),
    *("pagetypeinfo", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list", "vmallocinfo"),
)
_COPIED_FROM = "/run/source"
# What stands in for a directory that is hidden; places within it that are shown are made there.
_MASK_BYTES = 1 << 20
_ISOLATED = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--new-session", "--die-with-parent", "--cap-drop", "ALL"),
    *("--uid", USER_ID, "--gid", USER_ID, "--hostname", HOST_NAME),
)
# Of the starter's environment: what names places that are not there, or somebody who is not there.
_UNSET = (
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "DBUS_SESSION_BUS_ADDRESS", "TEMP", "TMP"),
)
_SET = {"HOME": HOME, "TMPDIR": "/tmp", "USER": "rollout", "LOGNAME": "rollout"}
# A group of its own, so that a program can end itself and what it started without ending the sandbox's first process.
_START = 'cd "$1" && shift && exec setsid -- "$@"'
_COPY = f'cp -a {_COPIED_FROM}/. "$0"/ && '


@dataclass(frozen=True)
class Sandbox:
    """How programs of one run are started.

    Attributes:
        bwrap: the bubblewrap program.
        source: the run's files: the program may change them, and the changes end with it.
        overlays: whether the kernel keeps such changes; else the files are copied at each start.
        readable: what it may read beside programs and libraries of the system.
        hidden: what it never sees, even where that lies within something it may read.
        limits: what it may take.
        control: holds it to the limits, together with the run's other programs.
        gpus: that it may use; none without.
        network: what it reaches; with ``none`` a loopback of its own alone.
    """

    bwrap: Path
    source: Path
    overlays: bool = True
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    limits: RunLimits = field(default_factory=RunLimits)
    control: ResourceControl = field(default_factory=ProcessLimits)
    gpus: GpuGrant | None = None
    network: Network = "host"

    def command(
        self, program: Sequence[str], *, cwd: Path, writable: Sequence[Path], part: str = "program"
    ) -> list[str]:
        """Return the command that runs ``program`` in the sandbox.

        Descriptors that are passed to it reach the program.

        Args:
            program: the program and its arguments.
            cwd: its working directory, within what it sees.
            writable: directories that it may write to for good.
            part: which part of the run it is.
        """
        size = ["--size", str(self.limits.temporary_bytes), "--tmpfs"]
        command = [
            str(self.bwrap),
            *_ISOLATED,
            *(["--unshare-net"] if self.network == "none" else []),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *_covered_proc(self.gpus),
            *_devices(self.gpus),
            *(*size, "/dev/shm", *size, "/tmp", *size, "/var/tmp", *size, HOME),
            *("--dir", "/run"),
            *self._mounts(writable),
            *("--remount-ro", "/"),
            *(word for name in _UNSET for word in ("--unsetenv", name)),
            *(word for name, value in self._set().items() for word in ("--setenv", name, value)),
            *("--chdir", "/", "--"),
            *("/bin/sh", "-c", self._prologue(), str(self.source), str(cwd)),
            *program,
        ]
        return self.control.command(command, part)

    def _set(self) -> dict[str, str]:
        return _SET if self.gpus is None else {**_SET, VISIBLE_ENV: ",".join(self.gpus.visible)}

    def _prologue(self) -> str:
        return f"{self.limits.shell(self.control.holds)}; {'' if self.overlays else _COPY}{_START}"

    def _mounts(self, writable: Sequence[Path]) -> list[str]:
        """Return what makes places visible, outer ones first, so that what is said of an inner one counts."""
        mounts = {
            place: ["--ro-bind", str(place), str(place)] for place in reachable_as([SDK, *self.readable])
        }
        shown = [*mounts, *map(Path, SYSTEM)]
        for place in reachable_as(list(self.hidden)):
            if any(place.is_relative_to(outer) for outer in shown):
                mounts[place] = ["--size", str(_MASK_BYTES), "--tmpfs", str(place)]
        mounts[self.source] = self._temporary_source()
        for place in writable:
            mounts[place] = ["--bind", str(place), str(place)]
        return [word for place in sorted(mounts, key=_depth) for word in mounts[place]]

    def _temporary_source(self) -> list[str]:
        source = str(self.source)
        if self.overlays:
            return ["--overlay-src", source, "--tmp-overlay", source]
        size = ["--size", str(self.limits.temporary_bytes), "--tmpfs", source]
        return ["--ro-bind", source, _COPIED_FROM, *size]


def _system() -> list[str]:
    words = []
    for place in SYSTEM:
        if Path(place).is_symlink():
            words += ["--symlink", str(Path(place).readlink()), place]
        elif Path(place).is_dir():
            words += ["--ro-bind", place, place]
    for name in ETC:
        found = Path("/etc", name)
        if found.exists():
            # As a file: what a link leads to may lie where nothing else is shown.
            words += ["--ro-bind", os.path.realpath(found), str(found)]
    for name in ("passwd", "group"):
        words += ["--ro-bind", str(_ETC / name), f"/etc/{name}"]
    return words


def _devices(gpus: GpuGrant | None) -> list[str]:
    nodes = () if gpus is None else gpus.nodes
    return [word for node, shown in nodes for word in ("--dev-bind", str(node), str(shown))]


def _covered_proc(gpus: GpuGrant | None) -> list[str]:
    """Return what keeps the kernel's settings from a sandbox whose user is root outside: files there are root's."""
    words = ["--ro-bind", "/proc/sys", "/proc/sys"]
    for name in _KERNELS_FOLDERS:
        if Path("/proc", name).is_dir():
            words += ["--size", "4096", "--tmpfs", f"/proc/{name}"]
            if gpus is not None and gpus.driver is not None and name == gpus.driver[1].parent.name:
                words += ["--ro-bind", *map(str, gpus.driver)]
            words += ["--remount-ro", f"/proc/{name}"]
    for name in sorted({*_KERNELS_FILES, *_written_files(Path("/proc"))}):
        if Path("/proc", name).exists():
            words += ["--ro-bind", str(_ETC / "nothing"), f"/proc/{name}"]
    return words


def _written_files(proc: Path) -> Iterator[str]:
    """Yield the kernel's files that somebody may write to, whatever they are called on this kernel."""
    with suppress(OSError), os.scandir(proc) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o222:
                yield entry.name


def _depth(place: Path) -> tuple[int, str]:
    return len(place.parts), str(place)

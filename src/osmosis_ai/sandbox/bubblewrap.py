"""Build the bubblewrap command line, which defines what a sandboxed program sees of its machine.

Everything is absent unless named here, including variables (``--clearenv``). Their values reach bubblewrap through a
pipe (``--args``) that it has read and closed before the program starts: every user can read arguments, and the program
can read the initial environment of bubblewrap, its first process.

Ending bubblewrap ends all descendants, including new sessions. ``--die-with-parent`` is tied to the *thread* that
started it (PR_SET_PDEATHSIG in prctl(2)), so start it from a thread that outlives the program.

Only files installed by the operator are shown. A built environment contains code of others, so its contents never add
a directory to a sandbox.

Without the machine's network, a program still has its own loopback. One socket listens there at the address that the
model and the callbacks have outside, and this process answers on it, so the address means the same inside. The
sandbox's first program (:mod:`.inner_listener`) creates the socket, sends it out and exits before user code is loaded.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes.child_process import ProgramStart
from osmosis_ai.processes.privacy import pipe_of
from osmosis_ai.sandbox import inner_listener
from osmosis_ai.sandbox.control_groups import ProcessLimits, ResourceControl, RunLimits
from osmosis_ai.sandbox.gpus import VISIBLE_ENV, GpuGrant

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Programs and libraries; symbolic links among them are recreated."""
ETC = (
    *("resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "protocols", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "mime.types"),
)
"""Files in ``/etc`` for names, certificates, clocks and libraries; no accounts, no keys."""
SDK = Path(__file__).parent.parent
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
# Size of the empty directory in place of a hidden one; shown paths within it are mounted there.
_MASK_BYTES = 1 << 20
_ISOLATED = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--new-session", "--die-with-parent", "--cap-drop", "ALL"),
    *("--uid", USER_ID, "--gid", USER_ID, "--hostname", HOST_NAME),
)
# Bubblewrap's own environment.
_FOR_BUBBLEWRAP = ("PATH", "LD_LIBRARY_PATH")
# Removed from the program's environment: they name directories and services that do not exist in the sandbox.
_UNSET = (
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "DBUS_SESSION_BUS_ADDRESS", "TEMP", "TMP"),
)
_SET = {"HOME": HOME, "TMPDIR": "/tmp", "USER": "rollout", "LOGNAME": "rollout"}
# A session of its own, so that a program can end its process group without ending the sandbox's first process.
_START = 'cd "$1" && shift && exec setsid -- "$@"'
_COPY = f'cp -a {_COPIED_FROM}/. "$0"/ && '


@dataclass(frozen=True)
class Sandbox:
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
    ) -> SandboxedProgram:
        """Return ``program`` in the sandbox, as a ``part`` of the run."""
        return SandboxedProgram(self, tuple(program), cwd, tuple(writable), part)

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        gpus = {} if self.gpus is None else {VISIBLE_ENV: ",".join(self.gpus.visible)}
        return {name: value for name, value in env.items() if name not in _UNSET} | _SET | gpus

    def words(self, program: Sequence[str], cwd: Path, writable: Sequence[Path], variables: int) -> list[str]:
        size = ["--size", str(self.limits.temporary_bytes), "--tmpfs"]
        nodes = () if self.gpus is None else self.gpus.nodes
        script = f"{self.limits.shell(self.control.holds)}; {'' if self.overlays else _COPY}{_START}"
        return [
            str(self.bwrap),
            *("--clearenv", "--args", str(variables)),
            *_ISOLATED,
            *(["--unshare-net"] if self.network == "none" else []),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *_covered_proc(self.gpus),
            *(word for node in nodes for word in ("--dev-bind", *map(str, node))),
            *(*size, "/dev/shm", *size, "/tmp", *size, "/var/tmp", *size, HOME),
            *("--dir", "/run"),
            *self._mounts(writable),
            *("--remount-ro", "/"),
            *("--chdir", "/", "--"),
            *("/bin/sh", "-c", script, str(self.source), str(cwd)),
            *program,
        ]

    def _mounts(self, writable: Sequence[Path]) -> list[str]:
        """Return the mounts, outer ones first, so that inner ones prevail."""
        mounts = {
            place: ["--ro-bind", str(place), str(place)] for place in reachable_as([SDK, *self.readable])
        }
        shown = [*mounts, *map(Path, SYSTEM)]
        for place in reachable_as(list(self.hidden)):
            if any(place.is_relative_to(outer) for outer in shown):
                mounts[place] = ["--size", str(_MASK_BYTES), "--tmpfs", str(place)]
        source = str(self.source)
        mounts[self.source] = ["--overlay-src", source, "--tmp-overlay", source]
        if not self.overlays:
            size = ["--size", str(self.limits.temporary_bytes), "--tmpfs", source]
            mounts[self.source] = ["--ro-bind", source, _COPIED_FROM, *size]
        for place in writable:
            mounts[place] = ["--bind", str(place), str(place)]
        by_depth = sorted(mounts, key=lambda place: (len(place.parts), str(place)))
        return [word for place in by_depth for word in mounts[place]]


@dataclass(frozen=True)
class SandboxedProgram:
    """A program in a sandbox (:class:`~osmosis_ai.processes.ContainedProgram`)."""

    sandbox: Sandbox
    program: tuple[str, ...]
    cwd: Path
    writable: tuple[Path, ...]
    part: str

    @property
    def name(self) -> str:
        return str(self.sandbox.bwrap)

    @contextmanager
    def start(self, env: Mapping[str, str]) -> Iterator[ProgramStart]:
        """Yield what starts it once with ``env``; leave the context when it has started."""
        variables = pipe_of(_set_variables(self.sandbox.variables(env)))
        try:
            words = self.sandbox.words(self.program, self.cwd, self.writable, variables)
            yield ProgramStart(
                command=self.sandbox.control.command(words, self.part),
                env={name: os.environ[name] for name in _FOR_BUBBLEWRAP if name in os.environ},
                fds=(variables,),
            )
        finally:
            os.close(variables)


def _set_variables(variables: Mapping[str, str]) -> bytes:
    """Return the arguments that set variables; each ends with a zero byte."""
    arguments = b""
    for name, value in variables.items():
        # Text after a zero byte would be an option of bubblewrap.
        if not name or "=" in name or "\0" in name + value:
            raise ValueError("a variable's name is empty or has `=` in it, or a zero byte is in one")
        arguments += b"".join(word + b"\0" for word in (b"--setenv", os.fsencode(name), os.fsencode(value)))
    return arguments


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
            # As a file: a link's target may not be visible.
            words += ["--ro-bind", os.path.realpath(found), str(found)]
    for name in ("passwd", "group"):
        words += ["--ro-bind", str(_ETC / name), f"/etc/{name}"]
    return words


def _covered_proc(gpus: GpuGrant | None) -> list[str]:
    """Return the mounts that hide the kernel's settings, which root's sandbox could write to."""
    words = ["--ro-bind", "/proc/sys", "/proc/sys"]
    for name in _KERNELS_FOLDERS:
        if Path("/proc", name).is_dir():
            words += ["--size", "4096", "--tmpfs", f"/proc/{name}"]
            if gpus is not None and gpus.driver is not None and name == gpus.driver[1].parent.name:
                words += ["--ro-bind", *map(str, gpus.driver)]
            words += ["--remount-ro", f"/proc/{name}"]
    written = set(_KERNELS_FILES)
    # The kernel's writable files differ between kernels.
    with suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o222:
                written.add(entry.name)
    for name in sorted(written):
        if Path("/proc", name).exists():
            words += ["--ro-bind", str(_ETC / "nothing"), f"/proc/{name}"]
    return words


def interpreter_places(python: Path) -> tuple[Path, ...]:
    """Return the directories that an interpreter of the operator needs, both as named and resolved."""
    prefixes = {
        place for place in (python.parent.parent, python.resolve().parent.parent) if _is_prefix(place)
    }
    if python == Path(sys.executable):
        prefixes |= {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
        prefixes |= set(_added_by_site())
    if not any(python.is_relative_to(prefix) for prefix in prefixes):
        prefixes.add(python)
    return reachable_as([*prefixes, SDK])


def _is_prefix(place: Path) -> bool:
    """Return whether a directory is an installation of Python: a program may be in any directory."""
    return (place / "pyvenv.cfg").is_file() or any((place / "lib").glob("python3.*"))


def reachable_as(paths: list[Path]) -> tuple[Path, ...]:
    """Return existing paths as named and resolved, without the root."""
    both = {place for path in paths for place in (Path(os.path.abspath(path)), path.resolve())}  # noqa: PTH100
    return tuple(sorted(place for place in both if place != Path("/") and place.exists()))


def _added_by_site() -> Iterator[Path]:
    """Yield the directories in ``.pth`` files: editable installations."""
    known = set(sys.path)
    for folder in [entry for entry in sys.path if entry.endswith("-packages")]:
        for file in Path(folder).glob("*.pth"):
            for line in file.read_text("utf-8", "replace").splitlines():
                place = Path(folder, line.strip())
                if str(place) in known and place.is_dir() and not Path.home().is_relative_to(place):
                    yield place


Network = Literal["host", "none"]
NETWORK_ENV = "OSMOSIS_NETWORK"
_UNEXPECTED_FILE = "the file from the sandbox is not a listening socket"


def network_setting(environ: Mapping[str, str]) -> Network | None:
    """Return ``OSMOSIS_NETWORK``, if set; raises OsmosisError."""
    written = environ.get(NETWORK_ENV, "").strip()
    if written and written not in get_args(Network):
        raise OsmosisError(f"{NETWORK_ENV} must be one of {', '.join(get_args(Network))}, not '{written}'.")
    return cast(Network, written) if written else None


def narrower(machine: Network | None, asked: Network | None) -> Network:
    """Return the narrower one of the machine's setting and the run's request."""
    return "none" if "none" in (machine, asked) else "host"


class InnerListener:
    """A socket that listens on a sandbox's loopback and is sent out of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._here, self._there = socket.socketpair()
        self.authority = f"{inner_listener.LOOPBACK}:{port}"
        """The only ``host:port`` that can be reached inside."""

    def fileno(self) -> int:
        return self._there.fileno()

    def command(self, python: Path, program: Sequence[str]) -> list[str]:
        """Return the command that creates the socket and becomes ``program``."""
        script = str(inner_listener.__file__)
        return [str(python), "-I", "-S", script, str(self.fileno()), str(self._port), *program]

    def take(self) -> socket.socket:
        """Return the socket, once the program runs; raises OSError."""
        self._there.close()
        self._here.setblocking(False)
        _, descriptors, *_ = socket.recv_fds(self._here, 1, 1)
        if not descriptors:
            raise OSError("no socket came from the sandbox")
        # The sandbox may send any file: accept only the expected listening socket.
        try:
            listening = socket.socket(fileno=descriptors[0])
        except OSError:
            os.close(descriptors[0])
            raise OSError(_UNEXPECTED_FILE) from None
        is_listening = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        if not is_listening or listening.getsockname() != (inner_listener.LOOPBACK, self._port):
            listening.close()
            raise OSError(_UNEXPECTED_FILE)
        return listening

    def close(self) -> None:
        self._there.close()
        self._here.close()

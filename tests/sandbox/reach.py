"""A machine on which `reach_probe.py` is run at every level: in the sandbox and without it, as a user and as root.

    python -m tests.sandbox.reach

Started by root, it has a network of its own, in which it listens at the address that clouds hand their credentials out
at. Printed is a line of JSON: by level, what the probe reached; or why nothing could be tried.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_ai.process_environment import program_environment
from osmosis_ai.processes import privacy
from osmosis_ai.processes.child_process import program_start
from osmosis_ai.sandbox.bubblewrap import SDK, InnerListener, Sandbox, SandboxedProgram, interpreter_places
from osmosis_ai.sandbox.control_groups import RunLimits
from osmosis_ai.sandbox.isolation import check_sandbox

PROBE = Path(__file__).with_name("reach_probe.py")
METADATA = "169.254.169.254"
NOBODY = 65534
PROCESSES = 64
_CLONE_NEWNET = 0x40000000
_SIOCSIFADDR, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x8913, 0x8914, 1
_PATIENCE_S = 60.0


class CannotTryError(Exception):
    """Why nothing can be tried here."""


def network_of_its_own() -> bool:
    """Be in a network where the metadata address is this machine's; False where that is not allowed."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(METADATA))
        fcntl.ioctl(control, _SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))
    return True


def answer_on(listening: socket.socket) -> None:
    """Answer every connection while this process runs."""

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"m")

    threading.Thread(target=serve, daemon=True).start()


class World:
    """The files, processes and listeners of one user's machine.

    Args:
        root: where its files are.
        user: who starts rollouts there; None for who this process is.
    """

    def __init__(self, root: Path, user: int | None) -> None:
        self.user = user
        data, home = root / "data", root / "home"
        self.run_dir = data / "runs" / "mine"
        self.source, self.artifacts = self.run_dir / "source", self.run_dir / "trials"
        self.installed = root / "venv" / "lib" / "sdk.py"
        files = [data / "platform.db", data / "keys/secrets.key", data / "runs/other/source/.env"]
        homes = [home / ".ssh/id_ed25519", home / ".env"]
        for place in (*files, *homes, self.installed, self.source / "main.py"):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("canary")
        self.artifacts.mkdir()
        shutil.copy(PROBE, self.installed.with_name("probe.py"))
        if user is not None:
            for folder, _, names in os.walk(root):
                for place in (Path(folder), *(Path(folder, name) for name in names)):
                    os.chown(place, user, user)
        self.data, self.home = data, home
        self._processes = [self._keeper(), self._start(["/bin/sh", "-c", "echo ready; exec sleep 600"])]
        self.asked: dict[str, Any] = {
            "source": str(self.source / "main.py"),
            "artifact": str(self.artifacts / "left"),
            "data": list(map(str, files)),
            "home": list(map(str, homes)),
            "keeper": self._processes[0].pid,
            "neighbour": self._processes[1].pid,
            "installed": str(self.installed),
            "processes": PROCESSES + 32,
            "bytes": 300 << 20,
        }

    def python(self) -> Path:
        """Return an interpreter that the user may start."""
        for candidate in (Path("/usr/bin/python3"), Path(sys.executable)):
            try:
                subprocess.run([candidate, "-c", ""], cwd="/", check=True, user=self.user)
            except (OSError, subprocess.CalledProcessError):
                continue
            return candidate
        raise CannotTryError("an ordinary user can start no Python here")

    def close(self) -> None:
        """End its processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _keeper(self) -> subprocess.Popen[bytes]:
        """Start a process that keeps to itself, as a platform and its workers do."""
        source = Path(privacy.__file__).read_text()
        code = f"{source}\ndisable_inspection(os.environ)\nprint('ready', flush=True)\nsys.stdin.read()\n"
        return self._start([str(self.python()), "-I", "-S", "-c", code])

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env={"SECRET": "canary", "PATH": os.environ["PATH"]},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=self.user,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process


def try_level(world: World, asked: dict[str, Any], sandbox: Sandbox | None) -> dict[str, bool]:
    """Run the probe, and end it as a rollout's server is ended; return what it reached."""
    python = world.python()
    reading, held = os.pipe()
    probe = [str(python), "-I", "-S", str(world.installed.with_name("probe.py"))]
    probe.append(json.dumps({**asked, "alive": held}))
    inner, fds = None, [held]
    env = {**program_environment(os.environ), "OWN_SECRET": "mine"}
    started: Sequence[str] | SandboxedProgram = probe
    if sandbox is not None:
        if sandbox.network == "none":
            inner = InnerListener(asked["model"][1])
            fds.append(inner.fileno())
            probe = inner.command(python, probe)
        started = sandbox.command(probe, cwd=world.source, writable=[world.artifacts])
    with program_start(started, env) as begun:
        server = subprocess.Popen(
            begun.command,
            env=begun.env,
            cwd="/",
            stdout=subprocess.PIPE,
            pass_fds=[*fds, *begun.fds],
            user=world.user,
            start_new_session=True,
        )
    os.close(held)
    assert server.stdout is not None
    if inner is not None:
        select.select([inner._here], [], [], _PATIENCE_S)
        answer_on(inner.take())
    line = server.stdout.readline()
    found: dict[str, Any] = json.loads(line)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    # What left is the pipe's last writer. Without a sandbox there is nothing to wait for: it stays.
    ended = bool(select.select([reading], [], [], 0 if sandbox is None else _PATIENCE_S)[0])
    away = found.pop("away")
    if not ended and sandbox is None:
        os.kill(away, signal.SIGKILL)
    os.close(reading)
    return {**found, "staying": not ended}


def levels(root: Path, has_network: bool) -> dict[str, dict[str, bool]]:
    """Return what is reached at each level that can be tried here."""
    capability = check_sandbox()
    if not capability.works or capability.bwrap is None:
        raise CannotTryError(capability.said)
    is_root = os.geteuid() == 0
    for place in (SDK, capability.bwrap) if is_root else ():
        if not all(parent.stat().st_mode & 0o001 for parent in place.parents):
            raise CannotTryError(f"an ordinary user cannot read {place}")
    listening = [socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))]
    abstract = f"osmosis-{secrets.token_hex(8)}"
    listening.append(socket.socket(socket.AF_UNIX))
    listening[-1].bind(f"\0{abstract}")
    listening[-1].listen()
    asked: dict[str, Any] = {
        "model": listening[0].getsockname(),
        "loopback": listening[1].getsockname(),
        "abstract": abstract,
        "metadata": [METADATA, 80],
    }
    if has_network:
        listening.append(socket.create_server((METADATA, 80)))
    for each in listening:
        answer_on(each)
    found: dict[str, dict[str, bool]] = {}
    for user in [NOBODY, None] if is_root else [None]:
        world = World(root / str(user), user)
        whose = " as root" if is_root and user is None else ""
        held = capability.sandbox(
            world.source,
            readable=[world.installed.parent, *interpreter_places(world.python())],
            hidden=[world.data],
            limits=RunLimits(memory_gb=0.1, processes=PROCESSES),
        )
        tried: dict[str, Callable[[], Sandbox | None]] = {
            "sandbox": lambda held=held: held,  # type: ignore[misc]
            "no network": lambda held=held: replace(held, network="none"),  # type: ignore[misc]
            "no sandbox": lambda: None,
        }
        try:
            for name, sandbox in tried.items():
                found[f"{name}{whose}"] = try_level(world, {**world.asked, **asked}, sandbox())
        finally:
            world.close()
    if not has_network:
        for reached in found.values():
            del reached["metadata"]
    return found


def main() -> None:
    """Print what is reached."""
    has_network = os.geteuid() == 0 and network_of_its_own()
    # Where an ordinary user can read everything, and pages are not held twice.
    with tempfile.TemporaryDirectory(prefix="osmosis-test-", dir="/var/tmp") as root:
        Path(root).chmod(0o755)
        try:
            print(json.dumps(levels(Path(root).resolve(), has_network)))
        except CannotTryError as error:
            print(json.dumps({"skip": str(error)}))


if __name__ == "__main__":
    main()

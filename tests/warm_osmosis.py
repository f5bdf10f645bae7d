"""Processes of ``osmosis`` without the seconds that their imports take.

``warm_osmosis()`` replaces ``python -m osmosis_ai`` in a command. It names a small client (``tests/warm_client.py``)
that sends its arguments, environment, directory and open files to a server. The server has imported everything and
forks a process that runs the command. The client passes on signals, and has the exit status of the process.

The client is the ``sys.executable`` of the forked process, so a warm platform starts warm workers, and so on.
``warm_osmosis(torch=True)`` is for training: its processes have imported torch.

The process is not a child of the client (see ``process_of``), and it has more modules than it needs. Tests of the
start, of process trees and of memory therefore use ``python -m osmosis_ai``.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

SANDBOX_HOME = "/home/rollout"
PACKAGES = [
    f"osmosis_ai.{name}"
    for name in [
        "cli",
        "services",
        "api",
        "decisions",
        "evaluation",
        "controller",
        "rollout",
        "statistics",
        "platform",
    ]
]
ALSO = [
    *("osmosis_ai.inference.server", "osmosis_ai.inference.engine", "alembic.command", "fastapi", "git"),
    *("httpx", "numpy", "pyarrow.parquet", "scipy.stats", "uvicorn", "uvloop"),
]
TORCH = ["osmosis_ai.training", "osmosis_ai.inference"]
_PREFIX, _OWNER = "osmosis-warm-", "owner"
ALSO_WITH_TORCH = ["peft", "torch", "transformers", "transformers.models.qwen3.modeling_qwen3"]
_SERVERS: dict[bool, tuple[Path, subprocess.Popen[bytes]]] = {}


def warm_osmosis(*, torch: bool = False) -> list[str]:
    """Return the command that runs ``osmosis``; the first call in a process starts the server."""
    return [warm_python(torch=torch), "-m", "osmosis_ai"]


def run_osmosis(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command warm, with empty input, and return it with its output."""
    return subprocess.run(
        [*warm_osmosis(), *words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def warm_python(*, torch: bool = False) -> str:
    """Return a replacement of ``sys.executable`` with which our processes are forked warm."""
    if torch not in _SERVERS:
        # The server with torch is forked from the other.
        _SERVERS[torch] = _start(warm_python() if torch else sys.executable, torch)
    return str(_SERVERS[torch][0] / "python")


def process_of(client: int) -> int:
    """Return the process of a client, or the given one if it is not a running client."""
    while b"/warm_client.py" in _command_of(client):
        for directory, _ in _SERVERS.values():
            with suppress(FileNotFoundError):
                return int((directory / "processes" / str(client)).read_text())
        time.sleep(0.01)
    return client


def interrupt_twice(client: int) -> None:
    """Send Ctrl-C and what counts as a second one, so that no time passes between them for the process.

    Of one signal that is sent twice a process that stands still gets one.
    """
    process = process_of(client)
    os.kill(process, signal.SIGSTOP)
    try:
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    finally:
        os.kill(process, signal.SIGCONT)


def _command_of(process: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def _start(python: str, torch: bool) -> tuple[Path, subprocess.Popen[bytes]]:
    import shlex
    import shutil
    import subprocess
    import tempfile

    remove_left(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (directory / _OWNER).write_text(_identity(os.getpid()))
    (directory / "processes").mkdir()
    client = shutil.copy(Path(__file__).with_name("warm_client.py"), directory)
    start = [sys.executable, "-S", "-E", str(client), str(directory / "socket"), sys.executable]
    # What is forked would not be in the sandbox that it is asked for from.
    sandboxed = f'[ "$HOME" = {SANDBOX_HOME} ] && exec {shlex.quote(sys.executable)} "$@"'
    (directory / "python").write_text(f'#!/bin/sh\n{sandboxed}\nexec {shlex.join(start)} "$@"\n')
    (directory / "python").chmod(0o755)
    for name in ("osmosis", "uv"):  # what is looked for beside the interpreter
        if (beside := Path(sys.executable).with_name(name)).exists():
            (directory / name).symlink_to(beside)
    # It ends when this process does: nobody else holds the other end of its standard input.
    server = subprocess.Popen(
        [python, "-m", "tests.warm_osmosis", str(directory), "torch" if torch else ""],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return directory, server


def remove_left(parent: Path) -> None:
    """Remove the directories of killed servers whose starting process has ended."""
    import shutil

    for directory in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError):
            if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
                continue
            # One without it is somebody's who is about to write it.
            owner = (directory / _OWNER).read_text()
            if owner != _identity(int(owner.split()[0])):
                shutil.rmtree(directory, ignore_errors=True)


def _identity(process: int) -> str:
    """Return a process's ID and start time, which identify it after its ID is reused; "" if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        began = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{process} {began}"
    return ""


class Server:
    """Forks a process for each client until the tests end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clients: dict[int, tuple[socket.socket, bool]] = {}
        self._notes: dict[int, Path] = {}

    def run(self) -> None:
        import select

        ended, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._directory / "socket"))
            listener.listen(64)
            os.write(1, b"ready\n")
            while True:
                clients = {one: pid for pid, (one, _) in self._clients.items() if one.fileno() >= 0}
                readable, _, _ = select.select([listener, 0, ended, *clients], [], [])
                if 0 in readable:
                    break
                for client in readable:
                    if client in clients:
                        self._listen_to(clients[client])
                if ended in readable:
                    os.read(ended, 512)
                    self._reap()
                if listener in readable:
                    self._attend(listener.accept()[0], [listener.fileno(), ended, wakeup])
        for pid in list(self._clients):
            self._kill(pid, signal.SIGKILL)

    def _listen_to(self, pid: int) -> None:
        """Pass on the signals of a client, or SIGKILL if it was killed."""
        client, _ = self._clients[pid]
        try:
            signals = client.recv(64)
        except ConnectionError:
            signals = b""
        if not signals:
            client.close()
        for number in signals or [signal.SIGKILL]:
            self._kill(pid, number)

    def _kill(self, pid: int, number: int) -> None:
        _, leads = self._clients[pid]
        with suppress(ProcessLookupError):
            # A signal to the client's group is also for the children of the process, which may not lead a group yet.
            group = leads and os.getpgid(pid) == pid
            (os.killpg if group else os.kill)(pid, number)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                client, leads = self._clients.pop(pid)
                self._forget(pid)
                if leads:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                with client, suppress(OSError):  # the client may have been killed
                    client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))

    def _forget(self, pid: int) -> None:
        """Remove the file of a process, because the ID of its client is reused."""
        note = self._notes.pop(pid)
        with suppress(FileNotFoundError):
            if note.read_text() == str(pid):
                note.unlink()

    def _attend(self, client: socket.socket, own: list[int]) -> None:
        wish, files = _receive(client)
        if wish is None:
            client.close()
        else:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (
                    *own,
                    client.fileno(),
                    *(one.fileno() for one, _ in self._clients.values() if one.fileno() >= 0),
                ):
                    os.close(descriptor)
                become(wish, files)
            self._clients[pid] = (client, wish["leads"])
            note = self._notes[pid] = self._directory / "processes" / str(wish["pid"])
            note.with_suffix(".new").write_text(str(pid))
            note.with_suffix(".new").rename(note)
        for descriptor in files:
            os.close(descriptor)


def _receive(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a client's request (None if it was killed before it sent one) and its files."""
    files: list[int] = []
    with suppress(ConnectionError):
        _, files, _, _ = socket.recv_fds(client, 1, 64)
        size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
        # To the byte: what follows are signals.
        document = client.recv(size, socket.MSG_WAITALL)
        if size and len(document) == size:
            return marshal.loads(document), files
    return None, files


def import_what_processes_need(packages: list[str], also: list[str]) -> None:
    """Import all modules of these packages, and libraries that most processes need."""
    import importlib
    import pkgutil

    for name in packages:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            # Frameworks are for the few rollouts that are written with one, and LiteLLM alone takes seconds.
            if not re.search(r"__main__|\.migrations\.|\.integrations\.agents\.", module.name):
                importlib.import_module(module.name)
    for name in also:
        importlib.import_module(name)


def become(wish: dict[str, Any], files: list[int]) -> NoReturn:
    """Become the process that was requested."""
    import random

    if wish["leads"]:
        os.setsid()
    _take_limits(wish["pid"])
    # Out of the way first, and then to the numbers that the client had them under.
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, 200) for number in files]
    for number in files:
        os.close(number)
    for number, given in zip(high, wish["given"], strict=True):
        os.dup2(number, given)
        os.close(number)
    _take_limits(wish["pid"])
    os.environ.clear()
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in wish["env"].items()})
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # chosen by TMPDIR, as in a new process
    os.chdir(wish["cwd"])
    os.umask(wish["umask"])
    time.tzset()
    random.seed()
    sys.modules["numpy"].random.seed()
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin, sys.stdout, sys.stderr = (_stream(number, unbuffered) for number in range(3))
    _end(lambda: _run(wish["words"]))


def _take_limits(client: int) -> None:
    """Take over the client's limits and niceness."""
    import resource

    if not hasattr(resource, "prlimit"):
        return
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, client))
        for name in dir(resource):
            if name.startswith("RLIMIT_"):
                limit = getattr(resource, name)
                resource.setrlimit(limit, resource.prlimit(client, limit))


def _stream(number: int, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    file = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        file,  # type: ignore[type-var]
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or os.isatty(number),
        write_through=unbuffered,
    )


def _run(words: list[str]) -> object:
    """Run these words like ``python``; return the argument of ``sys.exit``."""
    import runpy

    how, what = words[0], words[1] if len(words) > 1 else ""
    first = "" if how == "-c" else os.getcwd() if how == "-m" else os.path.dirname(how)
    safe = os.environ.get("PYTHONSAFEPATH")
    added = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [*([] if safe else [first]), *added, *_PATH]
    if how == "-m" and what == "osmosis_ai":
        sys.argv = ["osmosis", *words[2:]]
        from osmosis_ai.cli.main import main

        return main()
    if how == "-m":
        sys.argv = words[1:]
        # A later import loads it again, as if it had been `__main__` from the start.
        sys.modules.pop(what, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *words[2:]]
        main_module = types.ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(what, "<string>", "exec"), main_module.__dict__)
    else:
        sys.argv = words
        runpy.run_path(how, run_name="__main__")
    return None


def _end(run: Callable[[], object]) -> NoReturn:
    """Run, and end as the interpreter does; but for taking its modules apart, which takes longer than most commands."""
    interrupted = False
    try:
        status = run()
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((status or 0) & 0xFF)


_PATH = [place for place in sys.path if place != os.getcwd()]


def main(directory: str, torch: str) -> None:
    """Import, and serve; what this is reached by goes when it ends."""
    import shutil

    # What is forked starts its own processes so; some of our modules look at it once.
    sys.executable = str(Path(directory) / "python")
    if torch:
        import_what_processes_need(TORCH, ALSO_WITH_TORCH)
    else:
        import_what_processes_need(PACKAGES, ALSO)
    gc.freeze()
    try:
        Server(Path(directory)).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

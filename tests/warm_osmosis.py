"""The ``osmosis`` command as a process of its own, without the second it takes to import what it needs.

``warm_osmosis()`` is what a test puts before a command's words, in place of ``python -m osmosis_ai``. It names a
small client that hands its words, environment, directory and standard streams to a server; the server has
imported the command line before and forks a process that runs the command. The client ends as that process
ends, passes on the signals it gets, and takes the process along when it is killed.

The process is no child of the client's, and it begins with the modules that the server imported. So what a test
proves of starting itself, of process trees and of kills needs ``python -m osmosis_ai``.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # a client imports as little as it can
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PACKAGES = [f"osmosis_ai.{name}" for name in ("cli", "services", "api", "evaluation", "driving")]
ALSO = ["osmosis_ai.platform.app", "alembic.command", "git", "httpx", "numpy", "pyarrow.parquet", "uvicorn"]
_STARTED: list[str] = []


def warm_osmosis() -> list[str]:
    """Return the words that run ``osmosis``; the server starts with the first call in this process."""
    if not _STARTED:
        import subprocess
        import tempfile

        path = os.path.join(tempfile.mkdtemp(prefix="osmosis-warm-"), "socket")
        words = [sys.executable, "-m", "tests.warm_osmosis", path]
        # It ends when this process does: nobody else holds the other end of its standard input.
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        server = subprocess.Popen(
            words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        _STARTED.extend([sys.executable, "-S", "-E", __file__, path])
        globals()["_SERVER"] = server  # a process object that nobody holds complains
    return _STARTED


def be_client(path: str, words: list[str]) -> int:
    """Have the server run a command with what this process has; return how it ended."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        wish = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
        streams = array.array("i", [0, 1, 2])
        server.sendmsg([b"*"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        server.sendall(json.dumps(wish).encode() + b"\n")
        ended = b""
        while not ended.endswith(b"\n"):
            part = server.recv(64)
            if not part:
                return 70
            ended += part
    status = int(ended)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def be_server(path: str) -> None:
    """Fork a process for every client, until the tests are over."""
    import gc
    import select

    import_what_commands_need()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, b"ready\n")
        while True:
            readable, _, _ = select.select([listener, 0], [], [])
            if 0 in readable:
                return
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                attend(client)
            client.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def import_what_commands_need() -> None:
    """Import every module of the command line, and the libraries that most commands come to."""
    import importlib
    import pkgutil

    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in ALSO:
        importlib.import_module(name)


def attend(client: socket.socket) -> NoReturn:
    """Run a client's command in one more process, and tell how it ended."""
    import threading

    _, ancillary, _, _ = client.recvmsg(1, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    with client.makefile("rb") as received:
        wish = json.loads(received.readline())
    pid = os.fork()
    if pid == 0:
        client.close()
        run_command(wish, list(streams))
    for stream in streams:
        os.close(stream)
    reaped = threading.Event()

    def pass_on_signals() -> None:
        # One that was reaped is gone, and a client that went away first was killed.
        with suppress(ProcessLookupError):
            while sent := client.recv(1):
                os.kill(pid, sent[0])
            if not reaped.is_set():
                os.kill(pid, signal.SIGKILL)

    threading.Thread(target=pass_on_signals, daemon=True).start()
    _, status = os.waitpid(pid, 0)
    reaped.set()
    client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def run_command(wish: dict[str, object], streams: list[int]) -> NoReturn:
    """Become what ``osmosis`` with these words would be."""
    import atexit
    import io
    import random
    import threading
    import time

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wish["env"])  # type: ignore[call-overload]
    os.chdir(str(wish["cwd"]))
    time.tzset()
    random.seed()
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(number, mode, closefd=False),  # noqa: SIM115 - for as long as the process lives
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number),
            write_through=False,
        )
        for number, mode in enumerate(("rb", "wb", "wb"))
    )
    sys.argv = ["osmosis", *wish["words"]]  # type: ignore[misc]
    from osmosis_ai.cli.main import main

    try:
        status = main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    # As the interpreter does it, but for taking its modules apart, which takes longer than most commands.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    # The server alone is started as a module; a client has not even this package to import.
    if __spec__ is not None:
        be_server(sys.argv[1])
    else:
        sys.exit(be_client(sys.argv[1], sys.argv[2:]))

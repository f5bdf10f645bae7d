"""Large files through a real server and the real client, in an amount of memory that does not grow with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.api.models.datasets import Dataset
from osmosis_ai.api.transfer import download, upload_file
from osmosis_ai.datasets import file_digest
from tests.platform.evaluations import wait_until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc"
    ),
]

MIB = 1 << 20
SIZE = 200 * MIB
# A few blocks in flight, the allocator's slack, SQLite; far below a body.
MOST_GROWTH = 48 * MIB

_SERVER = """
import json, socket, sys
from pathlib import Path
import uvicorn
from osmosis_ai.platform.app import create_app
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import World

listening = socket.create_server(("127.0.0.1", 0))
home = Path(sys.argv[1])
services = PlatformServices(PlatformConfig(home=home, port=listening.getsockname()[1]))
services.datasets.multipart_from_bytes = int(sys.argv[2])
headers = World(services).member().headers
print(json.dumps({"url": services.config.base_url, "headers": headers}), flush=True)
uvicorn.Server(uvicorn.Config(create_app(services), log_level="warning")).run(sockets=[listening])
"""


@contextmanager
def served(home: Path, multipart_from_bytes: int) -> Iterator[tuple[int, httpx.Client]]:
    """Run a platform in a process of its own; gives the process and a member's client."""
    command = [sys.executable, "-c", _SERVER, str(home), str(multipart_from_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            with httpx.Client(base_url=told["url"], headers=told["headers"], timeout=300) as client:
                yield process.pid, client
        finally:
            process.terminate()


def peak_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 rows of one MiB."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    line = json.dumps({"user_prompt": "x" * (MIB - 100), "ground_truth": "1"}).encode()
    with path.open("wb") as handle:
        for _ in range(SIZE // MIB):
            handle.write(line.ljust(MIB - 1) + b"\n")
    return path


@pytest.mark.parametrize(
    "multipart_from", [pytest.param(1 << 40, id="in one piece"), pytest.param(64 * MIB, id="in parts")]
)
def test_200_mib_go_up_and_come_back_in_flat_memory(
    tmp_path: Path, source: Path, multipart_from: int
) -> None:
    with served(tmp_path / "platform", multipart_from) as (process, client):

        def announce(name: str, size: int) -> Dataset:
            body = {"file_name": name, "file_size": size, "extension": "jsonl"}
            return Dataset.model_validate(client.post("/api/cli/datasets", json=body).json())

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = client.get("/api/cli/datasets/large").json()
            return found if found["status"] != "processing" else None

        # What the first request of each kind loads is no growth.
        announce("first", 10)
        before = peak_bytes(process)

        dataset = announce("large", SIZE)
        assert dataset.upload is not None
        parts = [part.to_wire() for part in upload_file(source, dataset.upload).parts or []]
        body = {"file_extension": "jsonl", **({"parts": parts} if parts else {})}
        assert client.post(f"/api/cli/datasets/{dataset.id}/complete", json=body).status_code == 200
        checked = wait_until(look)
        assert (checked["status"], checked["row_count"], checked["file_size"]) == ("uploaded", 200, SIZE)
        url = client.get("/api/cli/datasets/large/download").json()["presigned_url"]
        back = tmp_path / "back.jsonl"
        suggested = download(url, back, expected_size=SIZE, expected_sha256=file_digest(source))

        assert suggested == "large.jsonl"
        growth = peak_bytes(process) - before
        assert growth < MOST_GROWTH, f"{growth / MIB:.0f} MiB more at the peak"

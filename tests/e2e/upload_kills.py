"""Kills `dataset upload` with SIGKILL at an exact moment, and runs the command again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.server import run_platform
from osmosis_ai.platform.services import PlatformServices
from tests.logins import make_checkout
from tests.platform.conftest import World
from tests.platform.datasets_world import rows

PARTS = 4
_PART_BYTES = 300_000
_IDENTITY = "fern/maze"

# In the order in which an upload comes by: what is patched, before or after the call, and the how many-th one.
MOMENTS = {
    "meant": ("osmosis_ai.services.datasets:_Sender._create", "before", 1),
    "announced": ("osmosis_ai.services.datasets:_Sender._create", "after", 1),
    "recorded": ("osmosis_ai.services.datasets:open_upload", "after", 1),
    "in the middle of a part": ("osmosis_ai.api.transfer:_Source.read", "within", 2),
    "sent": ("osmosis_ai.api.upload_records:UnfinishedUpload.acknowledge", "before", 2),
    "acknowledged": ("osmosis_ai.api.upload_records:UnfinishedUpload.acknowledge", "after", 3),
    "all sent": ("osmosis_ai.services.datasets:_Sender._complete", "before", 1),
    "completed": ("osmosis_ai.services.datasets:_Sender._complete", "after", 1),
}

_KILLED = """
import importlib, os, signal, sys

place, when, nth = sys.argv[1:4]
module, _, path = place.partition(":")
owner = importlib.import_module(module)
*outer, name = path.split(".")
for part in outer:
    owner = getattr(owner, part)
real, calls = getattr(owner, name), 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def half(blocks):
    yield next(iter(blocks))
    die()

def patched(*arguments, **options):
    global calls
    calls += 1
    if calls < int(nth):
        return real(*arguments, **options)
    if when == "before":
        die()
    result = real(*arguments, **options)
    if when == "within":
        return half(result)
    die()

setattr(owner, name, patched)
from osmosis_ai.cli.main import main
sys.exit(main(sys.argv[4:]))
"""


@dataclass
class UploadBench:
    """A platform in this process, and a checkout whose commands are separate processes."""

    services: PlatformServices
    checkout: Path
    env: dict[str, str]
    content: bytes
    received: Counter[int] = field(default_factory=Counter)

    def upload(self, *, kill_at: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, or until it kills itself."""
        words = ["--json", "dataset", "upload", "data/sums.jsonl", "--yes"]
        program = [sys.executable, "-m", "osmosis_ai"]
        if kill_at is not None:
            place, when, nth = MOMENTS[kill_at]
            program = [sys.executable, "-c", _KILLED, place, when, str(nth)]
        return subprocess.run(
            [*program, *words],
            cwd=self.checkout,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def check_kill(self, moment: str) -> None:
        """Kill an upload, run its command again, and check that one complete dataset and no other file is there."""
        killed = self.upload(kill_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        again = self.upload()
        assert again.returncode == 0, f"{moment}: {again.stderr}"
        services = self.services
        assert services.datasets.ingest.wait_idle(120)
        (workspace,) = (each for each in services.workspaces.all() if each.name == "fern")
        found = services.datasets.page(workspace.id, limit=10, offset=0)
        assert found.counts["total"] == 1 and found.items[0].status == "uploaded", moment
        key = found.items[0].blob_key
        assert key is not None
        with services.blobs.open(key) as stored:
            assert stored.read() == self.content, moment
        # One part may have come twice: the one whose acknowledgement was killed with the command.
        assert set(self.received) == set(range(1, PARTS + 1)), moment
        assert self.received.total() <= PARTS + 1, f"{moment}: {self.received}"
        assert list(services.blobs.unfinished_uploads()) == [], moment
        state = Path(self.env["OSMOSIS_CACHE_DIR"]) / "uploads"
        assert list(state.iterdir()) == [], moment


@contextmanager
def upload_bench(directory: Path) -> Iterator[UploadBench]:
    """Start a platform to which the file is uploaded in four parts."""
    content = b""
    number = 0
    while len(content) < _PART_BYTES * PARTS - _PART_BYTES // 2:
        content += rows(50, word="x" * 4000 + str(number))
        number += 1
    checkout = make_checkout(directory / "checkout").root
    (checkout / "data").mkdir(exist_ok=True)
    (checkout / "data" / "sums.jsonl").write_bytes(content)
    with run_platform(PlatformConfig(home=directory / "platform", port=0, executor_slots=0)) as platform:
        services = platform.services
        part_bytes = -(-len(content) // PARTS)
        services.datasets.multipart_from_bytes, services.datasets.part_bytes = 1000, part_bytes
        member = World(services).member(identity=_IDENTITY)
        url = platform.config.base_url
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("OSMOSIS_")},
            "OSMOSIS_PLATFORM_URL": url,
            "OSMOSIS_TOKEN": member.token,
            "OSMOSIS_TOKEN_PLATFORM_URL": url,
            "OSMOSIS_CONFIG_DIR": str(directory / "config"),
            "OSMOSIS_CACHE_DIR": str(directory / "cache"),
        }
        bench = UploadBench(services, checkout, env, content)
        _count_parts(services, bench.received)
        yield bench


def _count_parts(services: PlatformServices, received: Counter[int]) -> None:
    blobs: Any = services.blobs
    keep = blobs.keep_part

    def keep_and_count(grant: Any, incoming: Any) -> Any:
        received[grant.part_number] += 1
        return keep(grant, incoming)

    blobs.keep_part = keep_and_count

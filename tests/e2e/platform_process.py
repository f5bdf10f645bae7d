"""A platform as a tree of processes, any of which can be killed, and the runs that it executes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_ai.services.demo import Scratch
from tests.warm_osmosis import process_of, run_osmosis, warm_osmosis

PROGRAM = [sys.executable, "-m", "osmosis_ai"]
WORKER, ROLLOUT_SERVER = "osmosis_ai.platform.worker.worker", "main.py"
# Runs `platform worker` with last calls that may take as long as a busy machine needs for them.
PATIENT_WORKER = """
import sys

from osmosis_ai.cli.main import main
from osmosis_ai.platform.worker import client, host

host._LAST_CALLS_S = 300.0
client._TIMEOUT_S = client._SHORTEST_S = 300.0
sys.exit(main())
"""


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


class Kill(NamedTuple):
    """``delay_s`` after the journal has ``records`` lines, ``victim`` is killed."""

    records: int
    victim: str
    delay_s: float


class Platform:
    """A platform that can be started again after a kill.

    Args:
        scratch: Has its data and its workspace directory.
        program: The command that runs it, its workers and their servers; forked from a warm process by default.
        settings: Further environment variables.
        prepare: Called in its process before it starts.
    """

    def __init__(
        self,
        scratch: Scratch,
        program: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.program = program or (PROGRAM if prepare else warm_osmosis())
        self.prepare = prepare
        self.home = scratch.root / "data"
        self.workspace = scratch.workspace
        self.env = {**scratch.environment(os.environ), **(settings or {})}
        self.port = "0"
        self.starts = 0
        self.start()

    def start(self) -> None:
        with (self.home.parent / "platform.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, "platform", "start", "--login", "--json", "--port", self.port],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=self.prepare,
            )
        assert self.process.stdout is not None
        with self.process.stdout as out:
            url: str = json.loads(out.readline())["resource"]["url"]
        self.port = url.rpartition(":")[2]
        self.env["OSMOSIS_PLATFORM_URL"] = url
        self.starts += 1

    def command(self, *words: str) -> Any:
        # A series of kills on a busy machine takes long.
        done = run_osmosis("--json", *words, cwd=self.workspace, env=self.env, timeout_s=3600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, config: str) -> Run:
        resource = self.command("eval", "submit", config, "--yes")["resource"]
        return Run(self, resource["id"], resource["name"])

    def kill(self, victim: str) -> bool:
        """Kill a process of the tree; return False if there is none of this kind now."""
        with suppress(OSError):  # the process that was found has just ended
            platform = process_of(self.process.pid)
            if victim == "platform":
                os.kill(platform, signal.SIGKILL)
                self.process.wait()
                return True
            found = child_of(platform, WORKER)
            if victim == "server" and found is not None:
                found = child_of(found, ROLLOUT_SERVER)
            if found is not None:
                os.kill(found, signal.SIGKILL)
                return True
        return False


@contextmanager
def connected_platform(scratch: Scratch, dataset: str = "multiply", **how: Any) -> Iterator[Platform]:
    """Run a platform with the repository and a dataset of a scratch; ``how`` has further arguments of :class:`Platform`."""
    scratch.push()
    platform = Platform(scratch, **how)
    try:
        platform.command("platform", "connect", str(scratch.origin))
        platform.command("dataset", "upload", f"data/{dataset}.jsonl", "--wait", "--yes")
        yield platform
    finally:
        with suppress(ProcessLookupError):
            platform.process.kill()
        platform.process.wait()


def write_config(scratch: Scratch, config: str, *, rows: int, more: str = "", **changes: int) -> None:
    """Write the sample's evaluation config with another limit, changed values and further sections."""
    text = (scratch.workspace / "configs/eval/multiply.toml").read_text()
    for key, value in {"limit": rows, **changes}.items():
        text = re.sub(rf"(?m)^{key} = \d+", f"{key} = {value}", text)
    (scratch.workspace / config).write_text(text + more)


class Run:
    """A run and the journals of its shards, which can be read even after their workers have removed them.

    Args:
        home: The ``OSMOSIS_HOME`` of the machine that executes it, if that is not the platform's.
        shards: The number of its work shards.
    """

    def __init__(
        self, platform: Platform, run_id: str, name: str, home: Path | None = None, shards: int = 1
    ) -> None:
        self.platform = platform
        self.id = run_id
        self.name = name
        self.results = platform.workspace / ".osmosis" / "evals" / name
        self._runs_dir = (home or platform.home) / "runs"
        self._shards = shards
        self._journals: dict[Path, int] = {}

    def journals(self) -> dict[str, list[bytes]]:
        """Return the committed lines of each shard on this machine, by the shard's id."""
        if len(self._journals) < self._shards:
            for path in self._runs_dir.glob(f"*/evaluation/{self.name}/events.jsonl"):
                if path not in self._journals:
                    with suppress(FileNotFoundError):
                        self._journals[path] = os.open(path, os.O_RDONLY)
        found = {}
        for path, journal in sorted(self._journals.items()):
            content = os.pread(journal, os.fstat(journal).st_size, 0)
            found[path.parts[-4]] = content.split(b"\n")[:-1]
        return found

    def journal(self) -> list[bytes]:
        """Return the committed lines of all shards on this machine."""
        return [line for lines in self.journals().values() for line in lines]

    def ended(self) -> bool:
        """Whether the workers of all shards have removed their directories."""
        return len(self._journals) == self._shards and not any(path.exists() for path in self._journals)

    def await_moment(self, kill: Kill) -> bool:
        """Wait for the moment of a kill; False if the run ends before."""
        deadline = time.monotonic() + 900
        while not self.ended():
            if len(self.journal()) >= kill.records:
                time.sleep(kill.delay_s)  # the moment itself is what the test varies
                return True
            assert time.monotonic() < deadline, f"{self.name} makes no progress"
            time.sleep(0.005)
        return False

    def finish(self) -> dict[str, Any]:
        """Wait for the end, download the results, and return the run."""
        ended: dict[str, Any] = self.platform.command("eval", "watch", self.name)["resource"]
        self.platform.command("eval", "download", self.name)
        return ended


def child_of(parent: int, words: str) -> int | None:
    """Return a child process of ``parent`` whose command contains ``words``."""
    found = (p.pid for p in processes() if p.parent == parent and words in p.command)
    return next(map(process_of, found), None)


def processes() -> list[Process]:
    listing = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [Process(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]

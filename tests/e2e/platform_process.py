"""A platform as a tree of processes, any of which can be killed, and the runs it works on."""

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
from tests.warm_osmosis import process_of, warm_osmosis

PROGRAM = [sys.executable, "-m", "osmosis_ai"]
WORKER, ROLLOUT_SERVER = "osmosis_ai.platform.runs.work.worker", "main.py"
# Runs `platform worker`, whose last requests may take as long as a busy machine needs for them.
PATIENT_WORKER = """
import sys

from osmosis_ai.cli.main import main
from osmosis_ai.platform.runs.work import http_link, worker_host

worker_host.LAST_WORD_S = http_link._SHORTEST_SILENCE_S = 300.0
sys.exit(main())
"""


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


class Kill(NamedTuple):
    """When the journal holds ``records``, after another moment, ``victim`` is killed."""

    records: int
    victim: str
    delay_s: float


class Platform:
    """A platform that is started again whenever it was killed.

    Args:
        scratch: where its data and its workspace directory are.
        program: what runs it, and so its workers and their servers; forked warm by default.
        settings: further variables of its environment.
        prepare: called in its process before it starts.
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
        done = subprocess.run(
            [*warm_osmosis(), "--json", *words],
            cwd=self.workspace,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3600,  # a series of kills on a busy machine takes its time
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, config: str) -> Run:
        resource = self.command("eval", "submit", config, "--yes")["resource"]
        return Run(self, resource["id"], resource["name"])

    def kill(self, victim: str) -> bool:
        """Kill a process of the tree; False when there is none of this kind now."""
        with suppress(OSError):  # one that was looked for has just ended
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
    """Run a platform that knows the repository of a scratch and has a dataset of it; ``how`` is as Platform takes it."""
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
    """Write the sample's evaluation config with another limit, other values and more sections."""
    text = (scratch.workspace / "configs/eval/multiply.toml").read_text()
    for key, value in {"limit": rows, **changes}.items():
        text = re.sub(rf"(?m)^{key} = \d+", f"{key} = {value}", text)
    (scratch.workspace / config).write_text(text + more)


class Run:
    """A run, and its journal even after the platform, or the other machine it runs on, has removed it."""

    def __init__(self, platform: Platform, run_id: str, name: str, home: Path | None = None) -> None:
        self.platform = platform
        self.id = run_id
        self.name = name
        self.results = platform.workspace / ".osmosis" / "evals" / name
        self._journal_path = (home or platform.home) / "runs" / run_id / "evaluation" / name / "events.jsonl"
        self._journal: int | None = None

    def journal(self) -> list[bytes]:
        """Return the committed lines."""
        if self._journal is None:
            with suppress(FileNotFoundError):
                self._journal = os.open(self._journal_path, os.O_RDONLY)
        if self._journal is None:
            return []
        size = os.fstat(self._journal).st_size
        return os.pread(self._journal, size, 0).split(b"\n")[:-1]

    def ended(self) -> bool:
        return self._journal is not None and not self._journal_path.exists()

    def await_moment(self, kill: Kill) -> bool:
        """Wait for the moment of a kill; False when the run ends before."""
        deadline = time.monotonic() + 900
        while not self.ended():
            if len(self.journal()) >= kill.records:
                time.sleep(kill.delay_s)  # the moment itself is what the test varies
                return True
            assert time.monotonic() < deadline, f"{self.name} does not go on"
            time.sleep(0.005)
        return False

    def finish(self) -> dict[str, Any]:
        """Wait for the end and fetch what there is."""
        told: dict[str, Any] = self.platform.command("eval", "watch", self.name)["resource"]
        self.platform.command("eval", "download", self.name)
        return told


def child_of(parent: int, words: str) -> int | None:
    """Return a process that ``parent`` started, in whose command the words are."""
    found = (p.pid for p in processes() if p.parent == parent and words in p.command)
    return next(map(process_of, found), None)


def processes() -> list[Process]:
    listing = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [Process(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]

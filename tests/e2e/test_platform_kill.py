"""Whatever is killed, whenever: a run of a platform goes on by itself to the same samples and numbers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from osmosis_ai.services.demo import Scratch, prepare_scratch
from tests.e2e.test_demo_platform import numbers, samples

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS = 200, 4
SAMPLES = ROWS * ATTEMPTS
CONFIG = "configs/eval/kill.toml"
PROGRAM = [sys.executable, "-m", "osmosis_ai"]
WORKER, ROLLOUT_SERVER = "osmosis_ai.platform.runs.worker", "main.py"


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
    """A platform that is started again whenever it was killed."""

    def __init__(self, scratch: Scratch) -> None:
        self.home = scratch.root / "data"
        self.workspace = scratch.workspace
        self.env = scratch.environment(os.environ)
        self.port = "0"
        self.starts = 0
        self.start()

    def start(self) -> None:
        with (self.home.parent / "platform.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, "platform", "start", "--login", "--json", "--port", self.port],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        with self.process.stdout as out:
            url: str = json.loads(out.readline())["resource"]["url"]
        self.port = url.rpartition(":")[2]
        self.env["OSMOSIS_PLATFORM_URL"] = url
        self.starts += 1

    def command(self, *words: str) -> Any:
        done = subprocess.run(
            [*PROGRAM, "--json", *words],
            cwd=self.workspace,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self) -> Run:
        resource = self.command("eval", "submit", CONFIG, "--yes")["resource"]
        return Run(self, resource["id"], resource["name"])

    def kill(self, victim: str) -> bool:
        """Kill a process of the tree; False when there is none of this kind now."""
        if victim == "platform":
            self.process.kill()
            self.process.wait()
            return True
        tree = processes()
        worker = next((p for p in tree if p.parent == self.process.pid and WORKER in p.command), None)
        found = worker
        if victim == "server" and worker is not None:
            found = next((p for p in tree if p.parent == worker.pid and ROLLOUT_SERVER in p.command), None)
        if found is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)
            return True
        return False


class Run:
    """A run, and its journal even after the platform has removed it."""

    def __init__(self, platform: Platform, run_id: str, name: str) -> None:
        self.platform = platform
        self.id = run_id
        self.name = name
        self.results = platform.workspace / ".osmosis" / "evals" / name
        self._journal_path = platform.home / "runs" / run_id / "evaluation" / name / "events.jsonl"
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
        deadline = time.monotonic() + 120
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


def processes() -> list[Process]:
    listing = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [Process(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]


def plan_of_kills(seed: int) -> list[Kill]:
    """While it starts, spread over the run, and while the last results, the metrics and the end are written.

    A worker that dies three times without a record in between is given up on, so only one is killed that early.
    """
    draw = random.Random(seed)
    kills = [Kill(0, "platform", draw.uniform(0.0, 2.0)), Kill(0, "worker", draw.uniform(0.5, 2.0))]
    moments = sorted(draw.sample(range(1, SAMPLES - 60), 10))
    victims = ["platform", "platform", "worker", "worker", "server"]
    victims += draw.choices(["platform", "worker", "server"], k=5)
    draw.shuffle(victims)
    kills += [Kill(at, victim, draw.uniform(0, 0.05)) for at, victim in zip(moments, victims, strict=True)]
    kills += [Kill(SAMPLES - 1, "worker", 0.0), Kill(SAMPLES, "platform", draw.uniform(0.0, 0.1))]
    return kills


def scores(lines: list[bytes]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return what the journal says of each sample."""
    records = [json.loads(line) for line in lines]
    return {
        (record["row_index"], record["run_index"]): (
            record["source_row_index"],
            record["status"],
            record.get("reward"),
            record.get("tokens"),
        )
        for record in records
    }


def published(results: Path) -> list[tuple[Any, ...]]:
    """Return what the platform says of each sample, in its order."""
    facts = ("row_index", "run_index", "status", "reward", "tokens", "error_type")
    lines = (results / "summary.jsonl").read_text().splitlines()
    return [tuple(json.loads(line).get(fact) for fact in facts) for line in lines]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    scratch = prepare_scratch(tmp_path_factory.mktemp("kill") / "demo")
    sample = (scratch.workspace / "configs/eval/multiply.toml").read_text()
    (scratch.workspace / CONFIG).write_text(sample.replace("limit = 100", f"limit = {ROWS}"))
    scratch.push()
    platform = Platform(scratch)
    try:
        platform.command("platform", "connect", str(scratch.origin))
        platform.command("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        yield platform
    finally:
        platform.process.kill()
        platform.process.wait()


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(platform: Platform) -> None:
    calm = platform.submit()
    assert calm.await_moment(Kill(1, "nobody", 0.0))
    assert calm.finish()["status"] == "finished"

    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed of the kills: {seed} (set KILL_SEED to repeat)")
    stormy = platform.submit()
    began = time.monotonic()
    before: list[bytes] = []
    under_way = 0
    kills = plan_of_kills(seed)
    for kill in kills:
        if not stormy.await_moment(kill):
            break
        while not platform.kill(kill.victim) and not stormy.ended():
            time.sleep(0.005)
        lines = stormy.journal()
        under_way += not stormy.ended()
        assert lines[: len(before)] == before, "a committed result was changed or lost"
        before = lines
        print(
            f"{time.monotonic() - began:5.1f} s: killed the {kill.victim} at {len(lines)} of {SAMPLES} results"
        )
        if kill.victim == "platform":
            platform.start()
    told = stormy.finish()
    assert told["status"] == "finished", told["error"]
    assert under_way >= 10
    assert platform.starts >= 4

    lines = stormy.journal()
    assert lines[: len(before)] == before
    assert len(lines) == SAMPLES
    assert scores(lines) == scores(calm.journal()), "a finished sample ran twice, is missing, or is another"
    assert published(stormy.results) == published(calm.results)
    assert numbers(stormy.results) == numbers(calm.results)
    # A rollout's server writes a conversation once its result is acknowledged; killed in between, it never does.
    told_of, all_of_them = samples(stormy.results), samples(calm.results)
    assert told_of.items() <= all_of_them.items()
    assert len(all_of_them) == SAMPLES
    assert len(told_of) >= SAMPLES - 32 * len(kills)

    platform.command("platform", "stop")
    await_none_left(platform, stormy)
    platform.start()  # clears away what a worker was killed over
    assert not (platform.home / "runs" / stormy.id).exists()


def await_none_left(platform: Platform, run: Run) -> None:
    """Wait until no process of the platform's is alive."""
    deadline = time.monotonic() + 15
    while left := [p.command for p in processes() if run.id in p.command or str(platform.home) in p.command]:
        assert time.monotonic() < deadline, f"a process outlived the platform: {left}"
        time.sleep(0.05)

"""What three machines with a worker are worth to a queue of runs, beside one.

The model answers after a set latency and each run asks it for little at once, so runs wait for the model and not for
processors; the machines are data directories of their own on this one. They wait for runs, then all runs are submitted,
and the time counts from the first submit to the last run's end. One and three take turns. The aim: three end the same
queue in at most two fifths of the time.

    python benchmarks/worker_hosts.py [--hosts 3] [--queued 3] [--samples 450] [--latency-ms 200] [--turns 1]
        [--untimed-turns 1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import Job, Latencies, dataset_bytes, has_ended, until, upload
from parts.platforms import Platform, environment_of, make_repository, platform

from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.worker_access import WorkerAccess

POOL = "bench"
AIM_RATIO = 2.5
WARM_UP_ROWS = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=3, help="beside one")
    parser.add_argument("--queued", type=int, default=3, help="runs that wait for a worker")
    parser.add_argument("--samples", type=int, default=450, help="of each run")
    parser.add_argument("--in-flight", type=int, default=1, help="rollouts at once of a run")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the model")
    parser.add_argument("--turns", type=int, default=1, help="of each number of machines")
    parser.add_argument("--untimed-turns", type=int, default=1, help="before them, with a first run each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = asyncio.run(measure(Path(directory), options))
    paced_s = options.queued * options.samples / options.in_flight * options.latency_ms / 1000
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, medians of {options.turns}")
    for hosts, seconds in figures["seconds"].items():
        print(
            f"{hosts} machines: {seconds:.1f} s for {options.queued} runs (the model alone: {paced_s / hosts:.1f} s)"
        )
    print(f"{options.hosts} machines are {figures['ratio']}x one (aim: {AIM_RATIO}x)")
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Have one machine and several work off the same queue in turns."""
    taken: dict[int, list[float]] = {1: [], options.hosts: []}
    home, repository = directory / "home", make_repository(directory / "repository")
    with (
        stand_in_model(options.latency_ms) as model_url,
        platform(home, repository, 1, runs=1, samples=0) as running,
    ):
        token = directory / "worker.token"
        token.write_text(worker_token(home))
        token.chmod(0o600)
        job = Job(model_url, options.in_flight)
        async with aiohttp.ClientSession() as session:
            content = dataset_bytes(max(options.samples, WARM_UP_ROWS))
            await upload(Latencies(), session, running.url, running.headers(), "bench", content)
            for turn in range(-options.untimed_turns, options.turns):
                for count, seconds in taken.items():
                    with hosts(directory, running, token, count):
                        # A machine's first run shows that it waits for others, and is not timed.
                        await worked_off(session, running, job, count, WARM_UP_ROWS)
                        if turn >= 0:
                            seconds.append(
                                await worked_off(session, running, job, options.queued, options.samples)
                            )
    medians = {count: round(statistics.median(seconds), 2) for count, seconds in taken.items()}
    return {"seconds": medians, "all": taken, "ratio": round(medians[1] / medians[options.hosts], 2)}


def worker_token(home: Path) -> str:
    """Make the token that the machines of the pool have."""
    db, clock = Database(PlatformConfig(home=home).database_url), SystemClock()
    _, token = WorkerAccess(db, clock, LogStore(db, clock)).create_token(POOL)
    db.dispose()
    return token


@contextlib.contextmanager
def hosts(directory: Path, running: Platform, token: Path, count: int) -> Iterator[None]:
    """Start so many machines' workers, each with a data directory and for one run at a time; end them afterwards."""
    command = [sys.executable, "-m", "osmosis_ai", "platform", "worker", "--pool", POOL, "--slots", "1"]
    processes = [
        subprocess.Popen(
            [*command, "--url", running.url, "--token-file", str(token)],
            env={**environment_of(None), "OSMOSIS_HOME": str(directory / f"host-{number}")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def worked_off(
    session: aiohttp.ClientSession, running: Platform, job: Job, queued: int, rows: int
) -> float:
    """Submit runs; return the seconds until all of them have ended."""
    begun = time.perf_counter()
    names = [await job.submit(session, running, rows, pool=POOL) for _ in range(queued)]
    for name in names:
        await until(session, running, name, has_ended, every_s=0.1)
    return round(time.perf_counter() - begun, 2)


if __name__ == "__main__":
    main()

"""How much faster several machines execute one evaluation than one machine does.

`[advanced.execution] workers = N` splits an evaluation's rows among N workers. The machines are `osmosis platform worker`
processes on this one. Each worker has few attempts in flight and the model has a fixed latency, so attempts in flight limit
the run, not the CPU. One worker and several take turns; the time counts from submit to the end of the run.

    python benchmarks/worker_hosts.py [--workers 3] [--attempts 600] [--in-flight 2] [--latency-ms 200] [--turns 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import Job, Latencies, dataset_bytes, get_run, has_ended, until, upload
from parts.platforms import POOL, Platform, machines, make_repository, platform

TARGET_RATIO = 2.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=3, help="compared with one worker")
    parser.add_argument("--attempts", type=int, default=600, help="of the evaluation")
    parser.add_argument("--in-flight", type=int, default=2, help="attempts of a worker at a time")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="latency of the model")
    parser.add_argument("--turns", type=int, default=3, help="runs with each number of workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = asyncio.run(measure(Path(directory), options))
    print(f"load {figures['load']} before, on {os.cpu_count()} cores; medians of {options.turns}")
    for workers, seconds in figures["seconds"].items():
        ideal_s = options.attempts / options.in_flight * options.latency_ms / 1000 / workers
        print(f"{workers} workers: {seconds:.1f} s (the model alone: {ideal_s:.1f} s)")
    print(f"{options.workers} workers are {figures['ratio']}x as fast as one (target: {TARGET_RATIO}x)")
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    taken: dict[int, list[float]] = {1: [], options.workers: []}
    load = round(os.getloadavg()[0], 1)
    repository = make_repository(directory / "repository")
    with (
        stand_in_model(options.latency_ms) as model_url,
        platform(directory / "home", repository, 1, runs=1, samples=0) as running,
        machines(running, options.workers),
    ):
        job = Job(model_url, options.in_flight)
        async with aiohttp.ClientSession() as session:
            content = dataset_bytes(max(options.attempts, 4 * options.workers))
            await upload(Latencies(), session, running.url, running.headers(), "bench", content)
            await run_s(session, running, job, options.workers, 4 * options.workers)  # builds the environment
            for _ in range(options.turns):
                for workers, seconds in taken.items():
                    seconds.append(await run_s(session, running, job, workers, options.attempts))
    medians = {workers: round(statistics.median(seconds), 2) for workers, seconds in taken.items()}
    ratio = round(medians[1] / medians[options.workers], 2)
    return {"load": load, "seconds": medians, "all": taken, "ratio": ratio, "target": TARGET_RATIO}


async def run_s(
    session: aiohttp.ClientSession, running: Platform, job: Job, workers: int, attempts: int
) -> float:
    """Execute a run; return the seconds from its submit to its end."""
    began = time.perf_counter()
    name = await job.submit(session, running, attempts, pool=POOL, workers=workers)
    await until(session, running, name, has_ended, every_s=0.1)
    seconds = round(time.perf_counter() - began, 2)
    results = (await get_run(session, running, name))["results"]
    if results["total_runs"] != attempts or results["failed"]:
        raise SystemExit(f"attempts are missing or failed: {results}")
    return seconds


if __name__ == "__main__":
    main()

"""How much later a run's first row is there when a Ray cluster executes it than when the platform's machine does.

A real head of this machine's own, which asks for its token, and two platforms that take turns: one with the local executor,
one with `OSMOSIS_EXECUTOR=ray`. The time counts from sending a submit to seeing the first finished row; each platform's
first run, which warms its environments, does not count, and a run begins when nothing is left of the one before it.
The model answers at once. Where Ray is not installed this says so, and nothing is measured.

    python benchmarks/ray_start.py [--turns 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import (
    WAIT_LIMIT_S,
    Job,
    Latencies,
    dataset_bytes,
    has_ended,
    has_finished_row,
    until,
    upload,
)
from parts.platforms import Platform, make_repository, platform

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.platform.runs.execute.real_ray import RAY, RealRay

AIM_S = 5.0
ROWS = 4
SLOTS = 4
HEAD_LIMIT_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="timed runs of each platform")
    options = parser.parse_args()
    if RAY is None:
        print("Ray is not installed (`pip install '.[ray]'`), so nothing is measured.")
        return
    # A Unix socket's path is short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        own = {"OSMOSIS_HOME": str(directory / "node"), "OSMOSIS_CACHE_DIR": str(directory / "node-cache")}
        cluster = RealRay(directory, own, cpus=SLOTS)
        try:
            require_answers(cluster)
            figures = asyncio.run(measure(directory, cluster, options.turns))
        finally:
            cluster.close()
    median = figures["median_s"]
    print(f"load {figures['load']} before, on {os.cpu_count()} cores; medians of {options.turns}")
    print(
        f"submit to first finished row, warm: {median['local']:.2f} s by the local executor, {median['ray']:.2f} s by Ray: "
        f"{figures['more_s']:.2f} s more (aim: at most {AIM_S:g} s more)"
    )
    print(json.dumps(figures))


def require_answers(cluster: RealRay) -> None:
    deadline = time.monotonic() + HEAD_LIMIT_S
    while not cluster.answers():
        if time.monotonic() > deadline:
            log = (cluster.directory / "ray.log").read_text(errors="replace")
            raise SystemExit(f"the head of the cluster did not start:\n{log[-2000:]}")
        time.sleep(0.2)


async def measure(directory: Path, cluster: RealRay, turns: int) -> dict[str, Any]:
    """Have both platforms make their runs in turns; return the medians and their difference."""
    by_ray = {
        "OSMOSIS_EXECUTOR": "ray",
        "OSMOSIS_RAY_ADDRESS": cluster.cluster.address,
        "OSMOSIS_RAY_TOKEN_FILE": str(cluster.token_file),
    }
    repository = make_repository(directory / "repository")
    load = round(os.getloadavg()[0], 1)
    taken: dict[str, list[float]] = {"local": [], "ray": []}
    with (
        stand_in_model(0.0) as model_url,
        platform(directory / "local", repository, 1, runs=1, samples=0, slots=SLOTS) as local,
        platform(directory / "ray", repository, 1, runs=1, samples=0, slots=SLOTS, **by_ray) as ray,
    ):
        job = Job(model_url, ROWS)
        async with aiohttp.ClientSession() as session:
            for where in (local, ray):
                await upload(Latencies(), session, where.url, where.headers(), "bench", dataset_bytes(ROWS))
            for turn in range(turns + 1):
                for name, where in (("local", local), ("ray", ray)):
                    seconds = await first_row_s(session, where, job)
                    await nothing_left(cluster)
                    if turn:
                        taken[name].append(seconds)
    medians = {name: round(statistics.median(seconds), 2) for name, seconds in taken.items()}
    more_s = round(medians["ray"] - medians["local"], 2)
    return {"load": load, "median_s": medians, "more_s": more_s, "aim_more_s": AIM_S, "all_s": taken}


async def first_row_s(session: aiohttp.ClientSession, where: Platform, job: Job) -> float:
    """Make a run; return the seconds from its submit to its first finished row."""
    begun = time.perf_counter()
    name = await job.submit(session, where, ROWS)
    await until(session, where, name, has_finished_row, every_s=0.02)
    seconds = time.perf_counter() - begun
    await until(session, where, name, has_ended, every_s=0.05)
    return round(seconds, 2)


async def nothing_left(cluster: RealRay) -> None:
    """Wait until the cluster's jobs have ended, too."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while any(job.phase != "ended" for job in cluster.jobs.list()):
        if time.monotonic() > deadline:
            raise SystemExit(f"a job of the cluster did not end in {WAIT_LIMIT_S:.0f} s")
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()

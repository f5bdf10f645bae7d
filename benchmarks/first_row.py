"""The time from submitting a run to its first finished row, on a warm environment.

The run is executed by the platform's own machine (`local`), by a machine with `osmosis platform worker` (`worker`), or by a
Ray cluster on this machine (`ray`). They take turns. The first run of each, which builds the environment, does not count.
The model answers at once. Without Ray installed, `ray` is skipped.

    python benchmarks/first_row.py [--turns 10] [--where local worker ray]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import Job, Latencies, dataset_bytes, has_ended, has_finished_row, until, upload
from parts.platforms import POOL, Platform, machines, make_repository, platform

sys.path.insert(0, str(Path(__file__).parents[1]))

TARGETS_S = {"local": 3.0, "worker": 5.0, "ray": 8.0}
ROWS = 4
SLOTS = 4
HEAD_LIMIT_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=10, help="measured runs in each place")
    parser.add_argument("--where", nargs="+", choices=list(TARGETS_S), default=["local", "worker"])
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    # Ray creates Unix sockets below its directory, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="fr-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        seconds = asyncio.run(measure(Path(directory), options))
    print(f"load {load} before, on {os.cpu_count()} cores; medians of {options.turns}")
    figures: dict[str, Any] = {"load": load, "all_s": seconds, "median_s": {}}
    for place, taken in seconds.items():
        figures["median_s"][place] = median = round(statistics.median(taken), 2)
        print(
            f"{place}: {median:.2f} s from submit to first row, {min(taken):.2f} to {max(taken):.2f} s "
            f"(target: {TARGETS_S[place]:g} s)"
        )
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    repository = make_repository(directory / "repository")
    with contextlib.ExitStack() as stack:
        job = Job(stack.enter_context(stand_in_model(0.0)), ROWS)
        places: dict[str, tuple[Platform, dict[str, str]]] = {}
        if {"local", "worker"} & {*options.where}:
            own = platform(directory / "home", repository, 1, runs=1, samples=0, slots=SLOTS)
            running = stack.enter_context(own)
            if "worker" in options.where:
                stack.enter_context(machines(running, 1))
            pools = {"local": {}, "worker": {"pool": POOL}}
            places = {place: (running, pools[place]) for place in pools if place in options.where}
        if "ray" in options.where:
            if (settings := stack.enter_context(ray_cluster(directory))) is None:
                print("Ray is not installed (`pip install '.[ray]'`), so it is not measured.")
            else:
                by_ray = platform(
                    directory / "ray", repository, 1, runs=1, samples=0, slots=SLOTS, **settings
                )
                places["ray"] = stack.enter_context(by_ray), {}
        async with aiohttp.ClientSession() as session:
            for running in {id(where): where for where, _ in places.values()}.values():
                content = dataset_bytes(ROWS)
                await upload(Latencies(), session, running.url, running.headers(), "bench", content)
            for turn in range(options.turns + 1):
                for place, (running, execution) in places.items():
                    seconds = await first_row_s(session, running, job, execution)
                    if turn:
                        taken.setdefault(place, []).append(seconds)
    return taken


async def first_row_s(
    session: aiohttp.ClientSession, running: Platform, job: Job, execution: dict[str, str]
) -> float:
    """Execute a run; return the seconds from its submit to its first finished row."""
    began = time.perf_counter()
    name = await job.submit(session, running, ROWS, **execution)
    await until(session, running, name, has_finished_row, every_s=0.02)
    seconds = time.perf_counter() - began
    await until(session, running, name, has_ended, every_s=0.05)
    await asyncio.sleep(
        random.uniform(1.0, 2.0)
    )  # the worker process ends, and idle hosts poll at any moment
    return round(seconds, 2)


@contextlib.contextmanager
def ray_cluster(directory: Path) -> Iterator[dict[str, str] | None]:
    """Start a Ray head on this machine; gives the settings of a platform that uses it, None without Ray."""
    from tests.platform.real_ray import RAY, RealRay

    if RAY is None:
        yield None
        return
    own = {"OSMOSIS_HOME": str(directory / "node"), "OSMOSIS_CACHE_DIR": str(directory / "cache")}
    cluster = RealRay(directory, own, cpus=SLOTS)
    try:
        deadline = time.monotonic() + HEAD_LIMIT_S
        while not cluster.answers():
            if time.monotonic() > deadline:
                raise SystemExit(f"Ray did not start; see {directory / 'ray.log'}")
            time.sleep(0.2)
        yield {
            "OSMOSIS_EXECUTOR": "ray",
            "OSMOSIS_RAY_ADDRESS": cluster.cluster.address,
            "OSMOSIS_RAY_TOKEN_FILE": str(cluster.token_file),
        }
    finally:
        cluster.close()


if __name__ == "__main__":
    main()

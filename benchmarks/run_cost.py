"""The CPU time of a platform run, from submit to rest; with `--compared-with`, also that of another checkout.

Counted are user and system time of the platform and of all processes that it starts: worker, rollout servers, sandboxes. By
default the model answers at once. The start of the platform and its first run, which builds the environment, do not count.
Two checkouts have one platform each and take turns. The figures are medians.

    python benchmarks/run_cost.py [--compared-with DIR] [--attempts 400] [--turns 5] [--latency-ms 0] [--isolation auto]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import Job, Latencies, dataset_bytes, get_run, has_ended, until, upload
from parts.platforms import Platform, make_repository, platform
from parts.processes import tree, tree_cpu_s

WAIT_S = 1200.0
REST_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--compared-with", type=Path, metavar="DIR", help="another checkout of this repository"
    )
    parser.add_argument("--attempts", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5, help="runs of each checkout")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="latency of the model")
    parser.add_argument("--in-flight", type=int, default=16, help="attempts at a time")
    parser.add_argument("--isolation", default="auto", help="value of OSMOSIS_ISOLATION")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        all_s = asyncio.run(measure(Path(directory), options))
    medians = {name: round(statistics.median(seconds), 2) for name, seconds in all_s.items()}
    figures: dict[str, Any] = {"load": load, "cpu_s": medians, "all_s": all_s}
    print(f"load {load} before, on {os.cpu_count()} cores; medians of {options.turns}")
    print(f"CPU time of a run of {options.attempts} attempts: {medians['this']:.2f} s")
    if options.compared_with:
        figures["ratio"] = round(medians["this"] / medians["other"], 3)
        print(f"{options.compared_with}: {medians['other']:.2f} s, so this is {figures['ratio']}x that")
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    checkouts: dict[str, Path | None] = {"this": None}
    if options.compared_with:
        checkouts["other"] = options.compared_with.resolve()
    taken: dict[str, list[float]] = {name: [] for name in checkouts}
    async with contextlib.AsyncExitStack() as stack:
        job = Job(stack.enter_context(stand_in_model(options.latency_ms)), options.in_flight)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        running: dict[str, Platform] = {}
        for name, checkout in checkouts.items():
            home, repository = directory / name / "home", make_repository(directory / name / "repository")
            settings = {"OSMOSIS_ISOLATION": options.isolation}
            own = platform(home, repository, 1, runs=1, samples=0, checkout=checkout, **settings)
            where = running[name] = stack.enter_context(own)
            content = dataset_bytes(options.attempts)
            await upload(Latencies(), session, where.url, where.headers(), "bench", content)
            await run_cpu_s(session, where, job, min(4, options.attempts))
        for _ in range(options.turns):
            for name, seconds in taken.items():
                seconds.append(await run_cpu_s(session, running[name], job, options.attempts))
    return taken


async def run_cpu_s(session: aiohttp.ClientSession, where: Platform, job: Job, attempts: int) -> float:
    """Execute a run; return the CPU seconds of the platform and its descendants until they are at rest."""
    idle, before = tree(where.pid), tree_cpu_s(where.pid)
    name = await job.submit(session, where, attempts)
    # Looking at processes costs the platform nothing, unlike requests.
    await _wait_until(lambda: bool(tree(where.pid) - idle), "no worker was started")
    await _wait_until(lambda: not tree(where.pid) - idle, "the worker does not end")
    await until(session, where, name, has_ended, every_s=0.5)
    await asyncio.sleep(REST_S)
    used = tree_cpu_s(where.pid) - before
    results = (await get_run(session, where, name))["results"]
    if results["total_runs"] != attempts:
        raise SystemExit(f"attempts are missing: {results}")
    return round(used, 2)


async def _wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(otherwise)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()

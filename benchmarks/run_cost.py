"""What a platform's run costs its machine, start to end; with `--beside`, compared with another checkout of this code.

Runs of one model call a sample are submitted to a platform that has nothing else to do; by default the model answers
at once. What counts is the processor time of the platform and of every process that it started: worker, rollout servers, sandboxes.
The platform's start is not in it, and the first run, which warms the environment, neither. Two checkouts have a
platform each and take turns, so that what else the machine does falls on both; shown are the medians, and their ratio.

    python benchmarks/run_cost.py [--beside DIR] [--samples 400 2000] [--turns 5] [--latency-ms 0] [--isolation auto]
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
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import Job, Latencies, dataset_bytes, get_run, upload
from parts.platforms import Platform, make_repository, platform
from parts.processes import tree, tree_cpu_s

WAIT_S = 1200.0
SETTLE_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, help="a directory with another checkout of this code")
    parser.add_argument("--samples", type=int, nargs="+", default=[400, 2_000])
    parser.add_argument("--turns", type=int, default=5, help="runs of each size and checkout")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of the model")
    parser.add_argument("--in-flight", type=int, default=16, help="rollouts at once of a run")
    parser.add_argument("--isolation", default="auto", help="value of OSMOSIS_ISOLATION")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = asyncio.run(measure(Path(directory), options))
    print(f"load {figures['load']} before, on {os.cpu_count()} cores; medians of {options.turns}")
    for samples, row in figures["samples"].items():
        said = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in row["cpu_s"].items())
        times = f"; {row['ratio']}x the other's" if "ratio" in row else ""
        print(f"processor time of a run of {samples} samples: {said}{times}")
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Have every checkout's platform make its runs in turns; return the medians."""
    checkouts = {"here": None} | ({"beside": options.beside.resolve()} if options.beside else {})
    taken: dict[int, dict[str, list[float]]] = {
        size: {name: [] for name in checkouts} for size in options.samples
    }
    load = round(os.getloadavg()[0], 1)
    async with contextlib.AsyncExitStack() as stack:
        job = Job(stack.enter_context(stand_in_model(options.latency_ms)), options.in_flight)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        running: dict[str, Platform] = {}
        for name, checkout in checkouts.items():
            place = directory / name
            one = platform(
                place / "home",
                make_repository(place / "repository"),
                1,
                runs=1,
                samples=0,
                checkout=checkout,
                OSMOSIS_ISOLATION=options.isolation,
            )
            running[name] = stack.enter_context(one)
            content = dataset_bytes(max(4, *options.samples))
            await upload(Latencies(), session, running[name].url, running[name].headers(), "bench", content)
            await cost_of_run(session, running[name], job, 4)
        for _ in range(options.turns):
            for size, by_checkout in taken.items():
                for name, seconds in by_checkout.items():
                    seconds.append(await cost_of_run(session, running[name], job, size))
    return {"load": load, "samples": {size: summary(by_checkout) for size, by_checkout in taken.items()}}


async def cost_of_run(session: aiohttp.ClientSession, where: Platform, job: Job, rows: int) -> float:
    """Make a run; return the seconds of processor time that the platform and all below it used from submit to rest."""
    idle, before = tree(where.pid), tree_cpu_s(where.pid)
    name = await job.submit(session, where, rows)
    deadline = time.monotonic() + WAIT_S
    while not tree(where.pid) - idle:
        require_time(deadline, "no worker was started")
        await asyncio.sleep(0.02)
    while tree(where.pid) - idle:  # who looks at processes costs the platform nothing
        require_time(deadline, "the worker does not end")
        await asyncio.sleep(0.1)
    await asyncio.sleep(SETTLE_S)  # what follows the worker's end is a part of the run
    used = tree_cpu_s(where.pid) - before
    detail = await get_run(session, where, name)
    if (detail["eval_run"]["status"], detail["results"]["total_runs"]) != ("finished", rows):
        raise SystemExit(f"the run did not finish: {detail['eval_run']}, {detail['results']}")
    return used


def require_time(deadline: float, otherwise: str) -> None:
    if time.monotonic() > deadline:
        raise SystemExit(otherwise)


def summary(by_checkout: dict[str, list[float]]) -> dict[str, Any]:
    """Return the medians of one size, and how much dearer a run is here than beside."""
    medians = {name: round(statistics.median(seconds), 2) for name, seconds in by_checkout.items()}
    told: dict[str, Any] = {"cpu_s": medians, "all": by_checkout}
    if "beside" in medians:
        told["ratio"] = round(medians["here"] / medians["beside"], 3)
    return told


if __name__ == "__main__":
    main()

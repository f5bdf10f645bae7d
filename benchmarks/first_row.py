"""Time from submitting a run to its first finished row, with a built environment and a model that answers at once.

Runs are executed by the platform's own host (`local`), by `osmosis platform worker` (`worker`, target 5 s), or by a Ray
cluster on this machine (`ray`, target 8 s), in turns. The first run of each builds the environment and does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import harness as bench

sys.path.insert(0, str(bench.REPOSITORY))

TARGETS_S = {"local": 3.0, "worker": 5.0, "ray": 8.0}
ROWS = SLOTS = 4


async def measure(directory: Path, places: list[str], turns: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {place: [] for place in places}
    repository = bench.make_workspace(directory / "repository", ROWS)
    slots = {"OSMOSIS_EXECUTOR_SLOTS": str(SLOTS)}
    async with contextlib.AsyncExitStack() as stack:
        model = stack.enter_context(bench.stand_in_model(0.0))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clients: dict[str, bench.Client] = {}
        if {"local", "worker"} & {*places}:
            own = stack.enter_context(bench.platform(directory / "home", repository, **slots))
            clients = dict.fromkeys({"local", "worker"} & {*places}, bench.Client(session, own))
            if "worker" in places:
                stack.enter_context(bench.worker_machine(own))
        if "ray" in places:
            settings = stack.enter_context(ray_cluster(directory))
            by_ray = stack.enter_context(bench.platform(directory / "ray", repository, **slots, **settings))
            clients["ray"] = bench.Client(session, by_ray)
        for client in {id(each): each for each in clients.values()}.values():
            await client.upload("bench", bench.dataset_bytes(ROWS), client.platform.headers())
        for turn in range(turns + 1):
            for place, client in clients.items():
                began = time.perf_counter()
                execution = {"pool": bench.POOL} if place == "worker" else None
                name = await client.submit(model, ROWS, ROWS, execution)
                await client.until(name, bench.has_rows, every_s=0.02)
                seconds = time.perf_counter() - began
                await client.until(name, bench.has_ended, every_s=0.05)
                # The worker process ends, and idle hosts poll at any moment.
                await asyncio.sleep(random.uniform(1.0, 2.0))
                if turn:
                    taken[place].append(seconds)
    return taken


@contextlib.contextmanager
def ray_cluster(directory: Path) -> Iterator[dict[str, str]]:
    """Start a Ray head on this machine; give the settings of a platform that uses it."""
    from tests.platform.real_ray import RAY, RealRay

    if RAY is None:
        raise SystemExit("error: Ray is not installed (pip install '.[ray]').")
    own = {"OSMOSIS_HOME": str(directory / "node"), "OSMOSIS_CACHE_DIR": str(directory / "cache")}
    cluster = RealRay(directory, own, cpus=SLOTS)
    try:
        deadline = time.monotonic() + 180
        while not cluster.answers():
            if time.monotonic() > deadline:
                raise SystemExit(f"Ray did not start:\n{(directory / 'ray.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield {
            "OSMOSIS_EXECUTOR": "ray",
            "OSMOSIS_RAY_ADDRESS": cluster.cluster.address,
            "OSMOSIS_RAY_TOKEN_FILE": str(cluster.token_file),
        }
    finally:
        cluster.close()


def main() -> None:
    given = bench.options(__doc__, turns=10, where=["local", "worker"])
    with bench.scratch() as directory:
        taken = asyncio.run(measure(directory, given.where, given.turns))
    rows = []
    for place, times in taken.items():
        row = {"place": place, "median s": bench.median(times), "target s": TARGETS_S[place]}
        rows.append(row | {"least s": round(min(times), 2), "most s": round(max(times), 2)})
    bench.report(given, rows)


if __name__ == "__main__":
    main()

"""How fast the platform answers with a large database, and under load.

Two measurements, each against a freshly started `osmosis platform start`:

- lists: a page of runs of a database with many runs and samples, compared with a database that has only that page
  and with an empty one. One client asks them in turn.
- load: many clients that list, poll and upload, each with its own token and a pause after every request,
  while some runs execute, paced by a stand-in model with a set latency.

    python benchmarks/platform_load.py [--quick] [--clients 200] [--seconds 60] [--runs 100000] [--samples 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import (
    Job,
    Latencies,
    dataset_bytes,
    get_run,
    guarded,
    has_ended,
    has_finished_row,
    must,
    percentile,
    request,
    until,
    upload,
)
from parts.platforms import DATASETS, EMPTY_IDENTITY, EVAL_RUNS, IDENTITY, Platform, make_repository, platform
from parts.processes import cpu_s

PAGE = 50
WARM_UP = 5
LISTED = 500
BENCH_ROWS = 100_000
TARGETS = {"list_p95_ms": 150.0, "list_ratio": 2.0, "cpu_ms_per_list": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--pause-s", type=float, default=1.0, help="mean pause of a client after a request")
    parser.add_argument("--seconds", type=float, help="length of the load (default: 60)")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the stand-in model")
    parser.add_argument("--in-flight", type=int, default=4, help="attempts of a run at a time")
    parser.add_argument("--runs", type=int, help="in the large database (default: 100,000)")
    parser.add_argument("--samples", type=int, help="in the large database (default: 1,000,000)")
    parser.add_argument("--turns", type=int, help="requests of each list (default: 300)")
    parser.add_argument("--executing", type=int, default=4, help="active runs under load (default: 4)")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    options.seconds = options.seconds or 60 / share
    options.turns = options.turns or (50 if options.quick else 300)
    options.runs = options.runs or 100_000 // share
    options.samples = options.samples or 1_000_000 // share
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = measure(Path(directory), options)
    print_tables(figures, options)
    print(json.dumps(figures))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take all measurements."""
    repository = make_repository(directory / "repository")
    with (
        stand_in_model(options.latency_ms) as model_url,
        platform(
            directory / "small", repository, options.clients, runs=PAGE, samples=0, slots=options.executing
        ) as small,
    ):
        with platform(
            directory / "large", repository, 1, runs=options.runs, samples=options.samples
        ) as large:
            lists = asyncio.run(measure_lists(small, large, options))
        job = Job(model_url, options.in_flight)
        load = asyncio.run(measure_load(small, job, options))
    return {
        "cpus": os.cpu_count(),
        "lists": lists,
        "load": load,
    }


# -- lists of a large database -----------------------------------------------------------------------


async def measure_lists(small: Platform, large: Platform, options: argparse.Namespace) -> dict[str, Any]:
    """Ask for the same page of different databases in turn."""
    asked = {
        "empty": (small, EMPTY_IDENTITY, 0),
        "one_page": (small, IDENTITY, 0),
        "large": (large, IDENTITY, 0),
        "large_last_page": (large, IDENTITY, options.runs - PAGE),
    }
    seen = Latencies()
    async with aiohttp.ClientSession() as session:
        for turn in range(WARM_UP + options.turns):
            for name, (where, identity, offset) in asked.items():
                page = await request(
                    session,
                    Latencies() if turn < WARM_UP else seen,
                    name,
                    where.url + EVAL_RUNS,
                    headers=where.headers(identity),
                    params={"limit": PAGE, "offset": offset},
                )
                assert len(page["eval_runs"]) == (0 if name == "empty" else PAGE), name
        cpu_before = cpu_s(large.pid)
        for _ in range(LISTED):
            await request(
                session,
                Latencies(),
                "list",
                large.url + EVAL_RUNS,
                headers=large.headers(IDENTITY),
                params={"limit": PAGE, "offset": 0},
            )
        cpu_ms = (cpu_s(large.pid) - cpu_before) * 1000 / LISTED
    medians = {name: percentile(values, 50) for name, values in seen.by_kind.items()}
    return {
        "median_ms": medians,
        "cpu_ms_per_list": round(cpu_ms, 2),
        "runs": options.runs,
        "samples": options.samples,
        "ratio_to_one_page": round(medians["large"] / medians["one_page"], 2),
        "ratio_to_empty": round(medians["large"] / medians["empty"], 2),
    }


# -- many clients during runs -----------------------------------------------------------------


async def measure_load(platform: Platform, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Let all clients work for the set time during some runs, then stop the runs."""
    seen = Latencies()
    async with aiohttp.ClientSession() as session:
        content = dataset_bytes(BENCH_ROWS)
        await upload(Latencies(), session, platform.url, platform.headers(), "bench", content)
        runs = [await job.submit(session, platform, rows=BENCH_ROWS) for _ in range(options.executing)]
        for name in runs:
            await until(session, platform, name, has_finished_row, every_s=0.1)
        before = await finished_rows(session, platform, runs)
        cpu_before, others = cpu_s(platform.pid), os.getloadavg()[0]
        async with clients(platform, runs, seen, options):
            await asyncio.sleep(options.seconds)
            used_s = cpu_s(platform.pid) - cpu_before
        details = [await get_run(session, platform, name) for name in runs]
        for name in runs:
            await must(session, "POST", platform.url + f"{EVAL_RUNS}/{name}/stop", platform.headers())
        for name in runs:
            await until(session, platform, name, has_ended, every_s=0.1)
    seen.errors += [
        f"run {detail['eval_run']['name']}: {detail['eval_run']['status']}, {detail['results']}"
        for detail in details
        if detail["eval_run"]["status"] != "running" or detail["results"].get("failed")
    ]
    requests = sum(map(len, seen.by_kind.values()))
    return {
        "clients": options.clients,
        "pause_s": options.pause_s,
        "requests_per_s": round(requests / options.seconds, 1),
        "rollouts_per_s": round((sum(map(rows_of, details)) - before) / options.seconds, 1),
        "cpu_ms_per_request": round(used_s / requests * 1000, 2),
        "load_average_before": round(others, 1),
        "requests": requests,
        "errors": len(seen.errors),
        "first_errors": seen.errors[:5],
        "list_p95_ms": percentile([*seen.by_kind["list runs"], *seen.by_kind["list datasets"]], 95),
        "ms": seen.table(),
    }


@contextlib.asynccontextmanager
async def clients(
    platform: Platform, runs: list[str], seen: Latencies, options: argparse.Namespace
) -> AsyncIterator[None]:
    """Run all clients: half list, four in ten follow runs, one in ten uploads datasets."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:

        async def live(number: int) -> None:
            rng = random.Random(number)
            headers = platform.headers(client=number)
            await asyncio.sleep(rng.uniform(0, options.pause_s))

            async def pause() -> None:
                await asyncio.sleep(rng.uniform(0.5, 1.5) * options.pause_s)

            async def get(kind: str, path: str, **params: int) -> None:
                await request(session, seen, kind, platform.url + path, headers=headers, params=params)
                await pause()

            turn = 0
            while True:
                turn += 1
                if number % 10 < 5:
                    await get("list runs", EVAL_RUNS, limit=PAGE, offset=0)
                    await get("list datasets", DATASETS, limit=PAGE, offset=0)
                elif number % 10 < 9:
                    name = rng.choice(runs)
                    await get("poll a run", f"{EVAL_RUNS}/{name}")
                    await get("poll metrics", f"{EVAL_RUNS}/{name}/metrics")
                    await get("poll logs", f"{EVAL_RUNS}/{name}/logs", limit=PAGE)
                else:
                    content = dataset_bytes(rng.randrange(100, 2000))
                    await upload(seen, session, platform.url, headers, f"d-{number}-{turn}", content, pause)

        living = [asyncio.create_task(guarded(live(number), seen)) for number in range(options.clients)]
        try:
            yield
        finally:
            for task in living:
                task.cancel()
            await asyncio.gather(*living, return_exceptions=True)


async def finished_rows(session: aiohttp.ClientSession, platform: Platform, runs: list[str]) -> int:
    return sum([rows_of(await get_run(session, platform, name)) for name in runs])


def rows_of(detail: dict[str, Any]) -> int:
    return int(detail["results"].get("total_runs") or 0)


# -- figures -----------------------------------------------------------------------------------------


def print_tables(figures: dict[str, Any], options: argparse.Namespace) -> None:
    lists, load = figures["lists"], figures["load"]
    print(f"{figures['cpus']} CPUs; a list of {PAGE} runs, one client, median ms:")
    for name, median in lists["median_ms"].items():
        print(f"  {name.replace('_', ' '):<18}{median:>8.1f}")
    print(
        f"  {lists['runs']:,} runs and {lists['samples']:,} samples against one page: "
        f"{lists['ratio_to_one_page']}x (target <= {TARGETS['list_ratio']:g}x); against empty: {lists['ratio_to_empty']}x"
    )
    print(
        f"{load['clients']} clients, {load['pause_s']:g} s pause, {options.executing} runs x {options.in_flight} rollouts "
        f"on a {options.latency_ms:g} ms model: {load['requests_per_s']} requests/s, "
        f"{load['rollouts_per_s']} rollouts/s, {load['errors']} errors in {load['requests']} requests\n"
        f"  {load['cpu_ms_per_request']} ms of the platform's CPU time per request; load average before: "
        f"{load['load_average_before']}"
    )
    print(f"  {'ms':<18}{'count':>8}{'p50':>8}{'p95':>8}{'p99':>8}")
    for kind, row in load["ms"].items():
        print(f"  {kind:<18}{row['count']:>8}{row['p50']:>8}{row['p95']:>8}{row['p99']:>8}")
    print(f"  {lists['cpu_ms_per_list']} ms of CPU for a list (target <= {TARGETS['cpu_ms_per_list']:g} ms)")
    print(f"  lists: p95 {load['list_p95_ms']} ms (target < {TARGETS['list_p95_ms']:g} ms)")
    for error in load["first_errors"]:
        print(f"  error: {error}")


if __name__ == "__main__":
    main()

"""How the platform answers under load, and how soon it starts working; through the real processes.

Three measurements, each against a freshly started `osmosis platform start`:

- lists: a page of runs with many runs and samples in the database, against a page from a database that holds
  no more than that page, and against an empty one. One client, the three asked in turn, so that load on the
  machine hits all alike.
- first row: from sending a submit to seeing the first finished row, on a warm environment.
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
import statistics
import tempfile
import time
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
from parts.platforms import EMPTY_IDENTITY, IDENTITY, Platform, make_repository, platform

from osmosis_ai.api import routes

PAGE = 50
WARM_UP = 5
BENCH_ROWS = 100_000
AIMS = {"list_p95_ms": 150.0, "list_ratio": 2.0, "first_row_s": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--pause-s", type=float, default=1.0, help="mean pause of a client after a request")
    parser.add_argument("--seconds", type=float, help="length of the load (default: 60)")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the stand-in model")
    parser.add_argument("--in-flight", type=int, default=4, help="rollouts at once of each run")
    parser.add_argument("--runs", type=int, help="in the large database (default: 100,000)")
    parser.add_argument("--samples", type=int, help="in the large database (default: 1,000,000)")
    parser.add_argument("--turns", type=int, help="how often each list is asked for (default: 300)")
    parser.add_argument("--first-rows", type=int, help="how often a first row is waited for (default: 5)")
    parser.add_argument("--executing", type=int, default=4, help="runs at once under load (default: 4)")
    parser.add_argument("--quick", action="store_true", help="a tenth of it all, in half a minute")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    options.seconds = options.seconds or 60 / share
    options.turns = options.turns or (50 if options.quick else 300)
    options.first_rows = options.first_rows or (3 if options.quick else 5)
    options.runs = options.runs or 100_000 // share
    options.samples = options.samples or 1_000_000 // share
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = measure(Path(directory), options)
    print_tables(figures, options)
    print(json.dumps(figures))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take all measurements; everything that was started has ended afterwards."""
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
        first_rows = asyncio.run(measure_first_row(small, job, options.first_rows))
        load = asyncio.run(measure_load(small, job, options))
    return {
        "cpus": os.cpu_count(),
        "lists": lists,
        "first_row_s": {"median": statistics.median(first_rows), "all": first_rows},
        "load": load,
    }


# -- lists of a large database -----------------------------------------------------------------------


async def measure_lists(small: Platform, large: Platform, options: argparse.Namespace) -> dict[str, Any]:
    """Ask for the same page of different databases in turn; one request at a time."""
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
                    where.url + routes.EVAL_RUNS,
                    headers=where.headers(identity),
                    params={"limit": PAGE, "offset": offset},
                )
                assert len(page["eval_runs"]) == (0 if name == "empty" else PAGE), name
    medians = {name: percentile(values, 50) for name, values in seen.by_kind.items()}
    return {
        "median_ms": medians,
        "runs": options.runs,
        "samples": options.samples,
        "ratio_to_one_page": round(medians["large"] / medians["one_page"], 2),
        "ratio_to_empty": round(medians["large"] / medians["empty"], 2),
    }


# -- the first finished row --------------------------------------------------------------------------


async def measure_first_row(platform: Platform, job: Job, repeats: int) -> list[float]:
    """Return the seconds from a submit to its first finished row, a few times, on a warm environment."""
    seconds: list[float] = []
    async with aiohttp.ClientSession() as session:
        await upload(
            Latencies(), session, platform.url, platform.headers(), "bench", dataset_bytes(BENCH_ROWS)
        )
        for turn in range(repeats + 1):
            started = time.perf_counter()
            name = await job.submit(session, platform, rows=4)
            await until(session, platform, name, has_finished_row, every_s=0.02)
            if turn:  # the first one warms the environment
                seconds.append(round(time.perf_counter() - started, 2))
            await until(session, platform, name, has_ended, every_s=0.05)
    return seconds


# -- many clients while runs execute -----------------------------------------------------------------


async def measure_load(platform: Platform, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Let all clients work for the set time while some runs execute, then stop the runs."""
    seen = Latencies()
    async with aiohttp.ClientSession() as session:
        runs = [await job.submit(session, platform, rows=BENCH_ROWS) for _ in range(options.executing)]
        for name in runs:
            await until(session, platform, name, has_finished_row, every_s=0.1)
        before = await finished_rows(session, platform, runs)
        cpu_before, others = platform.cpu_s(), os.getloadavg()[0]
        async with clients(platform, runs, seen, options):
            await asyncio.sleep(options.seconds)
            cpu_s = platform.cpu_s() - cpu_before
        details = [await get_run(session, platform, name) for name in runs]
        for name in runs:
            await must(
                session, "POST", platform.url + routes.run_stop(routes.EVAL_RUNS, name), platform.headers()
            )
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
        "cpu_ms_per_request": round(cpu_s / requests * 1000, 2),
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
                    await get("list runs", routes.EVAL_RUNS, limit=PAGE, offset=0)
                    await get("list datasets", routes.DATASETS, limit=PAGE, offset=0)
                elif number % 10 < 9:
                    name = rng.choice(runs)
                    await get("poll a run", routes.run(routes.EVAL_RUNS, name))
                    await get("poll metrics", routes.run_metrics(routes.EVAL_RUNS, name))
                    await get("poll logs", routes.run_logs(routes.EVAL_RUNS, name), limit=PAGE)
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
    lists, load, first_row = figures["lists"], figures["load"], figures["first_row_s"]
    print(f"{figures['cpus']} CPUs; a list of {PAGE} runs, one client, median ms:")
    for name, median in lists["median_ms"].items():
        print(f"  {name.replace('_', ' '):<18}{median:>8.1f}")
    print(
        f"  {lists['runs']:,} runs and {lists['samples']:,} samples against one page: "
        f"{lists['ratio_to_one_page']}x (aim <= {AIMS['list_ratio']:g}x); against empty: {lists['ratio_to_empty']}x"
    )
    print(
        f"submit to first finished row, warm: median {first_row['median']:.2f} s "
        f"(aim < {AIMS['first_row_s']:g} s), all {first_row['all']}"
    )
    print(
        f"{load['clients']} clients, {load['pause_s']:g} s pause, {options.executing} runs x {options.in_flight} rollouts "
        f"on a {options.latency_ms:g} ms model: {load['requests_per_s']} requests/s, "
        f"{load['rollouts_per_s']} rollouts/s, {load['errors']} errors in {load['requests']} requests\n"
        f"  {load['cpu_ms_per_request']} ms of the platform's processor time a request; load average before: "
        f"{load['load_average_before']}"
    )
    print(f"  {'ms':<18}{'count':>8}{'p50':>8}{'p95':>8}{'p99':>8}")
    for kind, row in load["ms"].items():
        print(f"  {kind:<18}{row['count']:>8}{row['p50']:>8}{row['p95']:>8}{row['p99']:>8}")
    print(f"  lists: p95 {load['list_p95_ms']} ms (aim < {AIMS['list_p95_ms']:g} ms)")
    for error in load["first_errors"]:
        print(f"  error: {error}")


if __name__ == "__main__":
    main()

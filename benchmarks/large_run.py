"""How a platform on SQLite copes with a large run: the times of its lists during the run, and the size of its database.

A fake worker reports attempts with conversations at a constant rate, while clients ask for the list of runs, the run, and
their pages. When the run has ended, the platform has packed the conversations into files. The size of its database is
compared with that after the same run with minimal conversations; both are measured after the next maintenance.

    python benchmarks/large_run.py [--attempts 20000] [--kilobytes 40] [--attempts-per-s 100] [--clients 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import aiohttp
from parts.clients import (
    Job,
    Latencies,
    dataset_bytes,
    get_run,
    guarded,
    has_ended,
    percentile,
    request,
    upload,
)
from parts.platforms import (
    EVAL_RUNS,
    IDENTITY,
    POOL,
    Platform,
    make_repository,
    platform,
    started,
    worker_token,
)
from parts.processes import cpu_s
from parts.workers import FakeWorker, conversation_of
from platform_load import PAGE
from viewer_beside_api import look, sessions

TARGETS = {"list_p95_ms": 150.0, "database_ratio": 1.3}
MOST_EXCHANGE_BYTES = 2 << 20
"""Compressed conversations of an exchange; Base64 adds a third."""
MOST_AT_ONCE = 1000
MAINTENANCE_LIMIT_S = 300.0
PAUSE_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=20_000)
    parser.add_argument("--kilobytes", type=int, default=40, help="size of each conversation")
    parser.add_argument("--attempts-per-s", type=float, default=100.0, help="rate of the worker; 0: no limit")
    parser.add_argument(
        "--clients", type=int, default=4, help="clients that ask for lists, with pauses of 0.5 s"
    )
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        large = asyncio.run(measure(Path(directory, "large"), options, options.kilobytes))
        small = asyncio.run(measure(Path(directory, "small"), options, 0))
    ratio = round(large["database_bytes"] / small["database_bytes"], 2)
    print(f"load {load} before, on {os.cpu_count()} cores; {options.attempts:,} attempts")
    print(
        f"lists during the run: p95 {large['list_p95_ms']} ms (target: {TARGETS['list_p95_ms']:g} ms), and "
        f"{large['errors']} errors\n"
        f"an exchange takes {large['sync_ms']['p50']} ms, p95 {large['sync_ms']['p95']} ms; the platform uses "
        f"{large['cpu_ms_per_attempt']} ms of CPU time per attempt, including the clients' requests"
    )
    print(
        f"database after packing: {large['database_bytes'] / 1e6:.1f} MB (at most {large['most_bytes'] / 1e6:.1f} MB "
        f"during the run); {small['database_bytes'] / 1e6:.1f} MB with minimal conversations: {ratio}x (target: "
        f"{TARGETS['database_ratio']}x)\nthe platform needed {large['finalize_s']} s to finalize the run"
    )
    print(json.dumps({"load": load, "database_ratio": ratio, "large": large, "small": small}))


async def measure(directory: Path, options: argparse.Namespace, kilobytes: int) -> dict[str, Any]:
    """Execute the run with conversations of this size; return the figures.

    With minimal conversations, only the size of the database counts, so there are no clients and no limit of the rate.
    """
    clients, per_s = (options.clients, options.attempts_per_s) if kilobytes else (0, 0.0)
    home, seen = directory / "home", Latencies()
    repository, database = make_repository(directory / "repository"), home / "platform.db"
    with platform(home, repository, max(1, clients), runs=PAGE, samples=0) as running:
        token = worker_token(running).read_text().strip()
        cookies = sessions(home)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
            content = dataset_bytes(options.attempts)
            await upload(Latencies(), session, running.url, running.headers(), "bench", content)
            name = await Job("http://127.0.0.1:1/v1", 1).submit(session, running, options.attempts, pool=POOL)
            asking = [
                asyncio.create_task(guarded(ask(session, running, name, seen, number, cookies), seen))
                for number in range(clients)
            ]
            before, loop = cpu_s(running.pid), asyncio.get_running_loop()
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
                arguments = running.url, token, options.attempts, per_s, kilobytes
                sync_ms = await loop.run_in_executor(processes, report, *arguments)
            most_bytes, reported_at = database.stat().st_size, time.perf_counter()
            while not has_ended(detail := await get_run(session, running, name)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            finalize_s = round(time.perf_counter() - reported_at, 1)
            used_s = cpu_s(running.pid) - before
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    if detail["results"]["total_runs"] != options.attempts:
        raise SystemExit(f"attempts are missing: {detail['results']}")
    asked = [ms for values in seen.by_kind.values() for ms in values]
    return {
        "database_bytes": size_after_maintenance(running, database),
        "most_bytes": most_bytes,
        "finalize_s": finalize_s,
        "sync_ms": {f"p{q}": percentile(sync_ms, q) for q in (50, 95)},
        "cpu_ms_per_attempt": round(used_s / options.attempts * 1000, 2),
        "list_p95_ms": percentile(asked, 95) if asked else None,
        "ms": seen.table(),
        "errors": len(seen.errors),
        "first_errors": seen.errors[:5],
    }


def report(url: str, token: str, attempts: int, per_s: float, kilobytes: int) -> list[float]:
    """Execute a run as its worker; return how long the exchanges took, in milliseconds."""
    return asyncio.run(_report(url, token, attempts, per_s, kilobytes))


async def _report(url: str, token: str, attempts: int, per_s: float, kilobytes: int) -> list[float]:
    conversations = [conversation_of(1000 * kilobytes, seed) for seed in range(64 if kilobytes else 1)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        while (worker := await FakeWorker.claim(session, url, token)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        began, reported = time.perf_counter(), 0
        while reported < attempts:
            done = attempts if not per_s else int(per_s * (time.perf_counter() - began))
            size = min(done, attempts, reported + MOST_AT_ONCE) - reported
            reported += await worker.report(size, conversations, most_bytes=MOST_EXCHANGE_BYTES)
            if per_s and reported >= done:
                await asyncio.sleep(worker.next_poll_s)
        await worker.finish()
    return worker.sync_ms


async def ask(
    session: aiohttp.ClientSession,
    running: Platform,
    name: str,
    seen: Latencies,
    number: int,
    cookies: list[str],
) -> None:
    """Ask for lists over the API and for their pages, until cancelled."""
    draw, headers = random.Random(number), running.headers(IDENTITY, number)
    browser = {
        "Cookie": f"osmosis_session={cookies[number]}",
        "Accept": "text/html",
        "Accept-Encoding": "gzip",
    }
    while True:
        for kind, path in (("list of runs", EVAL_RUNS), ("run", f"{EVAL_RUNS}/{name}")):
            await request(session, seen, kind, running.url + path, headers=headers)
            await asyncio.sleep(draw.uniform(0.5, 1.5) * PAUSE_S)
        run_page = f"{running.url}/bench/evals/{name}"
        for kind, url in (
            ("page of runs", f"{running.url}/bench/evals"),
            ("page of the run", run_page),
            ("page of samples", f"{run_page}/samples"),
            ("page of samples by reward", f"{run_page}/samples?sort=reward"),
        ):
            await look(session, seen, kind, url, browser)
            await asyncio.sleep(draw.uniform(0.5, 1.5) * PAUSE_S)


def size_after_maintenance(stopped: Platform, database: Path) -> int:
    """Start a platform again, whose maintenance begins at once; return the size of its database when no page is free."""
    port = int(stopped.url.rpartition(":")[2])
    with started(stopped.home, port, **stopped.settings):
        deadline = time.monotonic() + MAINTENANCE_LIMIT_S
        while True:
            connection = sqlite3.connect(database)
            (free_pages,) = connection.execute("PRAGMA freelist_count").fetchone()
            connection.close()
            if not free_pages:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"{free_pages} pages of the database are still free")
            time.sleep(0.5)
    return database.stat().st_size


if __name__ == "__main__":
    main()

"""Latency and CPU time of a platform with a large database, and with many clients.

Lists: one page of a database with many runs, in turns with the same page of a database that has only that page, and an
empty one. Load: clients that list, poll and upload, each with its own token and a pause after every request, while runs
are executed.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import aiohttp
import harness as bench

PAGE, LISTED, WARM_UP, BENCH_ROWS = 50, 500, 5, 100_000


def main() -> None:
    given = bench.options(
        __doc__, clients=200, pause_s=1.0, seconds=60.0, latency_ms=200.0, in_flight=4, runs=100_000, samples=1_000_000,
        turns=300, executing=4,
    )  # fmt: skip
    with bench.scratch() as directory, bench.stand_in_model(given.latency_ms) as model:
        repository = bench.make_workspace(directory / "repository", 1)
        slots = {"OSMOSIS_EXECUTOR_SLOTS": str(given.executing)}
        with bench.platform(
            directory / "small", repository, users=given.clients, runs=PAGE, **slots
        ) as small:
            with bench.platform(
                directory / "large", repository, runs=given.runs, samples=given.samples
            ) as large:
                rows = asyncio.run(measure_lists(small, large, given))
            rows += asyncio.run(measure_load(small, model, given))
    bench.report(given, rows)


async def measure_lists(small: bench.Platform, large: bench.Platform, given: Any) -> list[bench.Row]:
    asked = {
        "empty": (small, bench.EMPTY_IDENTITY, 0),
        "one page": (small, bench.IDENTITY, 0),
        "large": (large, bench.IDENTITY, 0),
        "large, last page": (large, bench.IDENTITY, max(given.runs - PAGE, 0)),
    }
    ms: dict[str, list[float]] = {name: [] for name in asked}
    async with aiohttp.ClientSession() as session:
        clients = {id(each): bench.Client(session, each) for each in (small, large)}

        async def ask(name: str) -> float:
            where, identity, offset = asked[name]
            client, how = clients[id(where)], {"limit": PAGE, "offset": offset}
            page = await client.request("list", bench.EVAL_RUNS, headers=where.headers(identity), params=how)
            assert len(page["eval_runs"]) == (0 if name == "empty" else PAGE), name
            return client.ms["list"][-1]

        for turn in range(WARM_UP + given.turns):
            for name, values in ms.items():
                taken = await ask(name)
                if turn >= WARM_UP:
                    values.append(taken)
        before = bench.cpu_s(large.pid)
        for _ in range(LISTED):
            await ask("large")
        cpu_ms = (bench.cpu_s(large.pid) - before) * 1000 / LISTED
    medians = {name: bench.percentile(values, 50) for name, values in ms.items()}
    rows: list[bench.Row] = [
        {
            "list of": name,
            "median ms": round(value, 1),
            "ratio to one page": round(value / medians["one page"], 2),
        }
        for name, value in medians.items()
    ]
    return [*rows, {"CPU ms of a list": round(cpu_ms, 2), "target": 3, "target ratio": 2}]


async def measure_load(running: bench.Platform, model: str, given: Any) -> list[bench.Row]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(30)
    ) as session:
        control, load = bench.Client(session, running), bench.Client(session, running)
        await control.upload("bench", bench.dataset_bytes(BENCH_ROWS), running.headers())
        runs = [await control.submit(model, BENCH_ROWS, given.in_flight) for _ in range(given.executing)]
        for name in runs:
            await control.until(name, bench.has_rows, every_s=0.1)
        before, cpu, load_average = (
            await finished(control, runs), bench.cpu_s(running.pid), os.getloadavg()[0],
        )  # fmt: skip
        tasks = [
            asyncio.create_task(live(load, number, runs, given.pause_s)) for number in range(given.clients)
        ]
        await asyncio.sleep(given.seconds)
        used_s, after = bench.cpu_s(running.pid) - cpu, await finished(control, runs)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        load.errors += [
            f"a client ended: {end}" for end in ended if not isinstance(end, asyncio.CancelledError)
        ]
        for name in runs:
            await control.request("stop", f"{bench.EVAL_RUNS}/{name}/stop", "POST")
            await control.until(name, bench.has_ended, every_s=0.1)
    requests = sum(map(len, load.ms.values()))
    lists = load.ms["list runs"] + load.ms["list datasets"]
    rows: list[bench.Row] = [
        {"request": kind, "count": len(values)}
        | {f"p{q} ms": round(bench.percentile(values, q), 1) for q in (50, 95, 99)}
        for kind, values in sorted(load.ms.items())
    ]
    summary = {
        "requests/s": round(requests / given.seconds, 1),
        "attempts/s": round((after - before) / given.seconds, 1),
        "CPU ms a request": round(used_s / requests * 1000, 2),
        "p95 ms of lists": round(bench.percentile(lists, 95), 1), "target ms": 150,
        "load before": round(load_average, 1), "errors": len(load.errors),
    }  # fmt: skip
    for error in load.errors[:5]:
        print(f"error: {error}")
    return [*rows, summary]


async def finished(client: bench.Client, runs: list[str]) -> int:
    """Return the number of finished attempts; none may have failed."""
    details = [await client.request("poll a run", f"{bench.EVAL_RUNS}/{name}") for name in runs]
    assert not any(each["results"].get("failed") for each in details), details
    return sum(each["results"]["total_runs"] for each in details)


async def live(client: bench.Client, number: int, runs: list[str], pause_s: float) -> None:
    """Be one of the clients: half of them list, four in ten follow runs, one in ten uploads datasets."""
    draw, headers, turn = random.Random(number), client.platform.headers(client=number), 0
    await asyncio.sleep(draw.uniform(0, pause_s))

    async def get(kind: str, path: str, **params: int) -> None:
        await client.request(kind, path, headers=headers, params=params)
        await asyncio.sleep(draw.uniform(0.5, 1.5) * pause_s)

    while True:
        turn += 1
        if number % 10 < 5:
            await get("list runs", bench.EVAL_RUNS, limit=PAGE, offset=0)
            await get("list datasets", bench.DATASETS, limit=PAGE, offset=0)
        elif number % 10 < 9:
            name = draw.choice(runs)
            await get("poll a run", f"{bench.EVAL_RUNS}/{name}")
            await get("poll metrics", f"{bench.EVAL_RUNS}/{name}/metrics")
            await get("poll logs", f"{bench.EVAL_RUNS}/{name}/logs", limit=PAGE)
        else:
            await client.upload(
                f"d-{number}-{turn}", bench.dataset_bytes(draw.randrange(100, 2000)), headers, pause_s
            )


if __name__ == "__main__":
    main()

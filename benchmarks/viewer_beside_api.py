"""How much users of the viewer slow down the REST lists of a platform.

A freshly started platform has many runs. Clients list runs and datasets all the time; in every other turn, users also page,
search and compare in the viewer, with a pause after each page. Target: the p95 of the lists is at most 1.5 times as long.

    python benchmarks/viewer_beside_api.py [--people 20] [--pause-s 2] [--clients 10] [--turns 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import aiohttp
from parts.clients import Latencies, guarded, percentile, request
from parts.platforms import DATASETS, EVAL_RUNS, Platform, make_repository, platform
from platform_load import PAGE
from sqlalchemy import select

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbUser

TARGET_RATIO = 1.5
LISTS = {"list runs": EVAL_RUNS, "list datasets": DATASETS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--pause-s", type=float, default=2.0, help="mean pause of a user after a page")
    parser.add_argument("--clients", type=int, default=10, help="API clients, with a pause of 0.2 s")
    parser.add_argument("--turns", type=int, default=3, help="turns of each kind")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a turn")
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--samples", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        repository, home = make_repository(Path(directory, "repository")), Path(directory, "home")
        users = max(options.people, options.clients)
        with platform(home, repository, users, runs=options.runs, samples=options.samples) as running:
            figures = asyncio.run(measure(running, sessions(home), options))
    print(f"95th percentile of the REST lists, ms, with {options.clients} clients:")
    print(
        f"  without viewers {figures['alone_p95_ms']}, with {options.people} viewers {figures['beside_p95_ms']}"
    )
    print(f"  {figures['ratio']} times as long (target: {TARGET_RATIO}); a page {figures['pages_p95_ms']} ms")
    print(json.dumps(figures))


def sessions(home: Path) -> list[str]:
    """Sign in all users; return their session cookies."""
    db, clock = Database(PlatformConfig(home=home).database_url), SystemClock()
    with db.session() as session:
        people = list(session.scalars(select(DbUser.id).where(DbUser.email.like("user%"))))
    accounts = AccountStore(db, clock)
    made = [accounts.create_token(user, "web", name="browser")[1] for user in people]
    db.dispose()
    return made


async def measure(running: Platform, cookies: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Alternate turns without and with viewers."""
    alone, beside, pages = Latencies(), Latencies(), Latencies()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        for turn in range(-1, 2 * options.turns):
            looks = turn % 2 == 1
            seen = Latencies() if turn < 0 else beside if looks else alone
            working = [
                list_again_and_again(session, running, seen, number) for number in range(options.clients)
            ]
            if looks or turn < 0:
                people = cookies[: options.people]
                working += [look_around(session, running, pages, each, options) for each in people]
            await for_a_while(working, options.seconds, seen)
    kinds = {"alone": alone, "beside": beside, "pages": pages}
    took = {
        name: percentile([ms for values in seen.by_kind.values() for ms in values], 95)
        for name, seen in kinds.items()
    }
    return {
        **{f"{name}_p95_ms": value for name, value in took.items()},
        "ratio": round(took["beside"] / took["alone"], 2),
        "ms": {name: seen.table() for name, seen in kinds.items()},
        "errors": [*alone.errors, *beside.errors, *pages.errors][:5],
    }


async def for_a_while(working: list[Awaitable[None]], seconds: float, seen: Latencies) -> None:
    tasks = [asyncio.create_task(guarded(each, seen)) for each in working]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def list_again_and_again(
    session: aiohttp.ClientSession, running: Platform, seen: Latencies, number: int
) -> None:
    rng, headers = random.Random(number), running.headers(client=number)
    while True:
        for kind, path in LISTS.items():
            await asyncio.sleep(rng.uniform(0.1, 0.3))
            params = {"limit": PAGE, "offset": 0}
            await request(session, seen, kind, running.url + path, headers=headers, params=params)


async def look_around(
    session: aiohttp.ClientSession,
    running: Platform,
    seen: Latencies,
    cookie: str,
    options: argparse.Namespace,
) -> None:
    """Page, search and compare."""
    rng = random.Random(cookie)
    headers = {"Cookie": f"osmosis_session={cookie}", "Accept": "text/html", "Accept-Encoding": "gzip"}
    while True:
        one, other = (f"quiet-otter-{rng.randrange(options.runs)}" for _ in range(2))
        for kind, path in (
            ("runs", f"/bench/evals?sort={rng.choice(('started', 'reward', 'cost'))}"),
            ("search", f"/bench/evals?q={one}"),
            ("run", f"/bench/evals/{one}"),
            ("samples", f"/bench/evals/{one}/samples?sort=reward"),
            ("samples", f"/bench/evals/{one}/samples?outcome=passed&q=nothing"),
            ("compare", f"/bench/compare?run={one}&run={other}"),
        ):
            await asyncio.sleep(rng.uniform(0.5, 1.5) * options.pause_s)
            await look(session, seen, kind, running.url + path, headers)


async def look(
    session: aiohttp.ClientSession, seen: Latencies, kind: str, url: str, headers: dict[str, str]
) -> None:
    started = asyncio.get_running_loop().time()
    async with session.get(url, headers=headers) as reply:
        text = await reply.text()
    seen.by_kind[kind].append((asyncio.get_running_loop().time() - started) * 1000)
    if reply.status != 200:
        seen.errors.append(f"{kind}: {reply.status} {text[:200]}")


if __name__ == "__main__":
    main()

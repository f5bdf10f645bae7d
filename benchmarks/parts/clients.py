"""Clients of a platform in benchmarks: timed requests, submits, uploads, and waiting for a run."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from parts.platforms import DATASETS, EVAL_RUNS, Platform

WAIT_LIMIT_S = 600.0


@dataclass
class Latencies:
    """Milliseconds by kind of request, and errors."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    def table(self) -> dict[str, dict[str, float]]:
        return {
            kind: {"count": len(values), **{f"p{q}": percentile(values, q) for q in (50, 95, 99)}}
            for kind, values in sorted(self.by_kind.items())
        }


@dataclass(frozen=True)
class Job:
    """Submits runs of the benchmark's rollout."""

    model_url: str
    in_flight: int

    async def submit(
        self, session: aiohttp.ClientSession, platform: Platform, rows: int, **execution: Any
    ) -> str:
        """Submit a run and return its name."""
        body = {
            "experiment_config": {
                "rollout": "bench",
                "entrypoint": "main.py",
                "model_path": "openai/stand-in",
                "dataset": "bench",
            },
            "evaluation_config": {
                "limit": rows,
                "n": 1,
                "batch_size": self.in_flight,
                "agent_workflow_timeout_s": 60,
                "grader_timeout_s": 60,
            },
            "advanced_config": {"execution": execution} if execution else {},
            "env_config": {"OPENAI_BASE_URL": self.model_url},
            "secrets": {"required": ["OPENAI_API_KEY"], "provided": {"OPENAI_API_KEY": "not-checked"}},
        }
        submitted = await must(session, "POST", platform.url + EVAL_RUNS, platform.headers(), json=body)
        return str(submitted["name"])


async def guarded(client: Awaitable[None], seen: Latencies) -> None:
    """Record the error that ends a client."""
    try:
        await client
    except Exception as error:
        seen.errors.append(f"a client ended: {type(error).__name__}: {error}")


async def request(
    session: aiohttp.ClientSession, seen: Latencies, kind: str, url: str, method: str = "GET", **options: Any
) -> Any:
    """Send a request and record the time of its whole reply; any status but a success is an error."""
    started = time.perf_counter()
    try:
        async with session.request(method, url, **options) as reply:
            content = await reply.read()
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        seen.errors.append(f"{kind}: {type(error).__name__} {error}")
        raise
    seen.by_kind[kind].append((time.perf_counter() - started) * 1000)
    if not reply.ok:
        seen.errors.append(f"{kind}: {reply.status} {content[:200].decode()}")
        raise RuntimeError(f"{kind}: {reply.status} {content[:200].decode()}")
    return json.loads(content) if content else None


async def must(
    session: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], **options: Any
) -> Any:
    return await request(session, Latencies(), "control", url, method, headers=headers, **options)


async def get_run(session: aiohttp.ClientSession, platform: Platform, name: str) -> dict[str, Any]:
    detail: dict[str, Any] = await must(
        session, "GET", platform.url + f"{EVAL_RUNS}/{name}", platform.headers()
    )
    return detail


async def until(
    session: aiohttp.ClientSession,
    platform: Platform,
    name: str,
    reached: Callable[[dict[str, Any]], bool],
    *,
    every_s: float,
) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not reached(await get_run(session, platform, name)):
        if time.monotonic() > deadline:
            raise SystemExit(f"run {name} did not reach the expected state in {WAIT_LIMIT_S:.0f} s")
        await asyncio.sleep(every_s)


def has_finished_row(detail: dict[str, Any]) -> bool:
    if detail["eval_run"]["status"] == "failed":
        raise SystemExit(f"the run failed: {detail['eval_run'].get('error')}")
    return bool((detail.get("results") or {}).get("total_runs"))


def has_ended(detail: dict[str, Any]) -> bool:
    return has_finished_row(detail) and detail["eval_run"]["status"] in ("finished", "stopped")


async def upload(
    seen: Latencies,
    session: aiohttp.ClientSession,
    url: str,
    headers: dict[str, str],
    name: str,
    content: bytes,
    pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0.05),
) -> None:
    """Upload a dataset like the command line, and wait until it has been checked."""
    announced = {"file_name": name, "file_size": len(content), "extension": "jsonl"}
    created = await request(
        session, seen, "upload: announce", url + DATASETS, "POST", headers=headers, json=announced
    )
    await pause()
    instructions = created["upload"]
    await request(
        session,
        seen,
        "upload: send",
        instructions["presigned_url"],
        "PUT",
        headers=instructions["upload_headers"],
        data=content,
    )
    await pause()
    path = f"{DATASETS}/{created['id']}/complete"
    dataset = await request(
        session,
        seen,
        "upload: complete",
        url + path,
        "POST",
        headers=headers,
        json={"file_extension": "jsonl"},
    )
    while dataset["status"] == "processing":
        await pause()
        path = f"{DATASETS}/{created['id']}"
        dataset = await request(session, seen, "poll a dataset", url + path, headers=headers)
    if dataset["status"] != "uploaded":
        seen.errors.append(f"dataset {name}: {dataset['status']}")


def dataset_bytes(rows: int) -> bytes:
    return b"".join(b'{"user_prompt":"Say %d","ground_truth":"%d"}\n' % (row, row) for row in range(rows))


def percentile(values: list[float], q: int) -> float:
    """Return the q-th percentile (nearest rank), rounded to 0.1."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)], 1) if ordered else math.nan

"""How fast `osmosis/tiny` answers, many at once against one by one.

The same multiply questions (about 40 prompt tokens, 7 to 28 generated ones) are asked at several
concurrencies: of the engine inside one process, and over HTTP of a server process. Every figure is
the median of some rounds; the ratio to one-by-one in the same run hardly depends on the machine.

    python benchmarks/inference.py [--concurrency 1,8,32] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

# Before NumPy is imported: one core is what the server uses, too.
os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

import aiohttp

from osmosis_ai.inference import InferenceServer
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.openai_api import ChatCompletions
from osmosis_ai.inference.server import load_parts

MODEL = "osmosis/tiny"
# Requests of a round for each one in flight: enough that starting and ending weigh little.
REQUESTS_PER_SLOT = 16
TOOL = {
    "type": "function",
    "function": {"name": "multiply", "parameters": {"properties": {"a": {}, "b": {}}}},
}

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", default="1,8,32", help="requests in flight (default: 1,8,32)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    levels = [int(level) for level in options.concurrency.split(",")]
    figures = asyncio.run(measure(levels, options.rounds))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(figures)


async def measure(levels: list[int], rounds: int) -> dict[str, Any]:
    """Return generated tokens and calls a second at each concurrency, by way of asking."""
    figures: dict[str, Any] = {"model": MODEL, "rounds": rounds}
    ways: dict[str, Callable[[], AbstractAsyncContextManager[Ask]]] = {
        "engine": in_process,
        "http": over_http,
    }
    for name, way in ways.items():
        async with way() as ask:
            await one_round(ask, 8)  # fills caches, opens connections
            speeds: dict[int, list[tuple[float, float]]] = {}
            for level in sorted({1, *levels}):
                speeds[level] = [await one_round(ask, level) for _ in range(rounds)]
        alone = statistics.median(tokens for tokens, _ in speeds[1])
        figures[name] = [
            {
                "concurrency": level,
                "tokens_per_s": round(tokens := statistics.median(t for t, _ in speeds[level])),
                "calls_per_s": round(statistics.median(c for _, c in speeds[level]), 1),
                "ratio_to_one_by_one": round(tokens / alone, 2),
            }
            for level in levels
        ]
    return figures


async def one_round(ask: Ask, concurrency: int) -> tuple[float, float]:
    """Ask with ``concurrency`` requests in flight; return tokens and calls a second."""
    numbers = iter(range(concurrency * REQUESTS_PER_SLOT))
    tokens = calls = 0

    async def keep_asking() -> None:
        nonlocal tokens, calls
        for number in numbers:
            reply = await ask(request(number))
            tokens += reply["usage"]["completion_tokens"]
            calls += 1

    started = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(concurrency)))
    elapsed = time.perf_counter() - started
    return tokens / elapsed, calls / elapsed


def request(number: int) -> dict[str, Any]:
    question = f"What is {11 + number % 89} * {99 - number % 83}?"
    messages = [
        {"role": "system", "content": "Answer with #### and the number."},
        {"role": "user", "content": question},
    ]
    return {"model": MODEL, "messages": messages, "tools": [TOOL], "seed": number}


@asynccontextmanager
async def in_process() -> Any:
    """Ask the engine in this process: no HTTP, but templates, tokens and parsing as always."""
    network, chat = load_parts(MODEL)
    with InferenceEngine(network) as engine:
        yield ChatCompletions(engine, chat, [MODEL]).create


@asynccontextmanager
async def over_http() -> Any:
    """Ask a server process; the client's own cost is on another core."""
    async with InferenceServer(MODEL) as server:
        headers = {"Authorization": f"Bearer {server.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:

            async def ask(body: dict[str, Any]) -> Any:
                async with session.post(f"{server.base_url}/chat/completions", json=body) as response:
                    response.raise_for_status()
                    return await response.json()

            yield ask


def print_table(figures: dict[str, Any]) -> None:
    """Print one line for each way of asking and concurrency."""
    print(f"{'':8}{'in flight':>10}{'tokens/s':>12}{'calls/s':>10}{'against one by one':>20}")
    for way in ("engine", "http"):
        for row in figures[way]:
            print(
                f"{way:8}{row['concurrency']:>10}{row['tokens_per_s']:>12,}{row['calls_per_s']:>10}"
                f"{row['ratio_to_one_by_one']:>19}x"
            )


if __name__ == "__main__":
    main()

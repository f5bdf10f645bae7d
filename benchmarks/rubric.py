"""Calls per second and CPU time of a judge with a model of fixed latency.

Each measurement is a process of its own. `direct` is one event loop, `threads` is `evaluate_rubric` from as many threads as
calls may be in flight, and `litellm` is the same endpoint through LiteLLM.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import harness as bench

PATHS = ["direct", "threads", "litellm"]
REPLY = '{"score": 0.8, "explanation": "It answers the question politely and names the policy."}'
ANSWER = "Thank you for asking! A refund is no longer possible, but we gladly give you store credit. " * 8
RUBRIC = "The reply answers the customer's question with the facts of the policy, and is polite. " * 4
Cost = tuple[float, float, float]


def measure(base_url: str, path: str, calls: int, in_flight: int) -> Cost:
    """Score so many texts; return seconds, CPU seconds and peak memory. Imports and connections are not counted."""
    texts = [f"{ANSWER} {number}" for number in range(calls + 3 * in_flight)]
    if path == "threads":
        return _from_threads(base_url, texts, 3 * in_flight, in_flight)
    return asyncio.run(_in_one_loop(base_url, path, texts, 3 * in_flight, in_flight))


async def _in_one_loop(base_url: str, path: str, texts: list[str], warm_up: int, in_flight: int) -> Cost:
    from osmosis_ai.rubric.judge import Judge
    from osmosis_ai.rubric.judge_model import resolve_judge
    from osmosis_ai.rubric.types import JudgeTask

    model = resolve_judge("openai/stand-in", env={}, api_base=base_url, api_key="not-checked", timeout_s=60)
    if path == "litellm":
        os.environ["OPENAI_BASE_URL"] = base_url
        model = replace(model, base_url=None, transport="litellm")
    async with Judge(model, max_in_flight=in_flight) as judge:

        async def score(some: list[str]) -> None:
            waiting = iter(some)

            async def work() -> None:
                for text in waiting:
                    assert (await judge.score(JudgeTask(RUBRIC, text))).score == 0.8

            await asyncio.gather(*(work() for _ in range(in_flight)))

        await score(texts[:warm_up])
        began, cpu = time.perf_counter(), time.process_time()
        await score(texts[warm_up:])
        return time.perf_counter() - began, time.process_time() - cpu, bench.peak_mib()


def _from_threads(base_url: str, texts: list[str], warm_up: int, in_flight: int) -> Cost:
    from osmosis_ai import evaluate_rubric

    model = {
        "provider": "openai", "model": "stand-in", "api_base": base_url, "api_key": "not-checked",
        "timeout": 60,
    }  # fmt: skip
    score = functools.partial(evaluate_rubric, RUBRIC, model_info=model)
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(lambda text: score(solution_str=text), texts[:warm_up]))
        began, cpu = time.perf_counter(), time.process_time()
        assert set(pool.map(lambda text: score(solution_str=text), texts[warm_up:])) == {0.8}
        return time.perf_counter() - began, time.process_time() - cpu, bench.peak_mib()


def main() -> None:
    given = bench.options(__doc__, calls=2000, latency_ms=200.0, in_flight=[64, 256], paths=PATHS)
    rows = []
    with bench.stand_in_model(given.latency_ms, REPLY) as url:
        for in_flight in given.in_flight:
            for path in given.paths:
                with get_context("spawn").Pool(1) as process:
                    seconds, cpu_s, peak = process.apply(measure, (url, path, given.calls, in_flight))
                ideal = in_flight / given.latency_ms * 1000
                row = {
                    "path": path, "in flight": in_flight, "calls/s": round(given.calls / seconds, 1),
                    "of ideal": round(given.calls / seconds / ideal, 3),
                    "CPU ms": round(cpu_s / given.calls * 1000, 3), "peak MiB": round(peak, 1),
                }  # fmt: skip
                rows.append(row)
    bench.report(given, rows)


if __name__ == "__main__":
    main()

"""Throughput and processor time of a judge's calls: directly, through LiteLLM, and from many threads.

A stand-in judge in a process of its own answers after a set latency. Each measurement is a process of its
own: it judges `--calls` texts with so many calls in flight, and reports its wall time and its own processor
time (user and system). The first calls warm up imports and connections and do not count. Throughput is
given as a ratio to the ideal (calls in flight / latency); what LiteLLM costs is the difference between the
two paths to the same endpoint.

    python benchmarks/rubric.py [--calls 2000] [--latency-ms 200] [--in-flight 64 256] [--paths direct threads litellm]

`threads` is `evaluate_rubric` called from so many threads, as trainers with plain functions do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.rubric.judge import Judge
    from osmosis_ai.rubric.types import JudgeTask

REPOSITORY = Path(__file__).parents[1]
PATHS = ["direct", "threads", "litellm"]
REPLY = '{"score": 0.8, "explanation": "It answers the question politely and names the policy."}'
ANSWER = "Thank you for asking! A refund is no longer possible, but we gladly give you store credit. " * 8
RUBRIC = "The reply answers the customer's question with the facts of the policy, and is polite. " * 4


@dataclass(frozen=True)
class Measurement:
    path: str
    calls: int
    in_flight: int
    wall_s: float
    calls_per_s: float
    ideal_per_s: float
    ratio_to_ideal: float
    cpu_ms_per_call: float
    peak_mib: float


@dataclass(frozen=True)
class Cost:
    """What scoring all texts took, in seconds of the clock and of the processor."""

    wall_s: float
    cpu_s: float


async def judge_many(base_url: str, path: str, *, calls: int, in_flight: int) -> Cost:
    """Score with one judge in one event loop, directly or through LiteLLM."""
    from osmosis_ai.rubric.judge import Judge
    from osmosis_ai.rubric.judge_model import resolve_judge
    from osmosis_ai.rubric.types import JudgeTask

    model = resolve_judge("openai/stand-in", env={}, api_base=base_url, api_key="not-checked", timeout_s=60)
    if path == "litellm":
        # Without an address of its own a judge is LiteLLM's to call; the variable tells it where.
        os.environ["OPENAI_BASE_URL"] = base_url
        model = replace(model, base_url=None, transport="litellm")
    async with Judge(model, max_in_flight=in_flight) as judge:
        await score_all(judge, [JudgeTask(RUBRIC, ANSWER)] * (3 * in_flight), in_flight)
        tasks = [JudgeTask(RUBRIC, text) for text in texts(calls)]
        started, cpu = time.perf_counter(), cpu_s()
        scores = await score_all(judge, tasks, in_flight)
        cost = Cost(time.perf_counter() - started, cpu_s() - cpu)
    assert scores == [0.8] * calls
    return cost


def judge_from_threads(base_url: str, *, calls: int, in_flight: int) -> Cost:
    """Score with `evaluate_rubric`, called from as many threads as calls may be in flight."""
    from osmosis_ai import evaluate_rubric

    info = {
        "provider": "openai",
        "model": "stand-in",
        "api_base": base_url,
        "api_key": "not-checked",
        "timeout": 60,
    }
    with ThreadPoolExecutor(in_flight) as pool:
        score = functools.partial(evaluate_rubric, RUBRIC, model_info=info)
        list(pool.map(lambda text: score(solution_str=text), texts(3 * in_flight)))
        started, cpu = time.perf_counter(), cpu_s()
        scores = list(pool.map(lambda text: score(solution_str=text), texts(calls)))
        cost = Cost(time.perf_counter() - started, cpu_s() - cpu)
    assert scores == [0.8] * calls
    return cost


def texts(calls: int) -> list[str]:
    return [f"{ANSWER} {number}" for number in range(calls)]


def measurement_of(arguments: argparse.Namespace, base_url: str, path: str, in_flight: int) -> Measurement:
    calls = arguments.calls
    if path == "threads":
        cost = judge_from_threads(base_url, calls=calls, in_flight=in_flight)
    else:
        cost = asyncio.run(judge_many(base_url, path, calls=calls, in_flight=in_flight))
    ideal = in_flight / arguments.latency_ms * 1000
    return Measurement(
        path=path,
        calls=calls,
        in_flight=in_flight,
        wall_s=round(cost.wall_s, 2),
        calls_per_s=round(calls / cost.wall_s, 1),
        ideal_per_s=round(ideal, 1),
        ratio_to_ideal=round(calls / cost.wall_s / ideal, 3),
        cpu_ms_per_call=round(cost.cpu_s / calls * 1000, 3),
        peak_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    )


async def score_all(judge: Judge, tasks: list[JudgeTask], in_flight: int) -> list[float]:
    """Score every task with ``in_flight`` workers, as a session does."""
    scores: list[float] = []
    waiting = iter(tasks)

    async def work() -> None:
        for task in waiting:
            scores.append((await judge.score(task)).score)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return scores


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def stand_in_judge(latency_ms: float) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.standin_model", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--latency-ms", str(latency_ms), "--reply", REPLY],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        base_url = process.stdout.readline().strip()
        if not base_url:
            raise SystemExit("the stand-in judge did not start")
        yield base_url
    finally:
        process.terminate()
        process.wait()


def measured(base_url: str, path: str, arguments: argparse.Namespace, in_flight: int) -> Measurement:
    """Measure in a fresh process, so that neither path pays for the other."""
    options = ["--calls", str(arguments.calls), "--latency-ms", str(arguments.latency_ms)]
    result = subprocess.run(
        [sys.executable, __file__, *options, "--worker", base_url, path, str(in_flight)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measurement(**json.loads(result.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        base_url, path, in_flight = arguments.worker
        measurement = measurement_of(arguments, base_url, path, int(in_flight))
        print(json.dumps(asdict(measurement)))
        return
    with stand_in_judge(arguments.latency_ms) as base_url:
        for in_flight in arguments.in_flight:
            for path in arguments.paths:
                print(json.dumps(asdict(measured(base_url, path, arguments, in_flight))), flush=True)


if __name__ == "__main__":
    main()

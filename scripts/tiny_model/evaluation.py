"""What the finished model does, measured through the endpoint's own code as users meet it."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import ChatCompletions
from tiny_model.corpus import MULTIPLY_TOOL

MODEL_NAME = "osmosis/tiny"
INSTRUCTIONS = {"role": "system", "content": "Answer with #### and the number."}
ATTEMPTS = 8
ADDITIONS = 1000
MAX_TURNS = 4


@dataclass(frozen=True)
class Evaluation:
    """Shares of right answers, and of multiplications for which the model called the tool."""

    multiply: float
    multiply_tool_calls: float
    multiply_greedy: float
    addition: float
    addition_greedy: float


def evaluate(model_dir: Path, multiply_rows: Path) -> Evaluation:
    """Measure the model on the repository's multiply rows and on drawn additions."""
    with InferenceEngine(Model.load(model_dir), max_waiting=10_000) as engine:
        api = ChatCompletions(engine, BuiltInChat(model_dir), [MODEL_NAME])
        return asyncio.run(_evaluate(api, multiply_rows))


async def _evaluate(api: ChatCompletions, multiply_rows: Path) -> Evaluation:
    rows = [json.loads(line) for line in multiply_rows.read_text(encoding="utf-8").splitlines()]
    # Every conversation has seeds of its own: with shared ones, all would make the same choices.
    seeds = itertools.count(step=MAX_TURNS)
    sampled = await asyncio.gather(
        *(_multiply(api, row, temperature=1.0, seed=next(seeds)) for row in rows for _ in range(ATTEMPTS))
    )
    greedy = await asyncio.gather(*(_multiply(api, row, temperature=0.0, seed=0) for row in rows))
    rng = random.Random(1)
    pairs = [(rng.randint(0, 99), rng.randint(0, 99)) for _ in range(ADDITIONS)]
    additions = {
        temperature: await asyncio.gather(
            *(_add(api, a, b, temperature=temperature, seed=next(seeds)) for a, b in pairs)
        )
        for temperature in (1.0, 0.0)
    }
    return Evaluation(
        multiply=_share([right for right, _ in sampled]),
        multiply_tool_calls=_share([called for _, called in sampled]),
        multiply_greedy=_share([right for right, _ in greedy]),
        addition=_share(additions[1.0]),
        addition_greedy=_share(additions[0.0]),
    )


async def _multiply(
    api: ChatCompletions, row: dict[str, str], *, temperature: float, seed: int
) -> tuple[bool, bool]:
    """One attempt of the sample agent: (right, called the tool)."""
    messages: list[dict[str, Any]] = [INSTRUCTIONS, {"role": "user", "content": row["user_prompt"]}]
    for turn in range(MAX_TURNS):
        reply = await _ask(api, messages, tools=[MULTIPLY_TOOL], temperature=temperature, seed=seed + turn)
        calls = reply.get("tool_calls", [])
        if not calls:
            break
        messages += [reply, *({"role": "tool", "tool_call_id": c["id"], "content": _run(c)} for c in calls)]
    return reply["content"] == f"#### {row['ground_truth']}", turn > 0


async def _add(api: ChatCompletions, a: int, b: int, *, temperature: float, seed: int) -> bool:
    question = {"role": "user", "content": f"What is {a} + {b}?"}
    reply = await _ask(api, [question], temperature=temperature, seed=seed)
    return bool(reply["content"] == f"#### {a + b}")


async def _ask(api: ChatCompletions, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    completion = await api.create({"model": MODEL_NAME, "messages": messages, **options})
    assert isinstance(completion, dict)
    message: dict[str, Any] = completion["choices"][0]["message"]
    return message


def _run(call: dict[str, Any]) -> str:
    arguments = json.loads(call["function"]["arguments"])
    try:
        return str(int(arguments["a"]) * int(arguments["b"]))
    except (KeyError, TypeError, ValueError):
        return "error: bad arguments"


def _share(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)

from __future__ import annotations

import os

# As the server does for itself; it counts when these are the first tests that import NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import ContinuousBatch, Generation, InferenceEngine, SampledToken
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import ChatCompletions

END = 2  # <|im_end|>


def multiply_tool(name: str = "multiply") -> dict[str, Any]:
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def question(a: int = 12, b: int = 34) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"What is {a} * {b}?"}]


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "osmosis/tiny", "messages": question(), "tools": [multiply_tool()], **changes}


@pytest.fixture(scope="session")
def model_dir() -> Path:
    return built_in_model("osmosis/tiny")


@pytest.fixture(scope="session")
def model(model_dir: Path) -> Model:
    return Model.load(model_dir)


@pytest.fixture(scope="session")
def tireless_model(model: Model) -> Model:
    """The same network, which never ends its turn: it generates until it is stopped."""
    tireless = object.__new__(Model)
    tireless.__dict__.update(model.__dict__)
    tireless.config = replace(model.config, end_token_ids=frozenset())
    return tireless


@pytest.fixture(scope="session")
def chat(model_dir: Path) -> BuiltInChat:
    return BuiltInChat(model_dir)


@pytest.fixture
def engine(model: Model) -> Iterator[InferenceEngine]:
    with InferenceEngine(model) as running:
        yield running


@pytest.fixture
def api(engine: InferenceEngine, chat: BuiltInChat) -> ChatCompletions:
    return ChatCompletions(engine, chat, ["osmosis/tiny", "tiny"])


@pytest.fixture(scope="session")
def prompts(chat: BuiltInChat) -> list[tuple[int, ...]]:
    """Forty prompts of different lengths."""
    system = {"role": "system", "content": "You are a careful calculator. " * 3}
    return [
        tuple(chat.encode(chat.render([system] * (n % 2) + question(11 + n, 97 - n), [multiply_tool()])))
        for n in range(40)
    ]


def generation(prompt: tuple[int, ...], seed: int, **changes: Any) -> Generation:
    settings: dict[str, Any] = {"max_tokens": 40, "stop_tokens": frozenset({END}), **changes}
    return Generation(prompt, stream=seed, **settings)


Tokens = dict[Generation, list[SampledToken]]


def generate(
    batch: ContinuousBatch, generations: Sequence[Generation], *, joining: int | None = None
) -> Tokens:
    """Run all to their end; ``joining`` of them join before each step, or as many as fit."""
    queue = deque(generations)
    tokens: Tokens = {one: [] for one in generations}
    while queue or len(batch):
        newcomers = [queue.popleft() for _ in range(min(joining or batch.free, batch.free, len(queue)))]
        for emission in (batch.admit(newcomers) if newcomers else []) + batch.step():
            tokens[emission.generation].append(emission.token)
    return tokens


def ids(tokens: Tokens) -> list[list[int]]:
    return [[token.id for token in one] for one in tokens.values()]


def save_adapter(model_dir: Path, target: Path, **changes: Any) -> Any:
    """Write an adapter with random matrices; return PEFT's own model, in float64."""
    import peft
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": "all-linear",
        "init_lora_weights": False,
        **changes,
    }
    base = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.1)
    adapted.save_pretrained(target)
    return adapted

"""The NumPy model against transformers, and the model that is built in."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.model import KeyValueCache, Model
from osmosis_ai.inference.openai_api import ChatCompletions
from tests.inference.conftest import multiply_tool

pytestmark = pytest.mark.integration

REFERENCE = Path(__file__).parent / "transformers_reference.json"


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def teacher_forced(model: Model, ids: list[int]) -> Any:
    """Log-probabilities after each of ``ids``, fed one by one."""
    cache, row = KeyValueCache(model.config, 1), slice(0, 1)
    places = (np.array([place]) for place in range(len(ids)))
    logits = [model.extend(cache, row, np.array([[token]]), next(places), np.array([0])) for token in ids]
    return log_softmax(np.concatenate(logits))


def test_log_probabilities_equal_transformers(model: Model) -> None:
    for case in json.loads(REFERENCE.read_text()):
        computed = teacher_forced(model, case["ids"])
        scored = [computed[place, token] for place, token in enumerate(case["ids"][1:])]
        assert np.abs(np.array(scored) - case["logprobs"]).max() < 1e-7


@pytest.mark.imports_much
def test_a_random_qwen3_model_equals_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        eos_token_id=2,
    )
    reference = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # norm weights other than 1, logits far from 0
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter == 1.0))
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 97, (1, 40))
    with torch.no_grad():
        expected = reference(input_ids=ids).logits.double().log_softmax(-1)[0].numpy()
    assert np.abs(teacher_forced(Model.load(tmp_path), ids[0].tolist()) - expected).max() < 1e-4


ROWS = Path(__file__).parents[2] / "data" / "multiply.jsonl"


def test_the_files_match_their_checksums(model_dir: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (model_dir / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in model_dir.iterdir()} - {"SHA256SUMS"}
    assert files == set(sums)
    for name, expected in sums.items():
        assert hashlib.sha256((model_dir / name).read_bytes()).hexdigest() == expected, name


def test_tokenization(chat: BuiltInChat) -> None:
    assert len(chat.encode("1234")) == 4
    text = "Grüße, 世界! \x00\t\n <tool_call> 🙂"
    assert b"".join(chat.token_bytes(token) for token in chat.encode(text)).decode() == text


async def test_the_built_in_model_solves_about_40_percent(api: ChatCompletions) -> None:
    async def attempt(row: dict[str, str], seed: int) -> bool:
        messages = [
            {"role": "system", "content": "Answer with #### and the number."},
            {"role": "user", "content": row["user_prompt"]},
        ]
        for turn in range(2):
            request = {
                "model": "tiny",
                "messages": messages,
                "tools": [multiply_tool()],
                "seed": 2 * seed + turn,
            }
            completion = await api.create(request)
            assert isinstance(completion, dict)
            message = completion["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", []):
                factors = json.loads(call["function"]["arguments"])
                product = str(factors["a"] * factors["b"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": product})
        return any(m["content"] == f"#### {row['ground_truth']}" for m in messages[2:])

    rows = [json.loads(line) for line in ROWS.read_text().splitlines()][:100]
    outcomes = await asyncio.gather(
        *(attempt(row, 4 * n + k) for n, row in enumerate(rows) for k in range(4))
    )
    assert 0.33 <= sum(outcomes) / len(outcomes) <= 0.47

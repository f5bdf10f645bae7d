from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from osmosis_ai.inference.openai_api import ChatCompletions
from osmosis_ai.inference.tokenizer import Tokenizer
from tests.inference.conftest import multiply_tool

pytestmark = pytest.mark.integration

ROWS = Path(__file__).parents[2] / "data" / "multiply.jsonl"


def test_the_files_are_the_ones_that_were_released(model_dir: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (model_dir / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in model_dir.iterdir()} - {"SHA256SUMS"}
    assert files == set(sums)
    for name, expected in sums.items():
        assert hashlib.sha256((model_dir / name).read_bytes()).hexdigest() == expected, name


def test_the_model_fits_in_a_package(model_dir: Path) -> None:
    assert sum(path.stat().st_size for path in model_dir.iterdir()) < 2.7e6


def test_numbers_are_written_digit_by_digit_and_any_text_survives(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("1234")) == 4
    text = "Grüße, 世界! \x00\t\n <tool_call> 🙂"
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)).decode() == text


async def test_it_solves_about_four_multiplications_in_ten_with_its_tool(api: ChatCompletions) -> None:
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


@pytest.mark.imports_much
def test_transformers_loads_it_and_reads_text_the_same_way(model_dir: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    loaded = transformers.AutoTokenizer.from_pretrained(model_dir)
    text = "<|im_start|>user\nWhat is 12 * 34?<|im_end|>\n<|im_start|>assistant\n"
    assert loaded(text).input_ids == tokenizer.encode(text)
    assert loaded.eos_token == "<|im_end|>"
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.num_parameters() == 631_872
    assert model.generation_config.eos_token_id == 2

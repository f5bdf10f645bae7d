"""A training run of a causal language model in a folder, with random weights; the reward depends on the length."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.server import load_parts
from osmosis_ai.viewer.local.run_files import read_training
from tests.e2e.training import WORKSPACE, series, trainer
from tests.lazily import lazily

with lazily("torch", "transformers", "peft"):
    import torch
    import transformers
    from peft import PeftModel

pytestmark = pytest.mark.e2e

STEPS = 3
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
HYBRID = {**EXPERTS, "layer_types": ["linear_attention", "full_attention"]}
AGENT = """
import main


class Brief(main.MultiplyGrader):
    async def grade(self, ctx):
        said = ctx.sample.messages[-1].get("content") or ""
        ctx.set_reward(1.0 if len(said.encode()) % 2 else 0.0)


main.MultiplyGrader = Brief
main.main()
"""


@pytest.fixture
def rollout_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "rollouts" / "multiply"
    shutil.copytree(WORKSPACE / "rollouts" / "multiply", directory)
    (directory / "brief.py").write_text(AGENT)
    return directory


def random_model(name: str, directory: Path, **changes: Any) -> Path:
    """Save a model with the built-in model's tokenizer and chat template."""
    config = getattr(transformers, f"{name}Config")(**SIZES, **changes)
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(built_in_model("osmosis/tiny") / file, directory)
    return directory


def train(model: Path, run_dir: Path, rollout_dir: Path, steps: int = STEPS) -> Any:
    settings = {
        "lr": 1e-3,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 4,
        "max_prompt_length": 384,
        "max_response_length": 24,
        "micro_batch_tokens": 600,
        "eval_interval": STEPS,
        "max_steps": steps,
    }
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    agent = {"model_path": str(model), "rollout_dir": rollout_dir, "entrypoint": "brief.py"}
    return trainer(run_dir, settings, environ=environ, **agent).run()


@pytest.mark.parametrize(
    "name", ["Qwen3Moe", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("Qwen2", "Llama"))]
)
async def test_random_model_is_trained_resumed_and_served(name, tmp_path, rollout_dir):
    model = random_model(name, tmp_path / "model", **(EXPERTS if name == "Qwen3Moe" else {}))
    await train(model, tmp_path / "run", rollout_dir, steps=STEPS - 1)
    summary = await train(model, tmp_path / "run", rollout_dir)
    assert summary.steps_done == STEPS
    gaps = [value for _, value in series(summary.records, "train/logprob_gap_max")]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4
    lengths = [value for _, value in series(summary.records, "rollout/response_lengths")]
    assert all(0 < length <= 24 for length in lengths)
    facts = dict(read_training(tmp_path / "run", "run").detail.facts)
    assert "trainable parameters at rank 16" in facts["LoRA"]
    assert ("mlp.experts" in facts["Adapted"], "mlp.gate" in facts["Not adapted"]) == (
        name == "Qwen3Moe",
    ) * 2

    adapter = tmp_path / "run" / "checkpoints" / f"step-{STEPS:08d}" / "adapter"
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(model)
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    prompt = torch.tensor([[1, 60, 90, 120, 200, 250]])
    with torch.no_grad():
        plain = base(input_ids=prompt).logits[:, -1]
        wanted = PeftModel.from_pretrained(base, adapter)(input_ids=prompt).logits[:, -1]
    served, _ = load_parts(str(model), adapter)
    last = np.array([prompt.shape[1] - 1])
    found = served.extend(served.new_cache(1), slice(0, 1), prompt.numpy(), np.zeros(1, np.int64), last)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    assert float((plain - wanted).abs().max()) > 1e-3, "the adapter changes nothing"


async def test_a_model_that_the_engine_cannot_serve_is_refused_before_it_is_loaded(tmp_path, rollout_dir):
    model = random_model("Qwen3_5MoeText", tmp_path / "model", **HYBRID)
    (model / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(OsmosisError, match=r"linear_attention.*Use a GPU with vLLM"):
        await train(model, tmp_path / "run", rollout_dir)
    assert not (tmp_path / "run" / "manifest.json").exists()

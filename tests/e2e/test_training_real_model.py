"""A training run of a causal language model in a folder, with random weights; the reward depends on the length."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.inference.catalog import built_in_model
from tests.e2e.training import WORKSPACE, series, trainer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

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


def random_model(name: str, directory: Path) -> Path:
    """Save a model with the built-in model's tokenizer and chat template."""
    config = getattr(transformers, f"{name}Config")(**SIZES)
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(built_in_model("osmosis/tiny") / file, directory)
    return directory


@pytest.mark.parametrize("name", ["Qwen2", pytest.param("Llama", marks=pytest.mark.nightly)])
async def test_random_model_is_trained(name, tmp_path, rollout_dir):
    model = random_model(name, tmp_path / "model")
    settings = {
        "lr": 1e-3,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 4,
        "max_prompt_length": 384,
        "max_response_length": 24,
        "micro_batch_tokens": 600,
        "eval_interval": STEPS,
        "max_steps": STEPS,
    }
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    agent = {"model_path": str(model), "rollout_dir": rollout_dir, "entrypoint": "brief.py"}
    summary = await trainer(tmp_path / "run", settings, environ=environ, **agent).run()
    assert summary.steps_done == STEPS
    gaps = [value for _, value in series(summary.records, "train/logprob_gap_max")]
    assert gaps
    assert max(gaps) < 1e-4
    lengths = [value for _, value in series(summary.records, "rollout/response_lengths")]
    assert all(0 < length <= 24 for length in lengths)

    from peft import PeftModel

    adapter = tmp_path / "run" / "checkpoints" / f"step-{STEPS:08d}" / "adapter"
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    PeftModel.from_pretrained(base, adapter)
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(model)

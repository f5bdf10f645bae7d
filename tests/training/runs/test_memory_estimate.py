from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import MAX_BATCH
from osmosis_ai.training.model_support import lora_plan, model_layout, model_support, shipped_configs
from osmosis_ai.training.runs.memory_estimate import GIB, TOLERANCE, estimate
from tests.lazily import lazily

with lazily("torch", "transformers"):
    from transformers import AutoConfig, AutoModelForCausalLM

    from osmosis_ai.inference.engine import ContinuousBatch, Generation
    from osmosis_ai.inference.torch_engine import TorchModel
    from tests.training.learner_builders import tiny_learner

ROOT = Path(__file__).parents[3]
SETTINGS = TrainingSettings()
LEARNER_ONLY = TrainingSettings(policy_engine="vllm")
EIGHT_B = model_layout(shipped_configs()["Qwen/Qwen3-8B"])
ADAPTERS = lora_plan(EIGHT_B, SETTINGS.lora_rank, SETTINGS.lora_targets)

WIDE_VOCABULARY = {"model_type": "qwen3", "vocab_size": 40_000, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2,
                   "num_key_value_heads": 4, "head_dim": 32}  # fmt: skip
DEEP = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_key_value_heads": 2,
        "head_dim": 64, "pad_token_id": 0}  # fmt: skip
SPARSE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
SHARED = SPARSE | {"shared_expert_intermediate_size": 256}
FEW_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "n_shared_experts": 1,
          "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}  # fmt: skip
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64,
          "num_key_value_heads": 4, "head_dim": 32}  # fmt: skip
HYBRID = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
          "num_hidden_layers": 4}  # fmt: skip
WINDOWS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 4}
FAMILIES = {
    **{name: {} for name in ("llama", "qwen2", "qwen3", "gemma", "glm4", "phi3")},
    "mistral": {"sliding_window": 64},
    "gemma2": WINDOWS,
    "gemma3_text": WINDOWS,
    "qwen3_moe": SPARSE,
    "qwen2_moe": SHARED,
    "mixtral": FEW_EXPERTS,
    "gpt_oss": FEW_EXPERTS | WINDOWS,
    "glm4_moe": ROUTED,
    "glm4_moe_lite": ROUTED | LATENT,
    "deepseek_v2": ROUTED | LATENT,
    "deepseek_v3": ROUTED | LATENT,
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": SHARED | HYBRID,
    "qwen3_next": SHARED | HYBRID,
}
SHALLOW = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
MEASURED = {
    "wide vocabulary": WIDE_VOCABULARY,
    "shallow gemma2": DEEP | FAMILIES["gemma2"] | SHALLOW | {"model_type": "gemma2"},
    "shallow qwen3_moe": DEEP | SPARSE | {"num_hidden_layers": 2, "model_type": "qwen3_moe"},
    **{name: DEEP | sizes | {"model_type": name} for name, sizes in FAMILIES.items()},
    # Attention between all pairs of tokens is most of what is kept.
    **{
        f"long {name}": DEEP | FAMILIES[name] | SHALLOW | {"model_type": name, "length": 768}
        for name in ("gemma2", "gpt_oss")
    },
}
QUICK = list(MEASURED)[:3]


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.nightly) for name in MEASURED]
)
def test_the_estimate_is_near_the_measured_peak_of_a_step(name, tmp_path):
    output = subprocess.run(
        [sys.executable, "-m", "tests.training.measure_step_memory", str(tmp_path)],
        input=json.dumps(MEASURED[name]),
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    on_cpu, on_gpu = json.loads(output.splitlines()[-1])
    assert on_cpu["estimated"] == pytest.approx(on_cpu["measured"], rel=TOLERANCE)
    assert on_gpu["estimated"] == pytest.approx(on_gpu["measured"], rel=TOLERANCE)


def test_sizes_and_plan_agree_with_the_learner():
    found, learner = model_support("osmosis/tiny", SETTINGS), tiny_learner()
    assert found.plan.trainable_parameters == sum(p.numel() for p in learner._parameters)
    assert found.plan.adapted_parameters == sum(weight.numel() for weight in learner.merged_state().values())
    parameters = sum(p.numel() for p in learner.model.parameters())
    assert found.layout.parameters == parameters - found.plan.trainable_parameters


@pytest.mark.parametrize("model_type", ["qwen3", "deepseek_v3"])
def test_the_cache_is_what_a_full_engine_allocates(model_type):
    sizes = {"model_type": model_type, "vocab_size": 64, "num_attention_heads": 4, "first_k_dense_replace": 2,
             "max_position_embeddings": 512, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8,
             "qk_nope_head_dim": 4, "v_head_dim": 20, "head_dim": 8}  # fmt: skip
    config = AutoConfig.for_model(**WIDE_VOCABULARY | sizes)
    layout = model_layout(json.loads(config.to_json_string()))
    settings = SETTINGS.model_copy(
        update={
            "rollout_batch_size": 1,
            "n_samples_per_prompt": 3,
            "max_prompt_length": 200,
            "max_response_length": 56,
        }
    )
    batch = ContinuousBatch(TorchModel(AutoModelForCausalLM.from_config(config), max_positions=256), 3)
    batch.admit([Generation((number + 5,) * 200, 56, number, frozenset()) for number in range(3)])
    estimated = estimate(layout, lora_plan(layout, 2, "all-linear"), settings, weight_bytes=4)
    assert batch.cache_bytes == estimated.kv_cache == 3 * estimated.kv_bytes_per_session
    assert estimate(EIGHT_B, ADAPTERS, SETTINGS).kv_cache == 2 * MAX_BATCH * 2 * 36 * 1024 * 2 * 16_384


def test_the_parts_add_up_and_decide_whether_it_fits():
    needed = estimate(EIGHT_B, ADAPTERS, LEARNER_ONLY, 80 * GIB)
    assert needed.total == sum(needed.parts().values())
    assert needed.weights == 2 * EIGHT_B.parameters and not needed.serving_weights
    assert needed.optimizer == 2 * needed.adapter == 2 * needed.gradients
    assert needed.fits is (needed.total <= 80 * GIB)
    assert estimate(EIGHT_B, ADAPTERS, LEARNER_ONLY, 16 * GIB).fits is False
    assert estimate(EIGHT_B, ADAPTERS, LEARNER_ONLY).fits is None


def test_a_split_model_needs_its_share_and_what_is_whole_for_the_moment():
    four = LEARNER_ONLY.model_copy(update={"shard_model": True, "learner_processes": 4})
    needed, whole = (estimate(EIGHT_B, ADAPTERS, settings) for settings in (four, LEARNER_ONLY))
    assert needed.weights == whole.weights / 4
    layer = 2 * (EIGHT_B.parameters - EIGHT_B.outside_layers) / len(EIGHT_B.layers)
    assert needed.gathered == pytest.approx(2 * EIGHT_B.outside_layers + 2 * layer)
    assert needed.total == pytest.approx(whole.total - whole.weights * 3 / 4 + needed.gathered)


def test_the_sessions_that_fit_fill_the_memory_that_is_left():
    needed = estimate(EIGHT_B, ADAPTERS, SETTINGS, 141 * GIB)
    assert needed.serving_weights == needed.weights
    left = 141 * GIB - (needed.total - needed.kv_cache)
    assert 0 <= left - needed.sessions_that_fit * needed.kv_bytes_per_session < needed.kv_bytes_per_session
    assert estimate(EIGHT_B, ADAPTERS, SETTINGS, 8 * GIB).sessions_that_fit == 0


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3.6-35B-A3B"])
def test_every_wrong_size_is_refused_or_estimated(name):
    config = shipped_configs()[name]
    sizes = config.get("text_config") or config
    for key in sizes.keys() - {"model_type"}:
        for wrong in (0, -1, 1, 1.5, 10**400, "x", [], {}, float("nan"), float("inf")):
            changed = {**sizes, key: wrong}
            try:
                layout = model_layout({**config, "text_config": changed} if sizes is not config else changed)
            except OsmosisError:
                continue
            found = estimate(layout, lora_plan(layout, 16, "all-linear"), TrainingSettings(), 80 * GIB)
            assert all(isinstance(part, int) and part >= 0 for part in found.parts().values()), (key, wrong)
            assert found.sessions_that_fit is None or found.sessions_that_fit >= 0, (key, wrong)

from __future__ import annotations

import json

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.model_support import lora_plan, model_layout, model_support, shipped_configs
from tests.lazily import lazily

with lazily("torch", "peft", "transformers"):
    import torch
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel
    from peft.utils import transformers_weight_conversion
    from transformers import AutoConfig, AutoModelForCausalLM

DEFAULT = TrainingSettings()
TORCH = TrainingSettings(policy_engine="torch")
VLLM = TrainingSettings(policy_engine="vllm", vllm_url="http://localhost:8000")
SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "pad_token_id": 0,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
HEAD = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "q_lora_rank": 6,
}
HYBRID = {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "layer_types": ["linear_attention", "full_attention", "linear_attention"], **HEAD}  # fmt: skip
SHARED = {"shared_expert_intermediate_size": 20}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "llama with biases": {"model_type": "llama", "attention_bias": True},
    "mistral": HEAD,
    "mixtral": {"num_local_experts": 4},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": EXPERTS | SHARED,
    "qwen3": HEAD,
    "qwen3_moe": EXPERTS | HEAD | {"mlp_only_layers": [1]},
    "qwen3_next": EXPERTS | SHARED | HYBRID,
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": EXPERTS | SHARED | HYBRID,
    "gemma": HEAD,
    "gemma2": HEAD,
    "gemma3_text": HEAD,
    "gpt_oss": HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4": HEAD,
    "glm4_moe": ROUTED | HEAD | {"use_qk_norm": True, "attention_bias": True},
    "glm4_moe_lite": ROUTED | LATENT,
    "deepseek_v2": ROUTED | LATENT | {"q_lora_rank": None},
    "deepseek_v3": ROUTED | LATENT | {"first_k_dense_replace": 2},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """A tiny model without memory, and the configuration that it saves."""
    sizes = SMALL | {"model_type": request.param} | FAMILIES[request.param]
    config = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config), json.loads(config.to_json_string(use_diff=True))


def test_sizes_equal_those_of_the_real_classes(family):
    model, config = family
    layout = model_layout(config)
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert layout.parameters == sum(parameters.values())
    assert layout.outside_layers == sum(size for name, size in parameters.items() if ".layers." not in name)
    for number, layer in enumerate(layout.layers):
        prefix = f"model.layers.{number}."
        own = {
            name.removeprefix(prefix): p for name, p in model.named_parameters() if name.startswith(prefix)
        }
        assert layer.parameters == sum(parameter.numel() for parameter in own.values())
        for matrix in layer.matrices:
            weight = own[matrix.name if matrix.experts else f"{matrix.name}.weight"]
            assert sorted(weight.shape[-2:]) == sorted([matrix.inputs, matrix.outputs])
            assert weight.numel() == matrix.parameters


def test_the_plan_selects_every_linear_layer_and_all_experts_but_no_router(family):
    model, config = family
    plan = lora_plan(model_layout(config), rank=2, targets="all-linear")
    assert plan.adapted_parameters + sum(plan.left_out.values()) == sum(p.numel() for p in model.parameters())
    frozen = {"mlp.gate", "mlp.router", "mlp.shared_expert_gate", "self_attn.kv_b_proj"}
    wanted = {
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layers." in name and not name.endswith(tuple(frozen))
    }
    chosen = {name for name in dict(model.named_modules()) if name.endswith(plan.target_modules)}
    assert chosen == wanted
    experts = {
        name for name, parameter in model.named_parameters() if parameter.dim() == 3 and ".experts." in name
    }
    assert {
        n
        for n, _ in model.named_parameters()
        if plan.target_parameters and n.endswith(plan.target_parameters)
    } == experts


def test_trainable_parameters_are_those_that_peft_makes(family, monkeypatch):
    model, config = family
    # PEFT rewrites names of adapters that were made with transformers 4; those of a plan are today's.
    monkeypatch.setattr(
        transformers_weight_conversion, "convert_peft_config_for_transformers", lambda *_, **__: None
    )
    plan = lora_plan(model_layout(config), rank=2, targets="all-linear")
    adapted = LoraModel(
        model,
        LoraConfig(
            r=2, target_modules=list(plan.target_modules), target_parameters=list(plan.target_parameters)
        ),
        "default",
    )
    assert sum(p.numel() for p in adapted.parameters() if p.requires_grad) == plan.trainable_parameters


@pytest.mark.parametrize(
    ("targets", "modules", "parameters"),
    [
        (["q_proj", "experts.down_proj"], {"self_attn.q_proj"}, {"mlp.experts.down_proj"}),
        ("layers.0.*v_proj", {"layers.0.self_attn.v_proj"}, set()),
        (
            ["model.layers.0.self_attn.v_proj", "layers.[01].*.v_proj"],
            {f"layers.{n}.self_attn.v_proj" for n in (0, 1)},
            set(),
        ),
    ],
)
def test_targets_are_names_ends_of_names_or_patterns(targets, modules, parameters):
    layout = model_layout(shipped_configs()["Qwen/Qwen3-30B-A3B"])
    plan = lora_plan(layout, rank=2, targets=targets)
    assert (set(plan.target_modules), set(plan.target_parameters)) == (modules, parameters)
    with pytest.raises(OsmosisError, match=r"lora_targets matches no layer: gate\."):
        lora_plan(layout, rank=2, targets=["q_proj", "gate"])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (r"([\w.]+)+!", "matches no layer"),
        ("*a" * 90 + "!", "matches no layer"),
        ([], "names no layer"),
        (["q_proj", ""], "names no layer"),
        (["q_proj"] * 1001, "more than 1,000 names"),
        ("*" * 201, "of more than 200 characters"),
    ],
)
def test_hostile_targets_are_refused_at_once(targets, message):
    with pytest.raises(OsmosisError, match=message):
        lora_plan(model_layout(shipped_configs()["Qwen/Qwen3-8B"]), rank=2, targets=targets)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": "x", "model_type": "unknown"},
        {"layer_types": [{}, 1]},
        {"vocab_size": "x"},
        {"hidden_size": float("nan")},
        {"hidden_size": -64},
        {"hidden_size": 1},
        {"num_hidden_layers": 0},
        *({"intermediate_size": size} for size in (0, -1, 1.5, "x", [], 2**40, float("inf"))),
        {"text_config": "x"},
        {"quantization_config": "awq"},
    ],
)
def test_a_wrong_configuration_is_refused(wrong, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": "llama"} | wrong))
    with pytest.raises(OsmosisError, match=r"configuration (has|of)"):
        model_support(str(tmp_path), TORCH)


@pytest.mark.parametrize("name", ["a" * 5000, f"{'a' * 5000}/b"])
def test_a_name_that_no_folder_can_have_is_refused(name):
    with pytest.raises(OsmosisError, match="cannot be read: File name too long"):
        model_support(name, TORCH)


def test_an_unknown_architecture_is_refused_only_if_it_has_experts(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "falcon_h1"}')
    found = model_support(str(tmp_path), TORCH)
    assert (found.is_known, found.plan, found.problem) == (False, None, None)
    (tmp_path / "config.json").write_text('{"model_type": "olmoe", "num_experts": 64}')
    with pytest.raises(
        OsmosisError, match=r"experts of .* cannot get an adapter: unknown architecture 'olmoe'"
    ):
        model_support(str(tmp_path), TORCH).require()


@pytest.mark.parametrize(
    ("model", "settings", "on_gpu", "problem"),
    [
        ("osmosis/tiny", TORCH, False, None),
        ("Qwen/Qwen3-30B-A3B", TORCH, True, None),
        ("Qwen/Qwen3.6-35B-A3B", TORCH, None, 'linear_attention layers.*policy_engine = "vllm"'),
        ("Qwen/Qwen3.6-35B-A3B", VLLM, None, None),
        ("Qwen/Qwen3.6-35B-A3B", DEFAULT, None, None),
        ("Qwen/Qwen3.6-35B-A3B", DEFAULT, True, None),
        ("Qwen/Qwen3.6-35B-A3B", DEFAULT, False, "Use a GPU with vLLM"),
        ("openai/gpt-oss-20b", VLLM, True, r"quantized weights \(mxfp4\)"),
    ],
)
def test_what_is_missing_is_one_sentence(model, settings, on_gpu, problem, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = model_support(model, settings, on_gpu=on_gpu)
    if problem is None:
        found.require()
    else:
        with pytest.raises(OsmosisError, match=problem):
            found.require()


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(shipped_configs()["Qwen/Qwen3-8B"]))
    assert model_support(str(tmp_path), TORCH).problem is None
    assert (
        model_support(str(tmp_path), TORCH, needs_weights=True).problem
        == f"The folder {tmp_path} has no weights."
    )

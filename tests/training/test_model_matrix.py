"""Tiny models of the architectures that people train: each learns, is served, saved and loaded, or is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import Generation, InferenceEngine
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence
from tests.conftest import NIGHTLY
from tests.lazily import lazily
from tests.tiny_model import SIZES

with lazily("torch", "peft", "transformers"):
    import torch
    import transformers

    from osmosis_ai.inference.torch_engine import TorchModel
    from osmosis_ai.training.learner.distributed import World
    from osmosis_ai.training.learner.forward_backward import ForwardBackward, LearnerStep
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.learner.policy_model import load_policy
    from osmosis_ai.training.objective.batches import batch_totals, training_rows
    from tests.training.learner_builders import made_up_sequences

RANK = 16
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
          "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}  # fmt: skip
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
          "num_key_value_heads": 4, "head_dim": 4}  # fmt: skip
HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "shared_expert_intermediate_size": 24, "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}

# Rank x (inputs + outputs) of each matrix.
ATTENTION = RANK * ((32 + 32) + (32 + 16) + (32 + 16) + (32 + 32))
DENSE = RANK * 3 * (32 + 48)
OF_EXPERTS = 8 * RANK * ((32 + 2 * 16) + (16 + 32))
SHARED = RANK * 3 * (32 + 16)
LATENT_ATTENTION = RANK * ((32 + 16) + (16 + 4 * 12) + (32 + 8 + 4) + (4 * 8 + 32))
TRAINED: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama": ("LlamaConfig", {}, 2 * (ATTENTION + DENSE)),
    "qwen2": ("Qwen2Config", {}, 2 * (ATTENTION + DENSE)),
    "qwen3": ("Qwen3Config", {}, 2 * (ATTENTION + DENSE)),
    "mistral": ("MistralConfig", {"sliding_window": 8}, 2 * (ATTENTION + DENSE)),
    "gemma3": ("Gemma3TextConfig", WINDOWS, 2 * (ATTENTION + DENSE)),
    "gemma": ("GemmaConfig", {}, 2 * (ATTENTION + DENSE)),
    "gemma2": ("Gemma2Config", WINDOWS, 2 * (ATTENTION + DENSE)),
    "glm4": ("Glm4Config", {}, 2 * (ATTENTION + RANK * ((32 + 96) + (48 + 32)))),
    "phi3": ("Phi3Config", {}, 2 * RANK * ((32 + 64) + (32 + 32) + (32 + 96) + (48 + 32))),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS, 2 * (ATTENTION + OF_EXPERTS)),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**EXPERTS, "shared_expert_intermediate_size": 24},
        2 * (ATTENTION + OF_EXPERTS + RANK * 3 * (32 + 24)),
    ),
    "mixtral": (
        "MixtralConfig",
        {"num_local_experts": 4},
        2 * (ATTENTION + 4 * RANK * ((32 + 96) + (48 + 32))),
    ),
    "gpt_oss": (
        "GptOssConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, **WINDOWS},
        2 * (ATTENTION + 4 * RANK * ((32 + 96) + (48 + 32))),
    ),
    # The first layer is dense, the second has a shared expert.
    "glm4_moe": ("Glm4MoeConfig", ROUTED, 2 * ATTENTION + DENSE + OF_EXPERTS + SHARED),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        {**ROUTED, **LATENT},
        2 * LATENT_ATTENTION + DENSE + OF_EXPERTS + SHARED,
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {**ROUTED, **LATENT},
        2 * LATENT_ATTENTION + DENSE + OF_EXPERTS + SHARED,
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**ROUTED, **LATENT},
        2 * LATENT_ATTENTION + DENSE + OF_EXPERTS + SHARED,
    ),
}
QUICK = {"llama", "qwen3", "qwen3_moe"}
SETTINGS = {"lr": 3e-2, "lora_rank": RANK, "max_response_length": 16}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def saved_model(kind: str, changes: dict[str, Any], directory: Path) -> Path:
    """Save a model whose tokens differ in probability."""
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SIZES, **changes})
    network = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.data *= 4
    network.save_pretrained(directory)
    return directory


async def drawn(engine: InProcessPolicyEngine, seed: int) -> list[TokenSequence]:
    """Six continuations of prompts of different lengths."""
    wanted = [Generation(tuple(range(3, 7 + 3 * n)), 16, 10 * seed + n, frozenset({1})) for n in range(6)]
    feed, tokens, left = TokenFeed(engine, wanted, every_token=False), {g: [] for g in wanted}, len(wanted)
    while left:
        for _, emission in await feed.read():
            tokens[emission.generation].append(emission.token)
            left -= emission.finish_reason is not None
    return [
        TokenSequence(
            f"rollout-{seed}-{number}",
            [*one.prompt, *(token.id for token in sampled)],
            [0] * len(one.prompt) + [1] * len(sampled),
            [0.0] * len(one.prompt) + [token.logprob for token in sampled],
            [NOT_SAMPLED] * len(one.prompt) + [token.version for token in sampled],
        )
        for number, (one, sampled) in enumerate(tokens.items())
    ]


def largest_gap(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    return max(
        abs(a - b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )


QUICK_FIRST = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if NIGHTLY or name not in QUICK else [])
        for name in TRAINED
    ],
)


@QUICK_FIRST
async def test_a_model_learns_and_is_served_saved_and_loaded(name: str, tmp_path: Path) -> None:
    kind, changes, trainable = TRAINED[name]
    model = saved_model(kind, changes, tmp_path / "model")
    learner = Learner(str(model), TrainingSettings(**SETTINGS), "cpu")
    adapted = {
        name: parameter for name, parameter in learner.model.named_parameters() if parameter.requires_grad
    }
    assert sum(parameter.numel() for parameter in adapted.values()) == trainable
    with InferenceEngine(TorchModel.load(model)) as running:
        engine = InProcessPolicyEngine(running)
        for version in range(3):
            sequences = await drawn(engine, version)
            gap = largest_gap(learner.logprobs(sequences), [sequence.logprobs for sequence in sequences])
            assert gap < 1e-4, f"after {version} updates"
            if version < 2:
                advantages = [1.0, -1.0] * 3
                assert learner.step(sequences, advantages, policy_version=version).updates == version + 1
                await engine.publish(learner, version + 1)
    original = transformers.AutoModelForCausalLM.from_pretrained(model).state_dict()
    merged = learner.merged_state()
    assert all(not torch.equal(tensor, original[name]) for name, tensor in merged.items())
    assert not [name for name in merged if name.endswith(("gate.weight", "router.weight", "lm_head.weight"))]

    learner.save_adapter(tmp_path / "adapter")
    with InferenceEngine(TorchModel.load(model, adapter=tmp_path / "adapter")) as running:
        again = await drawn(InProcessPolicyEngine(running), 2)
    assert [one.ids for one in again] == [one.ids for one in sequences]
    assert largest_gap([one.logprobs for one in again], [one.logprobs for one in sequences]) < 1e-4
    continued = Learner(str(model), learner.settings, "cpu", adapter=tmp_path / "adapter")
    assert continued.logprobs(sequences) == learner.logprobs(sequences)
    resumed = Learner(str(model), learner.settings, "cpu")
    resumed.load_state_dict(learner.state_dict())
    assert resumed.logprobs(sequences) == learner.logprobs(sequences)


@QUICK_FIRST
def test_a_pass_over_micro_batches_never_waits_for_the_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tensors on this device have no values, so whatever would fetch one from a GPU fails.
    device, (kind, changes, _) = torch.device("meta"), TRAINED[name]
    monkeypatch.setattr(torch, "autocast", lambda **_: nullcontext())  # does not exist for it
    settings = TrainingSettings(**SETTINGS, kl_coef=0.1)
    policy = load_policy(str(saved_model(kind, changes, tmp_path)), settings, device).to(device)
    rows, rollouts = training_rows(made_up_sequences(6), [1.0, -1.0] * 3)
    step = LearnerStep(rows, batch_totals(rows, rollouts, 16), 0, True)
    passes = ForwardBackward(policy, settings, device, World(), sharded=False)
    done = passes.accumulate(step, micro_batch_tokens=48)
    assert done.micro_batches > 1
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("targets", "trainable"),
    [
        ("all-linear", TRAINED["glm4_moe"][2]),
        (["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], OF_EXPERTS),
        (["shared_experts.gate_proj"], RANK * (32 + 16)),
        ("model.layers.0.*", ATTENTION + DENSE),
    ],
)
def test_lora_targets_select_experts_or_others(targets: Any, trainable: int, tmp_path: Path) -> None:
    model = saved_model("Glm4MoeConfig", ROUTED, tmp_path)
    learner = Learner(str(model), TrainingSettings(**SETTINGS, lora_targets=targets), "cpu")
    assert learner.trainable_parameters == trainable


@pytest.mark.parametrize(
    ("targets", "trainable"),
    [(["layers.0.*", "lm_head"], ATTENTION + DENSE + RANK * (32 + 97)), ("q_proj", 2 * RANK * (32 + 32))],
)
def test_lora_targets_of_an_unknown_architecture(targets: Any, trainable: int, tmp_path: Path) -> None:
    model = saved_model("Olmo2Config", {}, tmp_path)
    learner = Learner(str(model), TrainingSettings(**SETTINGS, lora_targets=targets), "cpu")
    assert learner.trainable_parameters == trainable


def test_layers_that_the_torch_engine_cannot_serve_are_refused_before_weights_are_loaded(
    tmp_path: Path,
) -> None:
    model = saved_model("Qwen3_5MoeTextConfig", {**EXPERTS, **HYBRID}, tmp_path)
    (model / "model.safetensors").write_bytes(b"")
    with pytest.raises(OsmosisError, match="linear_attention"):
        Learner(str(model), TrainingSettings(**SETTINGS), "cpu")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["Qwen3_5Moe", "Qwen3_5", "Qwen3Next"])
def test_layers_with_linear_attention_learn_and_are_named_as_vllm_names_them(
    kind: str, tmp_path: Path
) -> None:
    sizes, torch_seed = {**SIZES, **EXPERTS, **HYBRID}, torch.manual_seed(0)
    of_images = kind != "Qwen3Next"
    if of_images:
        vision = {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
        }
        config = getattr(transformers, f"{kind}Config")(text_config=sizes, vision_config=vision)
        transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    else:
        saved_model(f"{kind}Config", sizes, tmp_path)
    settings = TrainingSettings(**SETTINGS, policy_engine="vllm", vllm_command="vllm")
    learner = Learner(str(tmp_path), settings, "cpu")
    ids = torch.randint(3, 97, (6, 24), generator=torch_seed).tolist()
    sequences = [
        TokenSequence(
            str(n), row[: 8 + 3 * n], [0] * 4 + [1] * (4 + 3 * n), [0.0] * (8 + 3 * n), [0] * (8 + 3 * n)
        )
        for n, row in enumerate(ids)
    ]
    together = learner.logprobs(sequences)
    alone = [learner.logprobs([sequence])[0] for sequence in sequences]
    assert largest_gap(together, alone) < 1e-4, "padding changes what is learned"
    recorded = [replace(one, logprobs=logprobs) for one, logprobs in zip(sequences, together, strict=True)]
    assert learner.step(recorded, [1.0, -1.0] * 3, policy_version=0).updates == 1
    learner.save_adapter(tmp_path / "served", for_vllm=True)
    names = load_file(tmp_path / "served" / "adapter_model.safetensors")
    prefix = (
        "base_model.model.model.language_model.layers." if of_images else "base_model.model.model.layers."
    )
    assert names and all(name.startswith(prefix) for name in names)

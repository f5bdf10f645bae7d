"""Estimate a training run's memory per device before it starts.

The peak occurs at one of three moments, and everything allocated at that moment is counted:

- the loss: activations kept for the backward pass, and the logits with their float32 copies;
- the backward pass of the last layer, with one layer of recomputed activations;
- publishing: a merged copy of the adapted matrices.

If the frozen model is sharded over several devices (`shard_model`), each holds its share plus, while computing, the
parts outside the layers, the current layer and the prefetched one.

The counts are for a decoder with RMS norms, rotary attention and a gated MLP (Llama, Qwen, Mistral and similar),
per token and layer. They match measured peaks of real steps on one device within 20% (:data:`TOLERANCE`), without
the allocator's fragmentation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError

TOLERANCE = 0.2
GIB = 2**30
FLOAT32 = 4
# Driver context, kernels, and memory that the allocator cannot return.
GPU_RESERVE_BYTES = GIB
DEFAULT_SERVING_SESSIONS = 32
# Layers of a sharded model that a device holds while it computes: the current one and the prefetched one.
_LAYERS_AT_HAND = 2
# The backward pass of a layer holds gradients beside that layer's activations; measured 1.25 to 1.46.
_LAYER_BACKWARD = 1.4


@dataclass(frozen=True)
class ModelShape:
    parameters: int
    outside_layers: int
    adapted_parameters: int
    adapter_parameters: int
    layers: int
    hidden: int
    vocabulary: int
    intermediate: int
    query_width: int
    key_width: int

    @classmethod
    def read(cls, model_path: str, settings: TrainingSettings) -> ModelShape:
        import torch
        from peft import LoraConfig, get_peft_model
        from peft.tuners.lora import LoraLayer
        from transformers import AutoConfig, AutoModelForCausalLM

        from osmosis_ai.training.learner.policy_model import model_source

        try:
            config = AutoConfig.from_pretrained(
                model_source(model_path, allow_download=settings.allow_download, weights=False)
            )
            with torch.device("meta"):
                base = AutoModelForCausalLM.from_config(config)
                parameters = sum(p.numel() for p in base.parameters())
                layers = [m for m in base.modules() if type(m).__name__ in set(base._no_split_modules or ())]
                inside = sum(p.numel() for layer in layers for p in layer.parameters())
                lora = LoraConfig(
                    r=settings.lora_rank, target_modules=settings.lora_targets, task_type="CAUSAL_LM"
                )
                policy = get_peft_model(base, lora)
        except (OSError, ValueError, ImportError) as error:
            raise OsmosisError(f"the model `{model_path}` cannot be sized: {error}") from error
        adapted = [m.get_base_layer() for m in policy.modules() if isinstance(m, LoraLayer)]
        return cls(
            parameters=parameters,
            outside_layers=parameters - inside,
            adapted_parameters=sum(layer.weight.numel() for layer in adapted),
            adapter_parameters=sum(p.numel() for p in policy.parameters() if p.requires_grad),
            **_sizes(config.get_text_config()),
        )


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of a step on one device: on the first of several, which also serves."""

    weights: int
    gathered: int
    adapter: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    serving_weights: int
    kv_cache: int
    reserve: int
    kv_bytes_per_session: int
    micro_batch_tokens: int
    gpu_bytes: int | None

    @property
    def total(self) -> int:
        return sum(self.parts().values())

    @property
    def step_peak(self) -> int:
        return self.gradients + self.activations + self.logits

    @property
    def fits(self) -> bool | None:
        return None if self.gpu_bytes is None else self.total <= self.gpu_bytes

    @property
    def sessions_that_fit(self) -> int | None:
        """Number of sessions of the greatest length that the remaining memory can serve."""
        if self.gpu_bytes is None or not self.serving_weights:
            return None
        return max(0, self.gpu_bytes - (self.total - self.kv_cache)) // self.kv_bytes_per_session

    def parts(self) -> dict[str, int]:
        """Return the summands of :attr:`total` by name."""
        others = ("kv_bytes_per_session", "micro_batch_tokens", "gpu_bytes")
        return {name: value for name, value in asdict(self).items() if name not in others}


def estimate(
    shape: ModelShape,
    settings: TrainingSettings,
    gpu_bytes: int | None = None,
    *,
    weight_bytes: int = 2,
    recompute_activations: bool = True,
    serves: bool = True,
    serving_sessions: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of the device that needs the most.

    Args:
        gpu_bytes: Memory of the device.
        weight_bytes: Bytes per weight: 2 for bfloat16 (GPU), 4 for float32 (CPU).
        recompute_activations: Whether the backward pass recomputes activations, as the learner does on a GPU.
        serves: Whether the policy server shares the device.
        serving_sessions: Concurrent sessions; None uses the number of rollouts per step, at most 32.
    """
    longest = settings.max_prompt_length + settings.max_response_length
    tokens = max(settings.micro_batch_tokens, longest)
    activations, logits = _peak_of_a_step(shape, settings, tokens, weight_bytes, recompute_activations)
    if serves:
        publishing = shape.adapted_parameters * weight_bytes
        if publishing > activations + logits:
            activations, logits = publishing, 0
    adapter = shape.adapter_parameters * FLOAT32
    per_session = 2 * shape.layers * shape.key_width * weight_bytes * longest
    rollouts = settings.rollout_batch_size * settings.n_samples_per_prompt
    sessions = min(rollouts, DEFAULT_SERVING_SESSIONS) if serving_sessions is None else serving_sessions
    weights, gathered = _frozen_parameters(shape, settings)
    return MemoryEstimate(
        weights=weights * weight_bytes,
        gathered=gathered * weight_bytes,
        adapter=adapter,
        gradients=adapter,
        optimizer=2 * adapter,
        activations=activations,
        logits=logits,
        serving_weights=shape.parameters * weight_bytes if serves else 0,
        kv_cache=sessions * per_session if serves else 0,
        reserve=GPU_RESERVE_BYTES if weight_bytes < FLOAT32 else 0,
        kv_bytes_per_session=per_session,
        micro_batch_tokens=tokens,
        gpu_bytes=gpu_bytes,
    )


def _frozen_parameters(shape: ModelShape, settings: TrainingSettings) -> tuple[int, int]:
    """Return the frozen parameters that one device holds, and the additional ones while it computes."""
    if not settings.shard_model or settings.learner_processes == 1:
        return shape.parameters, 0
    layer = (shape.parameters - shape.outside_layers) // shape.layers
    at_hand = min(shape.outside_layers + _LAYERS_AT_HAND * layer, shape.parameters)
    return math.ceil(shape.parameters / settings.learner_processes), at_hand


def _peak_of_a_step(
    shape: ModelShape, settings: TrainingSettings, tokens: int, weight_bytes: int, recompute: bool
) -> tuple[int, int]:
    """Return activations and logits at the moment when their sum is largest."""
    layer = activation_bytes(shape, settings.lora_rank, weight_bytes) * tokens
    logits = logit_bytes(shape, settings, tokens, weight_bytes)
    if not recompute:
        return shape.layers * layer, logits
    kept = shape.layers * shape.hidden * weight_bytes * tokens
    in_backward = kept + round(_LAYER_BACKWARD * layer)
    return (kept, logits) if kept + logits > in_backward else (in_backward, 0)


def activation_bytes(shape: ModelShape, lora_rank: int, weight_bytes: int) -> int:
    """Return the bytes that one layer keeps of one token for its backward pass."""
    hidden, wide = shape.hidden, shape.intermediate
    query, key = shape.query_width, shape.key_width
    shared = weight_bytes == FLOAT32
    norms = 2 * hidden * FLOAT32 + (query + key) * FLOAT32
    attention = (2 * query + 2 * key) * weight_bytes
    gated_mlp = 3 * wide * weight_bytes
    inputs_of_qkv_and_gate_up = (2 if shared else 5) * hidden
    inputs_of_output_and_down = (0 if shared else query) + wide
    adapters = (inputs_of_qkv_and_gate_up + inputs_of_output_and_down + 7 * lora_rank) * FLOAT32
    return norms + attention + gated_mlp + adapters


def logit_bytes(shape: ModelShape, settings: TrainingSettings, tokens: int, weight_bytes: int) -> int:
    """Return the logits of a micro-batch's responses, their gradient and the float32 copies of one chunk."""
    from osmosis_ai.training.objective.losses import CHUNK_ELEMENTS

    share = settings.max_response_length / (settings.max_prompt_length + settings.max_response_length)
    elements = round(tokens * share) * shape.vocabulary
    in_chunks = elements > CHUNK_ELEMENTS
    # In chunks: the logits, the chunks' gradients, and these put together. Float32: the scaled logits,
    # their gradient, probabilities and a product.
    return (3 if in_chunks else 1) * elements * weight_bytes + 4 * FLOAT32 * min(elements, CHUNK_ELEMENTS)


def _sizes(config: Any) -> dict[str, int]:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    intermediate = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    experts = getattr(config, "num_experts_per_tok", None)
    width = getattr(config, "moe_intermediate_size", None)
    if experts and width:
        intermediate = experts * width + (getattr(config, "shared_expert_intermediate_size", None) or 0)
    return {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "vocabulary": config.vocab_size,
        "intermediate": int(intermediate),
        "query_width": heads * head_dim,
        "key_width": (getattr(config, "num_key_value_heads", None) or heads) * head_dim,
    }

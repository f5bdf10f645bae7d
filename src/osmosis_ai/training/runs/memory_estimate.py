"""Estimate a training run's memory per device before it starts.

The peak occurs at one of three moments, and everything allocated at that moment is counted:

- the loss: activations kept for the backward pass, and one chunk of logits with its float32 copies;
- the backward pass of the last layer, with one layer of recomputed activations;
- publishing: a merged copy of the adapted matrices.

If the frozen model is sharded over several devices (`shard_model`), each holds its share plus, while computing, the
parts outside the layers, the current layer and the prefetched one.

The counts are for a decoder with RMS norms, rotary attention and a gated MLP, per token and layer; with experts, for those
that a token uses. They match measured peaks of real steps on one device within 20% (:data:`TOLERANCE`), without the
allocator's fragmentation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.engine import cache_bytes, cached_sequences
from osmosis_ai.training.model_support import DecoderLayer, LoraPlan, ModelLayout
from osmosis_ai.training.objective import CHUNK_ELEMENTS

TOLERANCE = 0.2
GIB = 2**30
FLOAT32 = 4
# Driver context, kernels, and memory that the allocator cannot return.
GPU_RESERVE_BYTES = GIB
# Layers of a sharded model that a device holds while it computes: the current one and the prefetched one.
_LAYERS_AT_HAND = 2


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
        if self.gpu_bytes is None or not self.serving_weights or not self.kv_bytes_per_session:
            return None
        return max(0, self.gpu_bytes - (self.total - self.kv_cache)) // self.kv_bytes_per_session

    def parts(self) -> dict[str, int]:
        """Return the summands of :attr:`total` by name."""
        others = ("kv_bytes_per_session", "micro_batch_tokens", "gpu_bytes")
        return {name: value for name, value in asdict(self).items() if name not in others}


def estimate(
    layout: ModelLayout,
    plan: LoraPlan,
    settings: TrainingSettings,
    gpu_bytes: int | None = None,
    *,
    weight_bytes: int = 2,
    recompute_activations: bool = True,
    engine_bytes: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of the device that needs the most.

    Args:
        gpu_bytes: Memory of the device.
        weight_bytes: Bytes per weight: 2 for bfloat16 (GPU), 4 for float32 (CPU).
        recompute_activations: Whether the backward pass recomputes activations, as the learner does on a GPU.
        engine_bytes: Bytes per number in the torch engine; the default is ``weight_bytes``. The memory of a vLLM server
            is not counted.
    """
    longest = settings.max_prompt_length + settings.max_response_length
    tokens = max(settings.micro_batch_tokens, longest)
    activations, logits = _peak_of_a_step(layout, settings, tokens, weight_bytes, recompute_activations)
    serves = settings.method == "rl" and settings.policy_engine == "torch"
    engine_bytes = engine_bytes or weight_bytes
    if serves:
        # In bfloat16, the adapters of single matrices are served next to their base.
        merged = (
            plan.adapted_parameters
            if weight_bytes == FLOAT32
            else sum(matrix.parameters for _, matrix in layout.matrices() if matrix.experts)
        )
        if merged * weight_bytes > activations + logits:
            activations, logits = merged * weight_bytes, 0
    adapter = plan.trainable_parameters * FLOAT32
    width = sum(layer.cached_width for layer in layout.layers)
    cached = partial(cache_bytes, positions=longest, layers=1, width=width, number_bytes=engine_bytes)
    sequences = cached_sequences(settings.rollout_batch_size * settings.n_samples_per_prompt)
    weights, gathered = _frozen_parameters(layout, settings)
    return MemoryEstimate(
        weights=weights * weight_bytes,
        gathered=gathered * weight_bytes,
        adapter=adapter,
        gradients=adapter,
        optimizer=2 * adapter,
        activations=activations,
        logits=logits,
        serving_weights=layout.parameters * engine_bytes if serves else 0,
        kv_cache=cached(sequences) if serves else 0,
        reserve=GPU_RESERVE_BYTES if weight_bytes < FLOAT32 else 0,
        kv_bytes_per_session=cached(1),
        micro_batch_tokens=tokens,
        gpu_bytes=gpu_bytes,
    )


def _frozen_parameters(layout: ModelLayout, settings: TrainingSettings) -> tuple[int, int]:
    """Return the frozen parameters that one device holds, and the additional ones while it computes."""
    if not settings.shard_model or settings.learner_processes == 1:
        return layout.parameters, 0
    layer = max(layer.parameters for layer in layout.layers)
    at_hand = min(layout.outside_layers + _LAYERS_AT_HAND * layer, layout.parameters)
    return math.ceil(layout.parameters / settings.learner_processes), at_hand


def _peak_of_a_step(
    layout: ModelLayout, settings: TrainingSettings, tokens: int, weight_bytes: int, recompute: bool
) -> tuple[int, int]:
    """Return activations and logits at the moment when their sum is largest."""
    longest = settings.max_prompt_length + settings.max_response_length
    each = [
        activation_bytes(layer, layout.hidden, settings.lora_rank, weight_bytes, longest)
        for layer in layout.layers
    ]
    experts = [expert_bytes(layer, weight_bytes) for layer in layout.layers]
    logits = logit_bytes(layout, settings, tokens, weight_bytes)
    if not recompute:
        gradient = max(stack for _, stack in experts)
        return sum(map(sum, each)) * tokens + sum(merged for merged, _ in experts) + gradient, logits
    kept = len(layout.layers) * layout.hidden * weight_bytes * tokens
    backward = 0
    for layer, (attention, mlp), (merged, stack) in zip(layout.layers, each, experts, strict=True):
        of_attention, of_mlp = gradient_bytes(layer, layout.hidden, weight_bytes, longest)
        # The MLP's activations are freed before attention's backward pass.
        backward = max(
            backward, attention * tokens + max(of_attention, mlp + of_mlp) * tokens + merged + stack
        )
    return (kept, logits) if logits > backward else (kept + backward, 0)


def activation_bytes(
    layer: DecoderLayer, hidden: int, lora_rank: int, weight_bytes: int, length: int
) -> tuple[int, int]:
    """Return the bytes per token that a layer's attention with norms, and its MLP, keep for the backward pass."""
    query, key, wide = layer.query_width, layer.key_width, layer.wide
    scores = score_bytes(layer, weight_bytes)
    # A fused kernel gets a window as a mask. With a mask, or without the kernel, keys and values are repeated for all heads.
    masked = 0 < layer.window <= length and not scores
    repeated = 2 * query if masked or scores else key + layer.value_width
    attention = (2 * query + repeated + length * masked) * weight_bytes + layer.heads * length * scores
    # Gate, up and activated gate; gpt-oss clamps and scales them, which adds three. The product is an input.
    mlp = (6 if layer.attention == "sinks" else 3) * wide * weight_bytes
    # Inputs and outputs of the experts that the token uses.
    mlp += 2 * layer.experts_per_token * hidden * weight_bytes

    def adapters(prefix: str, inputs: int) -> int:
        """An adapter reads its input in float32: the layer's own tensor, or a copy."""
        linear = [
            m for m in layer.matrices if m.name.startswith(prefix) and not m.experts and not m.is_frozen
        ]
        if weight_bytes < FLOAT32:
            inputs = sum(matrix.inputs for matrix in linear)
        return (inputs + len(linear) * lora_rank) * FLOAT32

    attention += layer.normed_width * FLOAT32 + _linear_attention_bytes(layer, weight_bytes)
    mixer = "self_attn." if layer.linear_heads is None else "linear_attn."
    return attention + adapters(mixer, hidden), mlp + adapters("mlp.", hidden + wide)


def score_bytes(layer: DecoderLayer, weight_bytes: int) -> int:
    """Return the bytes of attention weights that a layer keeps per head and pair of tokens; 0 with a fused kernel."""
    if layer.attention == "softcapped":  # tanh, the float32 softmax, and its copy in bfloat16
        return 2 * FLOAT32
    if layer.attention == "sinks":
        return weight_bytes
    # The fused kernel for CPUs needs keys as wide as values.
    return FLOAT32 if layer.attention == "latent" and weight_bytes == FLOAT32 else 0


def gradient_bytes(layer: DecoderLayer, hidden: int, weight_bytes: int, length: int) -> tuple[int, int]:
    """Return the bytes per token that gradients in attention and in the MLP add to the activations.

    Attention needs the gradients before and after the softmax. The MLP needs those of the experts' outputs, or of the widest
    output, whose adapter needs it twice more in float32.
    """
    softmax = FLOAT32 if layer.attention == "softcapped" else weight_bytes
    scores = 2 * layer.heads * length * softmax if score_bytes(layer, weight_bytes) else 0
    if layer.experts_per_token:
        return scores, layer.experts_per_token * hidden * weight_bytes
    widest = max(matrix.outputs for matrix in layer.matrices)
    return scores, widest * (weight_bytes + 2 * FLOAT32)


def _linear_attention_bytes(layer: DecoderLayer, weight_bytes: int) -> int:
    """Return what transformers' own Gated DeltaNet keeps of a token: its kernels from the hub keep less.

    In float32, keys, values and queries at each stage, five rows of a chunk's matrices, and the states between chunks.
    """
    if layer.linear_heads is None:
        return 0
    heads, key, value = layer.linear_heads
    chunk = 64
    kept = heads * (9 * key + 10 * value + 5 * chunk + 2 * key * value // chunk) * FLOAT32
    convolved = max(
        matrix.outputs for matrix in layer.matrices if matrix.name.startswith("linear_attn.in_proj")
    )
    return kept + 3 * convolved * weight_bytes


def expert_bytes(layer: DecoderLayer, weight_bytes: int) -> tuple[int, int]:
    """Return the bytes of a layer's experts with their adapters merged, and of the largest one's gradient.

    PEFT computes W + BA of all experts of a layer for each pass over it.
    """
    stacks = [matrix.parameters * weight_bytes for matrix in layer.matrices if matrix.experts]
    return sum(stacks), max(stacks, default=0)


def logit_bytes(layout: ModelLayout, settings: TrainingSettings, tokens: int, weight_bytes: int) -> int:
    """Return the logits of one chunk of a micro-batch's responses, and the tensors kept for all of them.

    A chunk has its logits and, in float32, their log-probabilities and probabilities. The last hidden states of the
    responses are copied, and each has a gradient.
    """
    share = settings.max_response_length / (settings.max_prompt_length + settings.max_response_length)
    rows = round(tokens * share)
    chunk = min(rows * layout.vocabulary, CHUNK_ELEMENTS)
    return chunk * (weight_bytes + 2 * FLOAT32) + 2 * rows * layout.hidden * weight_bytes

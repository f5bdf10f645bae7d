"""The built-in models' network (Qwen3) in NumPy, with merged LoRA adapters.

It computes in float64, where the order of a sum changes a logit by about 1e-15: neither other rows in the batch nor the
chunking of a prompt can change a sampled token. The weights are prepared once, so that a step is a few large operations.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.inference.catalog import FORMAT_NAMES, FormatName
from osmosis_ai.inference.engine import (
    Dimensions,
    Drawn,
    Floats,
    Ints,
    SamplingRows,
    check_shapes,
    draw_tokens,
)

# Some state dictionaries name the output matrix although it is the embedding.
TIED_HEAD = "lm_head.weight"
# A prompt is read in chunks of so many tokens a row, which bounds the memory of attention scores.
CHUNK_TOKENS = 256
ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
# Training writes its settings next to the adapter.
PROVENANCE_FILE = "provenance.json"
_REFUSED_KEYS = ("use_dora", "modules_to_save", "trainable_token_indices", "rank_pattern", "alpha_pattern")
_LORA_MATRIX = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True)
class ModelConfig(Dimensions):
    """The numbers of `config.json` that the forward pass needs."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float

    @classmethod
    def load(cls, model_dir: Path) -> ModelConfig:
        raw = json.loads((model_dir / "config.json").read_bytes())
        raw["max_positions"] = raw["max_position_embeddings"]
        raw["rope_theta"] = raw["rope_parameters"]["rope_theta"]
        raw["end_token_ids"] = frozenset([raw["eos_token_id"]])
        return cls(**{field.name: raw[field.name] for field in fields(cls)})


class KeyValueCache:
    """Keys and values of ``slots`` sequences; the system assigns memory to what is written."""

    def __init__(self, config: ModelConfig, slots: int) -> None:
        heads = config.num_key_value_heads
        shape = (config.num_hidden_layers, slots, heads, config.max_positions, config.head_dim)
        self.keys: Floats = np.zeros(shape)
        self.values: Floats = np.zeros(shape)
        self.nbytes = 2 * self.keys.nbytes

    def copy(self, source: int, target: int, length: int) -> None:
        for array in (self.keys, self.values):
            array[:, target, :, :length] = array[:, source, :, :length]

    def fit(self, rows: int, positions: int) -> None:
        """Do nothing: all slots exist."""


class Model:
    """The network: token ids in, logits out."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Any], fingerprint: str) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self.tensors = dict(tensors)
        frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        angles = np.outer(np.arange(config.max_positions), frequencies)
        self._rotations = np.exp(1j * angles)[:, None, :]
        self._prepare_weights()

    @classmethod
    def load(cls, model_dir: Path) -> Model:
        """Read a model from its folder: a plain Qwen3 model with tied embeddings."""
        from safetensors.numpy import load

        data = (model_dir / "model.safetensors").read_bytes()
        return cls(ModelConfig.load(model_dir), load(data), hashlib.sha256(data).hexdigest())

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace only the named tensors (NumPy or torch), atomically; raises OsmosisError."""
        changed = {name: tensor for name, tensor in weights.items() if name != TIED_HEAD}
        check_shapes(self.tensors, changed)
        self.tensors |= {name: _float64(tensor) for name, tensor in changed.items()}
        self._prepare_weights()

    def new_cache(self, running: int, kept: int) -> KeyValueCache:
        return KeyValueCache(self.config, running + kept)

    def draw(self, logits: Floats, sources: Sequence[int] | slice, sampling: SamplingRows) -> list[Drawn]:
        return draw_tokens(np, logits[sources], sampling)

    def _prepare_weights(self) -> None:
        weights = {name.removeprefix("model."): _float64(tensor) for name, tensor in self.tensors.items()}
        self._embedding = weights["embed_tokens.weight"]
        self._head = np.ascontiguousarray((self._embedding * weights["norm.weight"]).T)
        self._layers = [
            _prepare(self.config, {key.removeprefix(prefix): value for key, value in weights.items()})
            for prefix in (f"layers.{index}." for index in range(self.config.num_hidden_layers))
        ]

    def extend(self, cache: KeyValueCache, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> Floats:
        count = ids.shape[1]
        hidden = np.empty((len(ids), self.config.hidden_size))
        for offset in range(0, count, CHUNK_TOKENS):
            chunk = self._blocks(cache, rows, ids[:, offset : offset + CHUNK_TOKENS], starts + offset)
            here = np.flatnonzero((wanted >= offset) & (wanted < offset + CHUNK_TOKENS))
            hidden[here] = chunk[here, wanted[here] - offset]
        logits: Floats = self._normalise(hidden) @ self._head
        return logits

    def _blocks(self, cache: KeyValueCache, rows: slice, ids: Ints, starts: Ints) -> Floats:
        """Run the transformer's blocks over a chunk; R x S x hidden."""
        config, (batch, count) = self.config, ids.shape
        positions = starts[:, None] + np.arange(count)
        # Padding may point past the last position; its results are not used.
        positions = np.minimum(positions, config.max_positions - 1)
        seen = int(positions.max()) + 1
        rotations = self._rotations[positions]
        visible = np.where(np.arange(seen) <= positions[:, :, None], 0.0, -np.inf)
        mask = np.tile(visible[:, None], (1, 1, config.num_attention_heads // config.num_key_value_heads, 1))
        slots = np.arange(rows.start, rows.stop)[:, None]
        residual = self._embedding[ids.ravel()]
        with np.errstate(over="ignore"):  # exp(-gate) may reach infinity, where silu is rightly 0
            for index, (qkv, qk_norm, output, gate_up, down) in enumerate(self._layers):
                heads = (self._normalise(residual) @ qkv).reshape(batch, count, -1, config.head_dim)
                queries, keys, values = self._rotate(qk_norm, heads, rotations)
                cache.keys[index, slots, :, positions] = keys
                cache.values[index, slots, :, positions] = values
                keys, values = cache.keys[index, rows, :, :seen], cache.values[index, rows, :, :seen]
                attended = self._attend(queries, keys, values, mask)
                residual += attended.reshape(batch * count, -1) @ output
                gate, up = np.split(self._normalise(residual) @ gate_up, 2, axis=-1)
                residual += (gate / (1.0 + np.exp(-gate)) * up) @ down
        return residual.reshape(batch, count, -1)

    def _rotate(self, qk_norm: Floats, heads: Floats, rotations: Any) -> tuple[Floats, Floats, Floats]:
        """Split heads into queries, keys (both normalised and rotated) and values; R x S x heads x head_dim."""
        queries = self.config.num_attention_heads
        split = queries + self.config.num_key_value_heads
        normalised = self._normalise(heads[:, :, :split]) * qk_norm
        rotated: Floats = (normalised.view(np.complex128) * rotations).view(np.float64)
        return rotated[:, :, :queries], rotated[:, :, queries:], heads[:, :, split:]

    def _attend(self, queries: Floats, keys: Floats, values: Floats, mask: Floats) -> Floats:
        """Causal attention; query heads that share a key-value head are rows of one product."""
        config, (batch, count) = self.config, queries.shape[:2]
        group = config.num_attention_heads // config.num_key_value_heads
        heads = config.num_key_value_heads
        grouped = queries.reshape(batch, count, heads, group, config.head_dim)
        stacked = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, heads, group * count, -1)
        scores = stacked @ keys.swapaxes(-1, -2)
        scores += mask.reshape(batch, 1, group * count, -1)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = (scores @ values) / scores.sum(axis=-1, keepdims=True)
        unstacked = mixed.reshape(batch, heads, group, count, config.head_dim)
        by_position: Floats = unstacked.transpose(0, 3, 1, 2, 4)
        return by_position

    def _normalise(self, values: Floats) -> Floats:
        """Root-mean-square normalisation of the last axis; the weight is in the following matrix."""
        squares = np.einsum("...i,...i->...", values, values) / values.shape[-1]
        normalised: Floats = values / np.sqrt(squares + self.config.rms_norm_eps)[..., None]
        return normalised


def _float64(tensor: Any) -> Floats:
    if hasattr(tensor, "detach"):  # torch: maybe on a device, of a type NumPy lacks, or with gradients
        tensor = tensor.detach().double().cpu().numpy()
    return np.asarray(tensor, dtype=np.float64)


def _prepare(config: ModelConfig, weights: dict[str, Floats]) -> tuple[Floats, ...]:
    """Return the matrices of a block, which map rows (``x @ matrix``), and the norm of its queries and keys."""
    pairs = np.arange(config.head_dim).reshape(2, -1).T.ravel()  # 0, d/2, 1, d/2 + 1, ...
    queries, keys, values = (weights[f"self_attn.{name}_proj.weight"] for name in "qkv")
    split = [matrix.reshape(-1, config.head_dim, config.hidden_size)[:, pairs] for matrix in (queries, keys)]
    qkv = np.concatenate([*(heads.reshape(-1, config.hidden_size) for heads in split), values])
    query_norm = weights["self_attn.q_norm.weight"][pairs] / np.sqrt(config.head_dim)
    key_norm = weights["self_attn.k_norm.weight"][pairs]
    gate_up = np.concatenate([weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]])
    return (
        np.ascontiguousarray((qkv * weights["input_layernorm.weight"]).T),
        np.stack([query_norm] * config.num_attention_heads + [key_norm] * config.num_key_value_heads),
        np.ascontiguousarray(weights["self_attn.o_proj.weight"].T),
        np.ascontiguousarray((gate_up * weights["post_attention_layernorm.weight"]).T),
        np.ascontiguousarray(weights["mlp.down_proj.weight"].T),
    )


def load_adapted_model(model_dir: Path, adapter_dir: Path) -> Model:
    """Read a model and merge an adapter in PEFT's format into it; raises OsmosisError.

    Each matrix W that the adapter names becomes W + scale * B A (Hu et al., "LoRA", 2021, equation 3), where scale is
    alpha / r, or alpha / sqrt(r) for rank-stabilised adapters. Other features are refused, because a partial merge
    would be another model.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        config_bytes = (adapter_dir / ADAPTER_CONFIG_FILE).read_bytes()
        data = (adapter_dir / ADAPTER_WEIGHTS_FILE).read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no adapter in `{adapter_dir}`: `{Path(str(error.filename)).name}` is missing."
        ) from None
    try:
        config, matrices = json.loads(config_bytes), load(data)
    except (ValueError, SafetensorError) as error:
        raise OsmosisError(f"the adapter in `{adapter_dir}` cannot be read: {error}") from error
    unsupported = [f"`{key}`" for key in _REFUSED_KEYS if config.get(key)]
    if config.get("bias", "none") != "none":
        unsupported.append("`bias`")
    kind = config.get("peft_type", "LORA")
    if kind != "LORA" or unsupported:
        what = f"uses {', '.join(unsupported)}" if unsupported else f"is of the kind `{kind}`"
        raise OsmosisError(f"the NumPy engine cannot serve the adapter in `{adapter_dir}`: it {what}.")
    model = Model.load(model_dir)
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    updates = {
        f"{module}.weight": scale * (sides["B"] @ sides["A"])
        for module, sides in _lora_pairs(matrices, adapter_dir).items()
    }
    check_shapes(model.tensors, updates)
    merged = {name: model.tensors[name].astype(np.float64) + update for name, update in updates.items()}
    adapter_fingerprint = hashlib.sha256(config_bytes + data).hexdigest()
    both = hashlib.sha256(f"{model.fingerprint}:{adapter_fingerprint}".encode()).hexdigest()
    return Model(model.config, {**model.tensors, **merged}, both)


def trained_tool_call_format(adapter_dir: Path) -> FormatName | None:
    """Return the tool call format that an adapter was trained with; None if it is not recorded."""
    try:
        provenance = json.loads((adapter_dir / PROVENANCE_FILE).read_bytes())
        recorded = provenance["settings"]["tool_call_format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a file of this name need not be ours
    return next((name for name in FORMAT_NAMES if name == recorded), None)


def _lora_pairs(tensors: Mapping[str, Any], directory: Path) -> dict[str, dict[str, Floats]]:
    pairs: dict[str, dict[str, Floats]] = {}
    for name, tensor in tensors.items():
        matrix = _LORA_MATRIX.fullmatch(name)
        if matrix is None:
            raise OsmosisError(
                f"the adapter in `{directory}` cannot be served: `{name}` is not a matrix of a LoRA adapter."
            )
        pairs.setdefault(matrix["module"], {})[matrix["side"]] = tensor.astype(np.float64)
    for module, sides in pairs.items():
        if set(sides) != {"A", "B"}:
            raise OsmosisError(f"the adapter in `{directory}` is damaged: `{module}` has one matrix of two.")
    return pairs

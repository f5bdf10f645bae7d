"""What this release can do with a model, from its ``config.json`` alone: sizes, LoRA plan, and what is missing.

Nothing here imports torch or transformers, so it answers at once and offline. The names and sizes of the matrices are
those of transformers' decoder classes; the tests compare them with these classes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.inference.catalog import built_in_model, served_models

Config = Mapping[str, Any]
Attention = Literal["plain", "softcapped", "sinks", "latent"]
"""``latent`` is multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
Source = Literal["built in", "folder", "cache", "shipped"]
LINEAR_ATTENTION = "linear_attention"
SERVED_BY_TORCH = {"full_attention", "sliding_attention"}
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_COUNTS = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
)
_MOST_LAYERS = 10_000
_MOST_TARGETS, _LONGEST_TARGET = 1_000, 200
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SHIPPED = Path(__file__).with_name("model_configs.json")
HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w([\w.-]*\w)?/)?\w([\w.-]{0,94}\w)?", re.ASCII)


@dataclass(frozen=True)
class Matrix:
    """A weight of a decoder layer. With ``experts``, it is one 3-D parameter that holds a matrix for each expert.

    ``is_frozen`` weights never get an adapter, such as routers.
    """

    name: str
    inputs: int
    outputs: int
    experts: int = 0
    is_frozen: bool = False

    @property
    def parameters(self) -> int:
        return max(self.experts, 1) * self.inputs * self.outputs

    def adapter_parameters(self, rank: int) -> int:
        """Return the elements of A and B; each expert has its own.    LoRA, arXiv:2106.09685, section 4.1"""
        return max(self.experts, 1) * rank * (self.inputs + self.outputs)


@dataclass(frozen=True)
class DecoderLayer:
    """A layer's matrices and the widths that determine its activations.

    ``cached_width`` is how many numbers the layer caches of a token: 0 for linear attention.
    ``normed_width`` is the total width of what its norms read. ``window`` is how many tokens attention reaches back; 0 is all.
    ``wide`` is the inner width of the MLP: with experts, of those that one token uses.
    ``linear_heads`` are the number and the key and value widths of linear attention's heads.
    ``other_parameters`` are norms, biases and convolutions.
    """

    attention: Attention
    heads: int
    window: int
    normed_width: int
    matrices: tuple[Matrix, ...]
    other_parameters: int
    query_width: int
    key_width: int
    value_width: int
    cached_width: int
    wide: int
    experts_per_token: int
    linear_heads: tuple[int, int, int] | None

    @cached_property
    def parameters(self) -> int:
        return self.other_parameters + sum(matrix.parameters for matrix in self.matrices)


@dataclass(frozen=True)
class ModelLayout:
    model_type: str
    hidden: int
    vocabulary: int
    is_tied: bool
    layers: tuple[DecoderLayer, ...]

    @property
    def outside_layers(self) -> int:
        """Parameters of the embedding, the head if it has its own, and the last norm."""
        return (1 if self.is_tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        return self.outside_layers + sum(layer.parameters for layer in self.layers)

    def matrices(self) -> Iterator[tuple[int, Matrix]]:
        """Yield every matrix with the number of its layer."""
        for number, layer in enumerate(self.layers):
            for matrix in layer.matrices:
                yield number, matrix


@dataclass(frozen=True)
class LoraPlan:
    """The weights that get an adapter. ``target_modules`` and ``target_parameters`` are PEFT's options of these names; parameters are the 3-D weights of
    experts. ``left_out`` counts the parameters without an adapter by name.
    """

    rank: int
    target_modules: tuple[str, ...]
    target_parameters: tuple[str, ...]
    trainable_parameters: int
    adapted_parameters: int
    left_out: Mapping[str, int]

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for display, by label."""
        groups: dict[str, list[str]] = {}
        for name in (*self.target_modules, *self.target_parameters):
            group, _, last = name.rpartition(".")
            groups.setdefault(group, []).append(last)
        return [
            ("LoRA", f"{short_count(self.trainable_parameters)} trainable parameters at rank {self.rank}"),
            ("Adapted", "; ".join(f"{group}: {', '.join(names)}" for group, names in groups.items())),
            (
                "Not adapted",
                ", ".join(f"{name} ({short_count(size)})" for name, size in self.left_out.items() if size),
            ),
        ]

    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ModelSupport:
    """Whether and how a model can be trained with given settings.

    ``settings`` have the engine of the device. ``problem`` is the reason if it cannot be trained. ``is_known`` is false for an architecture that is not in the table: its
    ``layout`` and ``plan`` are unknown, and whether it trains has not been tested.
    """

    model_path: str
    source: Source
    model_type: str
    settings: TrainingSettings
    layout: ModelLayout | None
    plan: LoraPlan | None
    problem: str | None

    @property
    def is_known(self) -> bool:
        return self.layout is not None

    @property
    def title(self) -> str:
        """The model with its architecture and size, for a person."""
        known = (
            f", {short_count(self.layout.parameters)} parameters"
            if self.layout is not None
            else ", not tested"
        )
        return f"{self.model_path} ({self.model_type}{known})"

    def data(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "model_type": self.model_type,
            "engine": self.settings.policy_engine,
            "parameters": self.layout.parameters if self.layout is not None else None,
            "lora": self.plan.data() if self.plan is not None else None,
            "problem": self.problem,
        }

    def require(self) -> None:
        """Raise the problem, if there is one."""
        if self.problem is not None:
            raise OsmosisError(self.problem)


def short_count(parameters: int) -> str:
    """Return ``34.7 B``, ``943.9 M`` or ``12,288``."""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.1f} {unit}"
    return f"{parameters:,}"


def base_of(model_path: str) -> str:
    """Return the model that a path like ``BASE:ADAPTER`` starts from."""
    base = model_path.rpartition(":")[0]
    return base if HUB_NAME.fullmatch(base) else model_path


def is_relative_folder(model_path: str) -> bool:
    """Return whether a model is a folder relative to the current directory, which is another one on other machines."""
    if model_path in served_models() or model_path.startswith(("/", "~")):
        return False
    with suppress(OSError):  # a name too long for a folder
        return HUB_NAME.fullmatch(model_path) is None or Path(model_path).is_dir()
    return False


def read_model_config(model_path: str) -> tuple[Config, Source, Path]:
    """Return a model's ``config.json``, its source and its file; nothing is downloaded.

    Raises:
        NotFoundError: The model is neither built in nor in a folder, the Hugging Face cache or the shipped list.
        OsmosisError: The file is not a configuration.
    """
    if model_path in served_models():
        file = built_in_model(model_path) / "config.json"
        return _parsed(file), "built in", file
    folder = expanded(model_path)
    try:
        has_config, is_folder = (folder / "config.json").is_file(), folder.is_dir()
    except OSError as error:
        raise NotFoundError(f"The model {model_path[:200]} cannot be read: {error.strerror}.") from error
    if has_config:
        return _parsed(folder / "config.json"), "folder", folder / "config.json"
    if is_folder:
        raise NotFoundError(f"The folder {model_path} has no config.json.")
    if not HUB_NAME.fullmatch(model_path):
        raise NotFoundError(f"The folder {model_path} does not exist.")
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model_path, "config.json")
    if isinstance(cached, str):
        return _parsed(Path(cached)), "cache", Path(cached)
    if model_path in shipped_configs():
        return shipped_configs()[model_path], "shipped", _SHIPPED
    raise NotFoundError(
        f"The configuration of '{model_path}' is not on this machine.",
        hint=f"fetch it (a few kB): hf download {model_path} config.json",
    )


def _parsed(path: Path) -> Config:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OsmosisError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise OsmosisError(f"{path} has no model_type.")
    for part in (config, config.get("text_config") or {}):
        if not isinstance(part, dict) or not isinstance(part.get("quantization_config") or {}, dict):
            raise OsmosisError(f"{path} is not the configuration of a model.")
    return config


@cache
def shipped_configs() -> Mapping[str, Config]:
    """Return the sizes of models people train, from their published configurations."""
    listed = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    return {name: listed[config] if isinstance(config, str) else config for name, config in listed.items()}


def model_support(
    model_path: str, settings: TrainingSettings, *, on_gpu: bool | None = None, needs_weights: bool = False
) -> ModelSupport:
    """Return what ``settings`` do with a model and, if it cannot be trained, why.

    Args:
        on_gpu: Whether it is trained on a GPU, which decides the default engine; None if that is unknown.
        needs_weights: Whether a folder must have weights.

    Raises:
        NotFoundError, OsmosisError: As :func:`read_model_config`, or ``lora_targets`` match nothing.
    """
    config, source, file = read_model_config(model_path)
    if settings.backend == "tinker":  # the server knows, and is asked when the run starts
        return ModelSupport(model_path, source, config["model_type"], settings, None, None, None)
    try:
        layout = model_layout(config)
        kinds = sorted(set(_layer_kinds(_text_config(config))) - SERVED_BY_TORCH)
    except OsmosisError as error:
        raise OsmosisError(f"The configuration of '{model_path}' ({file}) {error.message}") from error
    plan = lora_plan(layout, settings.lora_rank, settings.lora_targets) if layout is not None else None
    is_chosen = "policy_engine" in settings.model_fields_set
    if on_gpu:
        settings = settings.on_gpu(layout.parameters if layout is not None and not kinds else None)
    problem = _problem_of_weights(model_path, config, is_known=layout is not None)
    samples = settings.method == "rl" and settings.policy_engine == "torch"
    if problem is None and kinds and samples and (is_chosen or on_gpu is not None):
        problem = (
            f"The torch engine cannot sample from '{model_path}': it does not support {', '.join(kinds)} layers. "
            + ('Set [advanced].policy_engine = "vllm".' if is_chosen or on_gpu else "Use a GPU with vLLM.")
        )
    if needs_weights and source == "folder" and not _has_weights(expanded(model_path)):
        problem = f"The folder {model_path} has no weights."
    return ModelSupport(model_path, source, config["model_type"], settings, layout, plan, problem)


def has_cached_weights(model_path: str) -> bool:
    """Return whether the Hugging Face cache has weights of a model."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model_path, "config.json")
    return isinstance(cached, str) and _has_weights(Path(cached).parent)


def _has_weights(folder: Path) -> bool:
    return any(path for pattern in _WEIGHTS for path in folder.glob(pattern))


def _problem_of_weights(model_path: str, config: Config, *, is_known: bool) -> str | None:
    text = _text_config(config)
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if quantization:
        kind = quantization.get("quant_method", "unknown method")
        return f"'{model_path}' has quantized weights ({kind}), which cannot be trained. Use a bfloat16 copy of the model."
    if not is_known and any(text.get(key) for key in _EXPERT_COUNTS):
        return f"The experts of '{model_path}' cannot get an adapter: unknown architecture '{config['model_type']}'."
    return None


def lora_plan(layout: ModelLayout, rank: int, targets: str | Sequence[str]) -> LoraPlan:
    """Return which weights ``lora_targets`` selects.

    "all-linear" selects every matrix of the layers, including those of experts, but no frozen one.

    Raises:
        OsmosisError: A target matches no weight, or there are too many targets.
    """
    if targets == "all-linear":
        targets = ["*"]
    targets = target_list(targets)
    having: dict[str, list[int]] = {}
    chosen: dict[Matrix, list[int]] = {}
    left_out: Counter[str] = Counter()
    matched: set[str] = set()
    for number, matrix in layout.matrices():
        having.setdefault(matrix.name, []).append(number)
        full_name = f"model.layers.{number}.{matrix.name}"
        found = {each for each in targets if not matrix.is_frozen and is_target(each, full_name)}
        matched |= found
        if found:
            chosen.setdefault(matrix, []).append(number)
        else:
            left_out[matrix.name] += matrix.parameters
    if missing := set(targets) - matched:
        known = sorted({matrix.name for _, matrix in layout.matrices() if not matrix.is_frozen})
        raise OsmosisError(
            f"lora_targets matches no layer: {', '.join(sorted(missing))}.",
            hint=f"layers of this model: {', '.join(known)}",
        )
    left_out["embedding and head"] = layout.outside_layers - layout.hidden
    left_out["norms and biases"] = layout.hidden + sum(layer.other_parameters for layer in layout.layers)
    names: dict[bool, list[str]] = {False: [], True: []}
    for matrix, numbers in chosen.items():
        everywhere = numbers == having[matrix.name]
        full = [matrix.name] if everywhere else [f"layers.{number}.{matrix.name}" for number in numbers]
        names[matrix.experts > 0] += full
    return LoraPlan(
        rank,
        tuple(names[False]),
        tuple(names[True]),
        sum(matrix.adapter_parameters(rank) * len(numbers) for matrix, numbers in chosen.items()),
        sum(matrix.parameters * len(numbers) for matrix, numbers in chosen.items()),
        dict(left_out),
    )


def target_list(targets: str | Sequence[str]) -> list[str]:
    """Return ``lora_targets`` other than "all-linear" as a list of limited size."""
    targets = [targets] if isinstance(targets, str) else list(targets)
    if not targets or not all(targets):
        raise OsmosisError(
            "lora_targets names no layer.",
            hint='name one, such as "q_proj", or leave it out to adapt all layers',
        )
    if len(targets) > _MOST_TARGETS or max(map(len, targets), default=0) > _LONGEST_TARGET:
        raise OsmosisError(
            f"lora_targets has more than {_MOST_TARGETS:,} names, or one of more than {_LONGEST_TARGET} characters."
        )
    return targets


def is_target(target: str, full_name: str) -> bool:
    """Return whether a name, an end of a name or a pattern with the wildcards of file names selects a weight.

    Unlike a regular expression, such a pattern is matched without exponential backtracking.
    """
    return fnmatchcase(f".{full_name}", f"*.{target}")


@dataclass(frozen=True)
class _Family:
    """How an architecture differs from Llama's: a flag is a constant or the key of the config that has it."""

    defaults: Config
    qkv_bias: str | bool = "attention_bias"
    output_bias: str | bool = "attention_bias"
    qk_norm: str | bool = False
    norms: int = 2
    fused_qkv: bool = False
    fused_mlp: bool = False
    gated_query: bool = False
    attention: Attention = "plain"
    router: str = ""
    """Name of the router; empty without experts."""
    expert_bias: bool = False


_QWEN3 = {"head_dim": 128}
_TIED = {"tie_word_embeddings": True, "head_dim": 256}
_HYBRID = {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
           "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32}  # fmt: skip
_LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
           "v_head_dim": 128, "n_shared_experts": 1}  # fmt: skip
_GLM_LITE = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "first_k_dense_replace": 1}
_SHARED = {"n_shared_experts": 1, "first_k_dense_replace": 1}
_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family({}),
    "mistral": _Family({}),
    "mixtral": _Family({"num_local_experts": 8, "num_experts_per_tok": 2}, router="mlp.gate"),
    "phi3": _Family({}, fused_qkv=True, fused_mlp=True),
    "qwen2": _Family({}, qkv_bias=True, output_bias=False),
    "qwen2_moe": _Family({"qkv_bias": True}, qkv_bias="qkv_bias", output_bias=False, router="mlp.gate"),
    "qwen3": _Family(_QWEN3, qk_norm=True),
    "qwen3_moe": _Family(_QWEN3, qk_norm=True, router="mlp.gate"),
    "qwen3_next": _Family(_HYBRID, qk_norm=True, gated_query=True, router="mlp.gate"),
    "qwen3_5_text": _Family(_HYBRID, qk_norm=True, gated_query=True),
    "qwen3_5_moe_text": _Family(_HYBRID, qk_norm=True, gated_query=True, router="mlp.gate"),
    "gemma": _Family(_TIED),
    "gemma2": _Family(_TIED, norms=4, attention="softcapped"),
    "gemma3_text": _Family(_TIED, qk_norm=True, norms=4),
    "gpt_oss": _Family(
        {"head_dim": 64, "attention_bias": True}, attention="sinks", router="mlp.router", expert_bias=True
    ),
    "glm4": _Family({"attention_bias": True, "head_dim": 128}, output_bias=False, norms=4, fused_mlp=True),
    "glm4_moe": _Family(_SHARED, output_bias=False, qk_norm="use_qk_norm", router="mlp.gate"),
    "glm4_moe_lite": _Family({**_LATENT, **_GLM_LITE}, attention="latent", router="mlp.gate"),
    "deepseek_v2": _Family({**_LATENT, "n_shared_experts": 2}, attention="latent", router="mlp.gate"),
    "deepseek_v3": _Family({**_LATENT, "first_k_dense_replace": 3}, attention="latent", router="mlp.gate"),
}
_TEXT_PART = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Models of images and text of which the language model is trained."""


def model_layout(config: Config) -> ModelLayout | None:
    """Return the sizes of a model, or None for an architecture that is not in the table.

    Raises:
        OsmosisError: The configuration lacks a size; the message is about an unnamed configuration.
    """
    text = _text_config(config)
    model_type = str(config["model_type"])
    model_type = _TEXT_PART.get(model_type, model_type)
    family = _FAMILIES.get(model_type)
    if family is None:
        return None
    sizes = {**family.defaults, **{key: value for key, value in text.items() if value is not None}}
    if text.get("q_lora_rank", 0) is None:
        sizes["q_lora_rank"] = None
    if wrong := [key for key in _COUNTS if not _is_count(sizes.get(key, 0))]:
        raise OsmosisError(f"has an invalid {wrong[0]}.")
    try:
        kinds = _layer_kinds(sizes)
        layout = ModelLayout(
            model_type,
            sizes["hidden_size"],
            sizes["vocab_size"],
            bool(sizes.get("tie_word_embeddings")),
            tuple(_layer(family, sizes, number, kind) for number, kind in enumerate(kinds)),
        )
    except KeyError as error:
        raise OsmosisError(f"has no {error.args[0]}.") from error
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise OsmosisError(f"is invalid: {error}.") from error
    if not layout.layers:
        raise OsmosisError("has no layers.")
    for _, matrix in layout.matrices():
        sizes_of_matrix = (matrix.inputs, matrix.outputs)
        if not all(map(_is_count, (matrix.experts, *sizes_of_matrix))) or 0 in sizes_of_matrix:
            raise OsmosisError(f"has an invalid size of {matrix.name}.")
    numbers = [
        number
        for layer in layout.layers
        for number in (
            layer.heads,
            layer.wide,
            layer.other_parameters,
            layer.experts_per_token,
            layer.cached_width,
        )
    ]
    if not all(map(_is_count, numbers)):
        raise OsmosisError("has invalid sizes.")
    return layout


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**31


def _text_config(config: Config) -> Config:
    return config.get("text_config") or config


def _layer_kinds(sizes: Config) -> list[str]:
    kinds = sizes.get("layer_types") or []
    interval, layers = sizes.get("full_attention_interval") or 1, sizes.get("num_hidden_layers") or 0
    are_kinds = isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
    if not (are_kinds and _is_count(interval) and _is_count(layers)):
        raise OsmosisError("has invalid layers.")
    if max(layers, len(kinds)) > _MOST_LAYERS:
        raise OsmosisError(f"has more than {_MOST_LAYERS:,} layers.")
    if kinds:
        return list(kinds)
    return [LINEAR_ATTENTION if (number + 1) % interval else "full_attention" for number in range(layers)]


def _layer(family: _Family, sizes: Config, number: int, kind: str) -> DecoderLayer:
    hidden = sizes["hidden_size"]
    normed = other = family.norms * hidden
    widths, heads = (0, 0, 0, 0), None
    if kind == LINEAR_ATTENTION:
        attention, more = _linear_attention(sizes)
        heads = tuple(
            sizes[f"linear_{each}"] for each in ("num_value_heads", "key_head_dim", "value_head_dim")
        )
    elif family.attention == "latent":
        attention, more, widths = _latent_attention(family, sizes)
    else:
        attention, more, widths = _attention(family, sizes)
    if family.attention == "latent" or _flag(family.qk_norm, sizes):
        normed += widths[0] + widths[1]
    is_full = kind == "full_attention" and "layer_types" in sizes
    mlp, also, wide, used = _mlp(family, sizes, number)
    return DecoderLayer(
        family.attention,
        sizes["num_attention_heads"],
        0 if is_full or not sizes.get("use_sliding_window", True) else sizes.get("sliding_window", 0),
        normed,
        (*attention, *mlp),
        other + more + also,
        *widths,
        wide,
        used,
        heads,
    )


def _attention(family: _Family, sizes: Config) -> tuple[list[Matrix], int, tuple[int, int, int, int]]:
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    head = sizes.get("head_dim") or hidden // heads
    query, key = heads * head, (sizes.get("num_key_value_heads") or heads) * head
    asked = 2 * query if family.gated_query else query
    if family.fused_qkv:
        inputs = [Matrix("self_attn.qkv_proj", hidden, query + 2 * key)]
    else:
        inputs = [
            Matrix("self_attn.q_proj", hidden, asked),
            Matrix("self_attn.k_proj", hidden, key),
            Matrix("self_attn.v_proj", hidden, key),
        ]
    other = (asked + 2 * key) * _flag(family.qkv_bias, sizes) + hidden * _flag(family.output_bias, sizes)
    other += 2 * head * _flag(family.qk_norm, sizes) + heads * (family.attention == "sinks")
    return [*inputs, Matrix("self_attn.o_proj", query, hidden)], other, (query, key, key, 2 * key)


def _latent_attention(family: _Family, sizes: Config) -> tuple[list[Matrix], int, tuple[int, int, int, int]]:
    hidden, heads, latent = sizes["hidden_size"], sizes["num_attention_heads"], sizes["kv_lora_rank"]
    rope, plain, value = sizes["qk_rope_head_dim"], sizes["qk_nope_head_dim"], sizes["v_head_dim"]
    query, low = heads * (rope + plain), sizes["q_lora_rank"]
    bias = _flag(family.qkv_bias, sizes)
    matrices = (
        [Matrix("self_attn.q_a_proj", hidden, low), Matrix("self_attn.q_b_proj", low, query)]
        if low
        else [Matrix("self_attn.q_proj", hidden, query)]
    )
    matrices += [
        Matrix("self_attn.kv_a_proj_with_mqa", hidden, latent + rope),
        # vLLM folds it into the query and output of cached tokens, without its adapter.
        Matrix("self_attn.kv_b_proj", latent, heads * (plain + value), is_frozen=True),
        Matrix("self_attn.o_proj", heads * value, hidden),
    ]
    other = (low or 0) * (1 + bias) + latent + (latent + rope + hidden) * bias
    return matrices, other, (query, query, heads * value, latent + rope)


def _linear_attention(sizes: Config) -> tuple[list[Matrix], int]:
    """Gated DeltaNet (arXiv:2412.06464), in the two layouts that transformers has."""
    hidden, heads, head = (
        sizes["hidden_size"],
        sizes["linear_num_value_heads"],
        sizes["linear_value_head_dim"],
    )
    key, value = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"], heads * head
    if sizes["model_type"] == "qwen3_next":
        parts = {"in_proj_qkvz": 2 * key + 2 * value, "in_proj_ba": 2 * heads}
    else:
        parts = {"in_proj_qkv": 2 * key + value, "in_proj_z": value, "in_proj_b": heads, "in_proj_a": heads}
    matrices = [Matrix(f"linear_attn.{name}", hidden, width) for name, width in parts.items()]
    other = 2 * heads + head + (2 * key + value) * sizes["linear_conv_kernel_dim"]
    return [*matrices, Matrix("linear_attn.out_proj", value, hidden)], other


def _mlp(family: _Family, sizes: Config, number: int) -> tuple[list[Matrix], int, int, int]:
    """Return the matrices, other parameters, the width that one token uses, and its number of experts."""
    hidden = sizes["hidden_size"]
    kinds = sizes.get("mlp_layer_types")
    is_sparse = bool(family.router) and (
        kinds[number] == "sparse"
        if kinds
        else number >= sizes.get("first_k_dense_replace", 0)
        and number not in sizes.get("mlp_only_layers", ())
        and (number + 1) % sizes.get("decoder_sparse_step", 1) == 0
    )
    if not is_sparse:
        wide = sizes["intermediate_size"]
        return _gated("mlp", hidden, wide, fused=family.fused_mlp), 0, wide, 0
    count = next((sizes[key] for key in _EXPERT_COUNTS if sizes.get(key)), None) or sizes["num_experts"]
    wide = sizes.get("moe_intermediate_size") or sizes["intermediate_size"]
    used = sizes["num_experts_per_tok"]
    matrices = [
        Matrix(family.router, hidden, count, is_frozen=True),
        Matrix("mlp.experts.gate_up_proj", hidden, 2 * wide, count),
        Matrix("mlp.experts.down_proj", wide, hidden, count),
    ]
    other = (count + count * (2 * wide + hidden)) * family.expert_bias
    shared = wide * sizes.get("n_shared_experts", 0)
    if shared:
        matrices += _gated("mlp.shared_experts", hidden, shared)
    elif shared := sizes.get("shared_expert_intermediate_size", 0):
        matrices += _gated("mlp.shared_expert", hidden, shared)
        matrices.append(Matrix("mlp.shared_expert_gate", hidden, 1, is_frozen=True))
    return matrices, other, used * wide + shared, used


def _gated(name: str, hidden: int, wide: int, *, fused: bool = False) -> list[Matrix]:
    inner = {"gate_up_proj": 2 * wide} if fused else {"gate_proj": wide, "up_proj": wide}
    return [
        *(Matrix(f"{name}.{each}", hidden, width) for each, width in inner.items()),
        Matrix(f"{name}.down_proj", wide, hidden),
    ]


def _flag(flag: str | bool, sizes: Config) -> bool:
    return bool(sizes.get(flag)) if isinstance(flag, str) else flag

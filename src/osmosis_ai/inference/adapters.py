"""Merge a trained LoRA adapter into the NumPy model, to serve it without torch.

An adapter is a folder in PEFT format. Each matrix W it names becomes W + scale * B A
(Hu et al., "LoRA", 2021, equation 3), where scale is alpha / r, or alpha / sqrt(r) for
rank-stabilised adapters. An adapter with any other feature is refused, because a partial merge would be another model.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.inference.language_model import Floats
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.tool_calls import FORMAT_NAMES, FormatName

# What made the adapter; training writes it, and it travels with the adapter.
PROVENANCE_FILE = "provenance.json"
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MATRIX = re.compile(rf"{re.escape(_PREFIX)}(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter in memory."""

    base_model: str
    updates: Mapping[str, Floats]
    fingerprint: str

    @classmethod
    def load(cls, directory: Path) -> LoraAdapter:
        """Read an adapter's folder."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            config_bytes = (directory / CONFIG_FILE).read_bytes()
            data = (directory / WEIGHTS_FILE).read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"there is no adapter in `{directory}`: `{Path(str(error.filename)).name}` is missing."
            ) from None
        try:
            config, tensors = json.loads(config_bytes), load(data)
        except (ValueError, SafetensorError) as error:
            raise OsmosisError(f"the adapter in `{directory}` cannot be read: {error}") from error
        _refuse_what_is_not_plain(config, directory)
        updates = {
            f"{module}.weight": _scale(config, module) * (sides["B"] @ sides["A"])
            for module, sides in _pairs(tensors, directory).items()
        }
        fingerprint = hashlib.sha256(config_bytes + data).hexdigest()
        return cls(config.get("base_model_name_or_path") or "", updates, fingerprint)

    def merged_into(self, model: Model) -> Model:
        """Return a model with this adapter's updates; ``model`` stays as it is."""
        tensors = dict(model.tensors)
        for name, update in self.updates.items():
            shape = tensors[name].shape if name in tensors else None
            if shape != update.shape:
                found = f"is {shape[0]} x {shape[1]}" if shape else "does not exist"
                raise OsmosisError(
                    f"the adapter does not fit the model: it changes `{name}` "
                    f"({update.shape[0]} x {update.shape[1]}), which {found} there."
                )
            tensors[name] = tensors[name].astype(np.float64) + update
        both = hashlib.sha256(f"{model.fingerprint}:{self.fingerprint}".encode()).hexdigest()
        return Model(model.config, tensors, both)


def load_adapted_model(model_dir: Path, adapter_dir: Path) -> Model:
    """Read a model and merge an adapter into it."""
    return LoraAdapter.load(adapter_dir).merged_into(Model.load(model_dir))


def trained_tool_call_format(adapter_dir: Path) -> FormatName | None:
    """Return how tool calls were read when an adapter was trained, where its training was told; None otherwise."""
    try:
        settings = json.loads((adapter_dir / PROVENANCE_FILE).read_bytes())["settings"]
        told = settings.get("tool_call_format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # an adapter from elsewhere: what beside it has that name need not be ours
    return next((name for name in FORMAT_NAMES if name == told), None)


def _refuse_what_is_not_plain(config: Mapping[str, Any], directory: Path) -> None:
    """Raise for every kind of adapter whose effect is more than a sum of low-rank matrices."""
    strange = [key for key in ("use_dora", "modules_to_save", "trainable_token_indices") if config.get(key)]
    if config.get("bias", "none") != "none":
        strange.append("bias")
    kind = config.get("peft_type", "LORA")
    if kind != "LORA" or strange:
        what = f"uses {', '.join(f'`{key}`' for key in strange)}" if strange else f"is of the kind `{kind}`"
        raise OsmosisError(f"the NumPy engine cannot serve the adapter in `{directory}`: it {what}.")


def _pairs(tensors: Mapping[str, Any], directory: Path) -> dict[str, dict[str, Floats]]:
    """Order the matrices by module; each has an A (r x in) and a B (out x r)."""
    pairs: dict[str, dict[str, Floats]] = {}
    for name, tensor in tensors.items():
        matrix = _MATRIX.fullmatch(name)
        if matrix is None:
            raise OsmosisError(
                f"the adapter in `{directory}` cannot be served: `{name}` is not a matrix of a LoRA adapter."
            )
        pairs.setdefault(matrix["module"], {})[matrix["side"]] = tensor.astype(np.float64)
    for module, sides in pairs.items():
        if set(sides) != {"A", "B"}:
            raise OsmosisError(f"the adapter in `{directory}` is damaged: `{module}` has one matrix of two.")
    return pairs


def _scale(config: Mapping[str, Any], module: str) -> float:
    rank = _for_module(config.get("rank_pattern"), module, config["r"])
    alpha = _for_module(config.get("alpha_pattern"), module, config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _for_module(patterns: Mapping[str, float] | None, module: str, usual: float) -> float:
    """PEFT's rule: a pattern is a regular expression for the end of a module's name."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return usual

"""Any Hugging Face causal language model as a ``language_model`` network.

A slot's keys and values start at position 0, and a mask hides what follows its last token. A sequence can
therefore join, leave or continue a cached prefix without moving others, and a decoding step works on a view of the
cache. Other rows affect a result only through the order of sums: about 1e-15 in float64, 1e-6 in float32.

Models with other layer state (state space, linear attention) are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.language_model import Drawn, Ints, SamplingRows
from osmosis_ai.inference.low_rank import LowRankUpdate, LowRankUpdates
from osmosis_ai.inference.torch_sampling import draw

# A prompt is read in chunks of so many tokens a row, which bounds the memory of attention scores.
CHUNK_TOKENS = {"cpu": 256, "cuda": 2048}
FIRST_POSITIONS = 256
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class TorchDimensions:
    """What the batch and the API need to know of a model."""

    max_positions: int
    end_token_ids: frozenset[int]


class SlotCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of a fixed number of sequences; its length grows with the longest, by doubling."""

    def __init__(self, slots: int, max_positions: int) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._max_positions = max_positions
        self._tensors: list[list[torch.Tensor]] = []
        self._rows = slice(0, 0)
        self._row_index = self._positions = torch.empty(0)
        self._seen = 0

    def point_to(self, rows: slice, positions: torch.Tensor, seen: int) -> None:
        """Say where the next forward pass writes: R x S ``positions`` of ``rows``; it reads ``seen`` of them."""
        self._rows, self._positions, self._seen = rows, positions, seen
        self._row_index = torch.arange(rows.start, rows.stop, device=positions.device)[:, None]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: object,
        **_kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's layers: R x heads x S x head_dim of new keys and values in, all seen ones out."""
        if layer_idx == len(self._tensors):
            self._tensors.append([self._empty(key_states), self._empty(value_states)])
        views = []
        for index, states in enumerate((key_states, value_states)):
            tensor = self._tensors[layer_idx][index] = self._long_enough(self._tensors[layer_idx][index])
            tensor[self._row_index, :, self._positions] = states.transpose(1, 2)
            views.append(tensor[self._rows, :, : self._seen])
        return views[0], views[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given to the model, so nothing is counted from here."""
        return 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot ``target`` the first ``length`` positions of slot ``source``."""
        with torch.inference_mode():
            for layer in self._tensors:
                for tensor in layer:
                    tensor[target, :, :length] = tensor[source, :, :length]

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, since what is hidden by a probability of 0 must not be NaN.
        return states.new_zeros(self._slots, states.shape[1], 0, states.shape[3])

    def _long_enough(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[2] >= self._seen:
            return tensor
        length = max(tensor.shape[2], FIRST_POSITIONS)
        while length < self._seen:
            length *= 2
        missing = min(length, self._max_positions) - tensor.shape[2]
        return torch.nn.functional.pad(tensor, (0, 0, 0, missing))


class TorchModel:
    """A causal language model of transformers."""

    def __init__(
        self, model: PreTrainedModel, *, max_positions: int | None = None, fingerprint: str = ""
    ) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        if kinds - {FULL, SLIDING}:
            strange = ", ".join(f"`{kind}`" for kind in sorted(kinds - {FULL, SLIDING}))
            raise OsmosisError(
                f"this engine cannot serve `{config.model_type}` models: their layers of the kind {strange} "
                "remember more than keys and values.",
                hint="serve it with vLLM",
            )
        self.fingerprint = fingerprint
        limits = [getattr(config, "max_position_embeddings", None), max_positions]
        if not any(limits):
            raise OsmosisError(f"`{config.model_type}` models name no longest sequence; say `max_positions`.")
        self.config = TorchDimensions(
            min(limit for limit in limits if limit), _end_tokens(model.generation_config, model.config)
        )
        self._model = model.eval().requires_grad_(False)
        self._weights = dict(model.state_dict(keep_vars=True))
        self._updates = LowRankUpdates(self._model)
        self._window: int | None = getattr(config, "sliding_window", None)
        self._mixed = kinds == {FULL, SLIDING}
        self._all_sliding = self._window is not None and (not kinds or kinds == {SLIDING})
        self._chunk = CHUNK_TOKENS.get(model.device.type, CHUNK_TOKENS["cpu"])

    @classmethod
    def load(
        cls,
        model_path: str | Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        max_positions: int | None = None,
    ) -> TorchModel:
        """Load a model by its name or from a Hugging Face folder."""
        logging.disable_progress_bar()  # how progress is shown is the caller's matter
        chosen = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        try:
            model = AutoModelForCausalLM.from_pretrained(model_path, dtype=chosen).to(device)
        except (OSError, ValueError, ImportError) as error:
            raise OsmosisError(f"the model `{model_path}` cannot be loaded: {error}") from error
        return cls(model, max_positions=max_positions, fingerprint=_fingerprint(model, model_path))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = self._model.device
        return device

    @property
    def rounds_weights(self) -> bool:
        """Whether its type has too few bits for a small change of a weight; it then wants low-rank updates as such."""
        return bool(self._model.dtype.itemsize < torch.float32.itemsize)

    def new_cache(self, slots: int) -> SlotCache:
        """Make room for the keys and values of ``slots`` sequences."""
        return SlotCache(slots, self.config.max_positions)

    def extend(self, cache: SlotCache, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> torch.Tensor:
        """Append R x S right-padded tokens to the slots ``rows``; R x V logits after the wanted ones."""
        with torch.inference_mode():
            return self._extend(cache, rows, ids, starts, wanted)

    def _extend(self, cache: SlotCache, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> torch.Tensor:
        tokens = torch.from_numpy(ids).to(self.device)
        first = torch.from_numpy(starts).to(self.device)
        found: torch.Tensor | None = None
        for offset in range(0, ids.shape[1], self._chunk):
            chunk = tokens[:, offset : offset + self._chunk]
            width = chunk.shape[1]
            here = (wanted >= offset) & (wanted < offset + width)
            places = np.unique(wanted[here] - offset) if here.any() else np.array([width - 1])
            seen = min(int(starts.max()) + offset + width, self.config.max_positions)
            logits = self._forward(cache, rows, chunk, first + offset, seen, places)
            if len(places) == 1 and here.all():
                return logits[:, 0]  # as in every decoding step
            if found is None:
                found = logits.new_empty(len(ids), logits.shape[-1])
            which = np.searchsorted(places, wanted[here] - offset)
            found[np.flatnonzero(here)] = logits[np.flatnonzero(here), which]
        assert found is not None, "there are no tokens to append"
        return found

    def draw(self, logits: torch.Tensor, sources: Sequence[int] | slice, sampling: SamplingRows) -> Drawn:
        """Draw one token for each row of ``logits[sources]``."""
        with torch.inference_mode():
            return draw(logits[sources], sampling)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy the named tensors and apply low-rank updates, atomically.

        Raises:
            OsmosisError: A name is unknown or a shape is wrong.
        """
        for name, tensor in weights.items():
            own = self._weights.get(name)
            if own is None:
                raise OsmosisError(
                    f"the tensor `{name}` does not fit the model: the model has none of this name."
                )
            if tuple(own.shape) != tuple(tensor.shape):
                shapes = f"{tuple(tensor.shape)}, not {tuple(own.shape)}"
                raise OsmosisError(f"the tensor `{name}` does not fit the model: it has the shape {shapes}.")
        with torch.no_grad():
            for name, tensor in weights.items():
                if isinstance(tensor, LowRankUpdate):
                    self._updates.put(name, tensor.to(self.device))
                    continue
                self._weights[name].copy_(torch.as_tensor(tensor), non_blocking=True)

    def _forward(
        self,
        cache: SlotCache,
        rows: slice,
        ids: torch.Tensor,
        starts: torch.Tensor,
        seen: int,
        places: Ints,
    ) -> torch.Tensor:
        """Run the network over a chunk; R x len(places) x V logits."""
        # Padding may point past the last position; nobody reads what it computes there.
        positions = starts[:, None] + torch.arange(ids.shape[1], device=ids.device)
        positions = positions.clamp_(max=self.config.max_positions - 1)
        cache.point_to(rows, positions, seen)
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks(positions, seen),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.from_numpy(places).to(ids.device),
        )
        logits: torch.Tensor = output.logits
        return logits

    def _masks(self, positions: torch.Tensor, seen: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """R x 1 x S x seen, added to the scores: a token sees what is not behind it in its own slot."""
        distance = positions[:, None, :, None] - torch.arange(seen, device=positions.device)
        full = self._hiding(distance < 0)
        if self._window is None or not (self._mixed or self._all_sliding):
            return full
        sliding = self._hiding((distance < 0) | (distance >= self._window))
        return {FULL: full, SLIDING: sliding} if self._mixed else sliding

    def _hiding(self, hidden: torch.Tensor) -> torch.Tensor:
        dtype = self._model.dtype
        visible = torch.zeros((), dtype=dtype, device=hidden.device)
        return torch.where(hidden, torch.finfo(dtype).min, visible)


def end_tokens_of(model_path: str | Path) -> frozenset[int]:
    """Return the tokens that end a turn of a model, whose weights are not loaded for it; raises OsmosisError."""
    try:
        config = AutoConfig.from_pretrained(model_path)
        try:
            generation = GenerationConfig.from_pretrained(model_path)
        except OSError:  # a model need not have one
            generation = None
    except (OSError, ValueError) as error:
        raise OsmosisError(f"the model `{model_path}` cannot be read: {error}") from error
    return _end_tokens(generation, config)


def _end_tokens(generation: GenerationConfig | None, config: PretrainedConfig) -> frozenset[int]:
    """Those of the generation config, where chat models name them, or else of the model's."""
    named = getattr(generation, "eos_token_id", None)
    ends = named if named is not None else config.get_text_config().eos_token_id
    if ends is None:
        return frozenset()
    return frozenset(ends if isinstance(ends, list) else [ends])


def _fingerprint(model: PreTrainedModel, path: str | Path) -> str:
    """Of the commit on the hub or the files in the folder; their gigabytes are not read for it."""
    files = sorted(Path(path).glob("*.safetensors"))
    facts = [(file.name, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    commit = getattr(model.config, "_commit_hash", None)
    return hashlib.sha256(repr((str(path), commit, facts)).encode()).hexdigest()

"""Any Hugging Face causal language model as a network of ``engine``, on CPU or GPU. Importing this loads torch.

A slot's keys and values start at position 0, and a mask hides what follows its last token. A sequence can therefore
join, leave or continue a cached prefix without moving others. Other rows affect a result only through the order of
sums: about 1e-15 in float64, 1e-6 in float32. Models with other layer state (state space, linear attention) are refused.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Cache,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import FormatName
from osmosis_ai.inference.chat import ChatFormat, Messages, TemplateError, detect_tool_calls
from osmosis_ai.inference.engine import (
    Dimensions,
    Drawn,
    Ints,
    SamplingRows,
    check_shapes,
    draw_tokens,
    refused_memory,
)

# A prompt is read in chunks of so many tokens a row, which bounds the memory of attention scores.
CHUNK_TOKENS = {"cpu": 256, "cuda": 2048}
# The cache grows by so many positions at a time, and by a quarter of its sequences.
POSITION_STEP = 256
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class LowRankUpdate:
    """``scale`` * B A, computed next to one linear layer.

    A bfloat16 weight has 8 bits: after ten steps at a rate of 1e-5, only a fifth of an update survives in W + BA.
    """

    a: Tensor
    b: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.b.shape[0], self.a.shape[1]

    def to(self, device: torch.device) -> LowRankUpdate:
        return LowRankUpdate(self.a.to(device), self.b.to(device), self.scale)

    def added_to(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Add the update to the layer's outputs; the sum is computed in the update's own type, as PEFT does."""
        update = linear(linear(inputs.to(self.a.dtype), self.a), self.b) * self.scale
        return (outputs + update).to(outputs.dtype)


class SlotCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of sequences: the running ones in one tensor, each ended one in a tensor of its length."""

    def __init__(self, running: int, max_positions: int) -> None:
        super().__init__(layers=[])
        self._most = running, max_positions
        self._size = 0, 0
        # The keys, then the values of each layer; rows x heads x positions x head_dim.
        self._tensors: list[Tensor] = []
        self._kept: dict[int, list[Tensor]] = {}
        self._rows = slice(0, 0)
        self._row_index = self._positions = torch.empty(0)
        self._seen = 0

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in chain(self._tensors, *self._kept.values()))

    def fit(self, rows: int, positions: int) -> None:
        """Grow for the first ``rows`` slots of so many positions, or shrink if they need less than half."""
        wanted = self._rounded(rows, positions)
        larger = max(wanted[0], self._size[0]), max(wanted[1], self._size[1])
        if larger != self._size:
            self._resize(*larger)
        elif 2 * math.prod(wanted) < math.prod(self._size):
            self._resize(*wanted)

    def point_to(self, rows: slice, positions: Tensor, seen: int) -> None:
        """Set where the next forward pass writes (R x S ``positions`` of ``rows``) and how many positions it reads."""
        if rows.stop > self._size[0] or seen > self._size[1]:
            wanted = self._rounded(rows.stop, seen)
            self._resize(max(wanted[0], self._size[0]), max(wanted[1], self._size[1]))
        self._rows, self._positions, self._seen = rows, positions, seen
        self._row_index = torch.arange(rows.start, rows.stop, device=positions.device)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Called by the layers: store new keys and values (R x heads x S x head_dim), return all that are read."""
        if 2 * layer_idx == len(self._tensors):
            # Zeros: a NaN would survive the attention mask.
            rows, length = self._size
            self._tensors += [
                s.new_zeros(rows, s.shape[1], length, s.shape[3]) for s in (key_states, value_states)
            ]
        views = []
        for index, states in enumerate((key_states, value_states), 2 * layer_idx):
            tensor = self._tensors[index]
            tensor[self._row_index, :, self._positions] = states.transpose(1, 2)
            views.append(tensor[self._rows, :, : self._seen])
        return views[0], views[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always passed to the model."""
        return 0

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first positions of a slot to another; slots from the number of running ones on are ended ones."""
        sources = self._kept.get(source) or [tensor[source] for tensor in self._tensors]
        if target < self._most[0]:
            for tensor, states in zip(self._tensors, sources, strict=True):
                tensor[target, :, :length] = states[:, :length]
        elif length:
            self._kept[target] = [states[:, :length].clone() for states in sources]
        else:
            self._kept.pop(target, None)

    def _rounded(self, rows: int, positions: int) -> tuple[int, int]:
        steps = 1 << max(0, rows.bit_length() - 3), POSITION_STEP
        wanted = (-(-count // step) * step for count, step in zip((rows, positions), steps, strict=True))
        return min(next(wanted), self._most[0]), min(next(wanted), self._most[1])

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _resize(self, rows: int, length: int) -> None:
        common = slice(0, min(rows, self._size[0])), slice(None), slice(0, min(length, self._size[1]))
        self._size = rows, length
        for index, old in enumerate(self._tensors):
            new = self._tensors[index] = old.new_zeros(rows, old.shape[1], length, old.shape[3])
            new[common] = old[common]


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
        self.device: torch.device = model.device
        # Whether small changes of a weight are lost in its type, so that it needs low-rank updates.
        self.rounds_weights = _rounds_weights(model)
        limits = [getattr(config, "max_position_embeddings", None), max_positions]
        if not any(limits):
            raise OsmosisError(f"`{config.model_type}` models name no longest sequence; set `max_positions`.")
        ends = _end_tokens(model.generation_config, model.config)
        self.config = Dimensions(min(limit for limit in limits if limit), ends)
        self._model = model.eval().requires_grad_(False)
        self._weights = dict(model.state_dict(keep_vars=True))
        self._updates: dict[str, LowRankUpdate] = {}
        # With a window, layers of the kind SLIDING see only so many positions; a model without kinds has only these.
        window = getattr(config, "sliding_window", None) if kinds != {FULL} else None
        self._window: int | None = window
        self._mixed = kinds == {FULL, SLIDING}
        # Its name before transformers 5.24 was `past_key_values`.
        self._cache_argument = (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        )
        self._chunk = CHUNK_TOKENS.get(model.device.type, CHUNK_TOKENS["cpu"])

    @classmethod
    def load(
        cls,
        model_path: str | Path,
        *,
        adapter: Path | None = None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        max_positions: int | None = None,
    ) -> TorchModel:
        """Load a model by its name or from a Hugging Face folder, with an adapter; raises OsmosisError.

        In float32 the adapter is merged into the weights; in bfloat16 most of a small update would be rounded away, so
        only that of experts is merged, which PEFT would otherwise do for every token.
        """
        logging.disable_progress_bar()
        chosen = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=chosen).to(device)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            refused = refused_memory(error)
            if refused is None and isinstance(error, RuntimeError):
                raise
            reason = f"{refused} could not be allocated." if refused else error
            raise OsmosisError(f"the model `{model_path}` cannot be loaded: {reason}") from error
        fingerprint = _fingerprint(model, model_path, adapter)
        if adapter is not None:
            from peft import PeftModel
            from peft.tuners.lora.layer import ParamWrapper

            try:
                with adapting():
                    adapted: Any = PeftModel.from_pretrained(model, str(adapter), autocast_adapter_dtype=True)
                if _rounds_weights(model):
                    for layer in adapted.modules():
                        if isinstance(layer, ParamWrapper):
                            layer.merge()
                    model = adapted.get_base_model()
                else:
                    model = adapted.merge_and_unload()
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise OsmosisError(
                    f"the adapter in `{adapter}` cannot be applied to `{model_path}`: {error}"
                ) from error
        return cls(model, max_positions=max_positions, fingerprint=fingerprint)

    def new_cache(self, running: int, kept: int = 0) -> SlotCache:
        return SlotCache(running, self.config.max_positions)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def extend(self, cache: SlotCache, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> Tensor:
        tokens = torch.from_numpy(ids).to(self.device)
        first = torch.from_numpy(starts).to(self.device)
        found: Tensor | None = None
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

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def draw(self, logits: Tensor, sources: Sequence[int] | slice, sampling: SamplingRows) -> list[Drawn]:
        return draw_tokens(torch, logits[sources], sampling)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        check_shapes(self._weights, weights)
        with torch.no_grad():
            for name, tensor in weights.items():
                if isinstance(tensor, LowRankUpdate):
                    self._update(name, tensor.to(self.device))
                else:
                    self._weights[name].copy_(torch.as_tensor(tensor), non_blocking=True)

    def _update(self, name: str, update: LowRankUpdate) -> None:
        if name not in self._updates:
            layer: nn.Module = self._model.get_submodule(name.removesuffix(".weight"))
            layer.register_forward_hook(lambda _, inputs, out: self._updates[name].added_to(out, inputs[0]))
        self._updates[name] = update

    def _forward(
        self, cache: SlotCache, rows: slice, ids: Tensor, starts: Tensor, seen: int, places: Ints
    ) -> Tensor:
        """Run the network over a chunk; R x len(places) x V logits."""
        # Padding may point past the last position; its results are not used.
        positions = starts[:, None] + torch.arange(ids.shape[1], device=ids.device)
        positions = positions.clamp_(max=self.config.max_positions - 1)
        cache.point_to(rows, positions, seen)
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks(positions, seen),
            use_cache=True,
            logits_to_keep=torch.from_numpy(places).to(ids.device),
            **{self._cache_argument: cache},
        )
        logits: Tensor = output.logits
        return logits

    def _masks(self, positions: Tensor, seen: int) -> Tensor | dict[str, Tensor]:
        """R x 1 x S x seen, added to the scores: a token sees the earlier positions of its own slot."""
        distance = positions[:, None, :, None] - torch.arange(seen, device=positions.device)
        full = self._hiding(distance < 0)
        if self._window is None:
            return full
        sliding = self._hiding((distance < 0) | (distance >= self._window))
        return {FULL: full, SLIDING: sliding} if self._mixed else sliding

    def _hiding(self, hidden: Tensor) -> Tensor:
        dtype = self._model.dtype
        visible = torch.zeros((), dtype=dtype, device=hidden.device)
        return torch.where(hidden, torch.finfo(dtype).min, visible)


@contextmanager
def adapting() -> Iterator[None]:
    """Suppress PEFT's warning about a deprecated name of transformers while it adds an adapter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def end_tokens_of(model_path: str | Path) -> frozenset[int]:
    """Return the tokens that end a turn of a model, without loading its weights; raises OsmosisError."""
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
    """Return those of the generation config, where chat models name them, otherwise the model's."""
    named = getattr(generation, "eos_token_id", None)
    ends = named if named is not None else config.get_text_config().eos_token_id
    if ends is None:
        return frozenset()
    return frozenset(ends if isinstance(ends, list) else [ends])


def _rounds_weights(model: PreTrainedModel) -> bool:
    return bool(model.dtype.itemsize < torch.float32.itemsize)


def _fingerprint(model: PreTrainedModel, path: str | Path, adapter: Path | None) -> str:
    """Digest the commit on the hub or the names, sizes and times of the files, not their gigabytes."""
    files = sorted(Path(path).glob("*.safetensors"))
    facts = [(file.name, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    commit = getattr(model.config, "_commit_hash", None)
    digest = hashlib.sha256(repr((str(path), commit, facts)).encode())
    for file in sorted(adapter.iterdir()) if adapter is not None else ():
        digest.update(file.read_bytes())
    return digest.hexdigest()


class PretrainedChat(ChatFormat):
    """The chat template and tokenizer of a model of transformers.

    Without a ``tool_call_format``, it is detected. ``note`` is called with a problem of the template when tools are used;
    the default logs a warning.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        tool_call_format: FormatName | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        if not tokenizer.is_fast:
            raise OsmosisError(f"`{tokenizer.name_or_path}` has no fast tokenizer, which serving it needs.")
        if not tokenizer.chat_template:
            raise OsmosisError(
                f"`{tokenizer.name_or_path}` has no chat template, so it cannot hold a conversation.",
                hint="train the instruct version of the model, or put a `chat_template.jinja` in its folder",
            )
        super().__init__(tokenizer.backend_tokenizer)
        self._tokenizer = tokenizer
        self.tool_calls = detect_tool_calls(
            self._apply,
            source=str(tokenizer.chat_template),
            has_token=lambda token: self.token_id(token) is not None,
            chosen=tool_call_format,
            note=note,
        )

    @classmethod
    def load(cls, model_path: str | Path, **options: Any) -> PretrainedChat:
        """Load the tokenizer of a model by its name or from a Hugging Face folder; raises OsmosisError."""
        try:
            return cls(AutoTokenizer.from_pretrained(model_path), **options)
        except (OSError, ValueError) as error:
            raise OsmosisError(f"the tokenizer of `{model_path}` cannot be loaded: {error}") from error

    def render(self, messages: Messages, tools: Messages = (), *, add_generation_prompt: bool = True) -> str:
        fitted = [self.tool_calls.fitted(message) for message in messages]
        return self._apply(fitted, tools, add_generation_prompt=add_generation_prompt)

    def _apply(self, messages: Messages, tools: Messages, *, add_generation_prompt: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error
        return text

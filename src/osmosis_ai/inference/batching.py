"""Continuous batching: sequences join and leave a running batch between two steps.

The generating sequences occupy the first n slots without gaps, so that a step works on slices. The last sequence moves
into the slot of one that leaves. Results depend neither on the slot, nor on other sequences, nor on cached prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal

import numpy as np

from osmosis_ai.inference.language_model import CacheT, Ints, LanguageModel, LogitsT, SamplingRows
from osmosis_ai.inference.slots import SequenceSlots

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One generated token."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What is asked of the model: one continuation of one prompt."""

    prompt: tuple[int, ...]
    max_tokens: int
    stream: int
    stop_tokens: frozenset[int]
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Emission:
    """A token of a generation, and why it was the last one (None when more follow)."""

    generation: Generation
    token: SampledToken
    finish_reason: FinishReason | None


class ContinuousBatch(Generic[CacheT, LogitsT]):
    """The sequences that are generating now."""

    def __init__(self, model: LanguageModel[CacheT, LogitsT], capacity: int, *, kept: int = 32) -> None:
        self.capacity = capacity
        self.version = 0
        self._model = model
        self._slots = SequenceSlots(model, running=capacity, kept=kept)
        self._running: list[Generation] = []
        self._generated = np.zeros(capacity, np.int64)
        self._last_tokens = np.zeros(capacity, np.int64)
        self._streams = np.zeros(capacity, np.uint64)
        self._temperatures = np.zeros(capacity)
        self._top_ps = np.zeros(capacity)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def free(self) -> int:
        """How many more sequences can join now."""
        return self.capacity - len(self._running)

    def admit(self, newcomers: Sequence[Generation]) -> list[Emission]:
        """Read the prompts of ``newcomers`` together and draw the first token of each."""
        if len(newcomers) > self.free:
            raise ValueError(f"{len(newcomers)} sequences do not fit in {self.free} free slots")
        first = len(self._running)
        # Equal prompts are read once: in the first slots, then copied to the others.
        ordered = sorted(newcomers, key=lambda generation: generation.prompt)
        distinct = list(dict.fromkeys(generation.prompt for generation in ordered))
        logits = self._read_prompts(distinct, first)
        sources = [distinct.index(generation.prompt) for generation in ordered]
        # From the last slot down, a copy never overwrites a prompt that is still to be copied:
        # prompts are in order, so none lies behind the slots that need it.
        for offset in reversed(range(len(ordered))):
            self._slots.copy(first + sources[offset], first + offset, len(ordered[offset].prompt))
        for generation in ordered:
            self._occupy(generation)
        return self._draw(first, logits, sources)

    def step(self) -> list[Emission]:
        """Draw the next token of every running sequence."""
        count = len(self._running)
        if not count:
            return []
        rows = slice(0, count)
        lasts = self._last_tokens[rows]
        starts = self._slots.lengths[rows]
        logits = self._model.extend(
            self._slots.cache, rows, lasts[:, None], starts, np.zeros(count, np.int64)
        )
        self._slots.append(rows, lasts)
        return self._draw(0, logits, slice(None))

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Go on with other weights."""
        self._model.load_weights(weights)
        self.version = version
        prompts = [self._slots.tokens(slot) for slot in range(len(self._running))]
        self._slots.forget()
        if prompts:
            self._extend(0, prompts, np.zeros(len(prompts), np.int64))

    def discard(self, unwanted: Callable[[Generation], bool]) -> None:
        """Remove the sequences nobody waits for any more."""
        self._vacate(slot for slot, generation in enumerate(self._running) if unwanted(generation))

    def _read_prompts(self, prompts: list[tuple[int, ...]], first: int) -> LogitsT:
        """Compute the prompts in the slots from ``first`` on; logits of the token after each."""
        starts = np.zeros(len(prompts), np.int64)
        for row, prompt in enumerate(prompts):
            source, known = self._slots.longest_prefix(prompt)
            self._slots.copy(source, first + row, known)
            starts[row] = known
        rest = [prompt[known:] for prompt, known in zip(prompts, starts.tolist(), strict=True)]
        return self._extend(first, rest, starts)

    def _extend(self, first: int, texts: Sequence[Sequence[int]], starts: Ints) -> LogitsT:
        """Compute tokens behind what the slots from ``first`` on hold; logits of the token after each text."""
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)] = tokens
        wanted = np.array([len(tokens) - 1 for tokens in texts])
        rows = slice(first, first + len(texts))
        logits = self._model.extend(self._slots.cache, rows, ids, starts, wanted)
        for row, tokens in enumerate(texts):
            self._slots.fill(first + row, tokens, int(starts[row]))
        return logits

    def _occupy(self, generation: Generation) -> None:
        slot = len(self._running)
        self._running.append(generation)
        self._generated[slot] = 0
        self._streams[slot] = generation.stream
        self._temperatures[slot] = generation.temperature
        self._top_ps[slot] = generation.top_p

    def _draw(self, first: int, logits: LogitsT, sources: Sequence[int] | slice) -> list[Emission]:
        """Choose a token for every slot from ``first`` on; finished sequences leave."""
        rows = slice(first, len(self._running))
        generations = self._running[rows]
        sampling = SamplingRows(
            self._temperatures[rows],
            self._top_ps[rows],
            self._streams[rows],
            self._slots.lengths[rows],
            [generation.top_logprobs for generation in generations],
        )
        drawn = self._model.draw(logits, sources, sampling)
        self._last_tokens[rows] = drawn.tokens
        self._generated[rows] += 1
        emissions = [
            Emission(
                generation,
                SampledToken(token, logprob, top, self.version),
                self._finish_reason(slot, generation, token),
            )
            for slot, generation, token, logprob, top in zip(
                range(first, rows.stop),
                generations,
                drawn.tokens,
                drawn.logprobs,
                drawn.likeliest,
                strict=True,
            )
        ]
        self._vacate(first + row for row, emission in enumerate(emissions) if emission.finish_reason)
        return emissions

    def _finish_reason(self, slot: int, generation: Generation, token: int) -> FinishReason | None:
        if token in generation.stop_tokens:
            return "stop"
        return "length" if self._generated[slot] >= generation.max_tokens else None

    def _vacate(self, slots: Iterable[int]) -> None:
        """Free slots; from the highest down, so that the sequence moved into a hole is one that stays."""
        for slot in sorted(slots, reverse=True):
            self._slots.keep(slot)
            last = len(self._running) - 1
            if slot != last:
                self._slots.copy(last, slot, int(self._slots.lengths[last]))
                self._running[slot] = self._running[last]
                for column in self._columns():
                    column[slot] = column[last]
            self._running.pop()

    def _columns(self) -> tuple[np.ndarray, ...]:
        return (
            self._generated,
            self._last_tokens,
            self._streams,
            self._temperatures,
            self._top_ps,
        )

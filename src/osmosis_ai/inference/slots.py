"""KV cache slots of generating and recently finished sequences.

Prompts often share a prefix: the turns of a conversation, the attempts on a row, the system prompt. A new sequence
copies its longest cached prefix and computes only the rest; copying a position costs a thousandth of computing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np

from osmosis_ai.inference.language_model import CacheT, Ints, LanguageModel


class SequenceSlots(Generic[CacheT]):
    """Slots 0 to ``running`` - 1 are for sequences that generate, ``kept`` more for ended ones."""

    def __init__(self, model: LanguageModel[CacheT, Any], *, running: int, kept: int) -> None:
        self.cache = model.new_cache(running + kept)
        self.lengths: Ints = np.zeros(running + kept, np.int64)
        self._tokens = np.zeros((running + kept, model.config.max_positions), np.int32)
        self._first_kept = running
        self._last_used = np.zeros(running + kept, np.int64)
        self._clock = 0

    def fill(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Note that ``slot`` holds ``tokens`` from position ``start`` on, and nothing behind them."""
        end = start + len(tokens)
        self._tokens[slot, start:end] = tokens
        self.lengths[slot] = end

    def append(self, rows: slice, tokens: Ints) -> None:
        """Note that each of ``rows`` holds one more token."""
        slots = np.arange(rows.start, rows.stop)
        self._tokens[slots, self.lengths[rows]] = tokens
        self.lengths[rows] += 1

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target`` the first ``length`` positions of ``source``, and nothing else."""
        if source != target:
            self.cache.copy(source, target, length)
            self._tokens[target, :length] = self._tokens[source, :length]
        self.lengths[target] = length

    def tokens(self, slot: int) -> list[int]:
        """Return what ``slot`` holds."""
        held: list[int] = self._tokens[slot, : self.lengths[slot]].tolist()
        return held

    def forget(self) -> None:
        """Hold nothing any more: whatever the slots were computed with has changed."""
        self.lengths[:] = 0

    def keep(self, slot: int) -> None:
        """Remember an ended sequence, in the place of the one that was of no use for longest."""
        if len(self.lengths) > self._first_kept:
            oldest = self._first_kept + int(self._last_used[self._first_kept :].argmin())
            self.copy(slot, oldest, int(self.lengths[slot]))
            self._touch(oldest)

    def longest_prefix(self, prompt: Sequence[int]) -> tuple[int, int]:
        """Return the slot that holds most of ``prompt`` from its beginning, and how many tokens."""
        wanted = np.array(prompt[:-1], np.int32)
        equal = self._tokens[:, : len(wanted)] == wanted
        # The first difference of each slot, or the length of the prompt where there is none.
        common = np.where(equal.all(axis=1), len(wanted), equal.argmin(axis=1) if len(wanted) else 0)
        held = np.minimum(common, self.lengths)
        best = int(held.argmax())
        self._touch(best)
        return best, int(held[best])

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._last_used[slot] = self._clock

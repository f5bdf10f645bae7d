"""Data order: the rows of a step as a pure function of the seed and the step number.

Every epoch is its own permutation, so each row occurs once per epoch. The last batch of an epoch may be
smaller. Resuming needs no stored state.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class DataOrder:
    """The order of the training rows."""

    rows: tuple[int, ...]
    batch_size: int
    epochs: int
    seed: int
    max_steps: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches in a pass over the rows."""
        return math.ceil(len(self.rows) / self.batch_size)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        planned = self.epochs * self.steps_per_epoch
        return planned if self.max_steps is None else min(planned, self.max_steps)

    def batch(self, step: int) -> Sequence[int]:
        """Return the rows of step ``step``, counted from 1."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        start = position * self.batch_size
        return _permutation(self.rows, self.seed, epoch)[start : start + self.batch_size]


@lru_cache(maxsize=2)
def _permutation(rows: tuple[int, ...], seed: int, epoch: int) -> Sequence[int]:
    return random.Random(f"{seed}:{epoch}").sample(rows, len(rows))

"""Which rows two runs share, and whether what they measured on them may be compared at all.

Rows match by what they are, never by their place in a file. A comparison that would mislead is refused with what is
wrong with it; what only weakens it is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples
    from osmosis_ai.evaluation.statistics import Integers

LEAST_SHARED = 0.5
"""Of the smaller run's rows: with fewer in common, a gate decides nothing."""


@dataclass(frozen=True)
class Allowances:
    """What the user allows that is refused otherwise."""

    unpaired: bool = False
    partial: bool = False
    different_grader: bool = False
    same: bool = False
    imported: bool = False


@dataclass(frozen=True)
class ChangedRow:
    """A row that has the same prompt in both runs and another expected answer: positions in either."""

    a: int
    b: int


@dataclass(frozen=True, eq=False)
class MatchedRows:
    """The rows of two runs, told apart.

    Attributes:
        index_a, index_b: positions of the common rows in either run, pairwise.
        only_a, only_b: positions of the others; rows in ``changed`` are among them.
        changed: rows with the same prompt and another expected answer.
        share: the common ones, of the rows of the smaller run.
        notes: how they were matched, a sentence each.
    """

    index_a: Integers
    index_b: Integers
    only_a: Integers
    only_b: Integers
    changed: tuple[ChangedRow, ...] = ()
    share: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def common(self) -> int:
        """How many rows both have."""
        return int(self.index_a.size)

    @property
    def words(self) -> str:
        """It in words: ``88 of 100 and 120 rows are common``."""
        return f"{self.common:,} of {self.common + self.only_a.size:,} and {self.common + self.only_b.size:,} rows are common"


@dataclass(frozen=True)
class Comparability:
    """What a comparison of two runs has to say beside its numbers.

    Attributes:
        matched: their rows; None where they are compared as runs on different rows.
        notes: a sentence each.
        label: stands at every number; None for runs that were graded alike.
        undecided: why no gate may pass or fail on it, in a sentence; None when it may.
    """

    matched: MatchedRows | None
    notes: tuple[str, ...] = ()
    label: str | None = None
    undecided: str | None = None


def match_rows(a: RunSamples, b: RunSamples) -> MatchedRows:
    """Match the rows of two runs by what they are; of runs without digests, by dataset and place in it."""
    import numpy as np

    keys_a, keys_b, notes = _shared_keys(a, b)
    place_b = {key: place for place, key in reversed(list(enumerate(keys_b)))}
    pairs = [(place, place_b[key]) for place, key in enumerate(keys_a) if key in place_b]
    index = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    only_a = np.setdiff1d(np.arange(len(keys_a)), index[:, 0])
    only_b = np.setdiff1d(np.arange(len(keys_b)), index[:, 1])
    smaller = min(len(keys_a), len(keys_b))
    return MatchedRows(
        index_a=index[:, 0],
        index_b=index[:, 1],
        only_a=only_a,
        only_b=only_b,
        share=len(pairs) / smaller if smaller else 0.0,
        notes=notes,
    )


def _shared_keys(a: RunSamples, b: RunSamples) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return what the rows of either are known by, in the one way that both know."""
    if a.keyed_by == b.keyed_by == "row_digest":
        return list(a.row_keys), list(b.row_keys), ()
    notes = tuple(dict.fromkeys((*a.notes, *b.notes)))
    return _by_place(a), _by_place(b), notes


def _by_place(run: RunSamples) -> list[str]:
    dataset = run.inputs.dataset_sha256 or run.run_id
    return [f"{dataset}:{place}" for place in run.source_rows.tolist()]

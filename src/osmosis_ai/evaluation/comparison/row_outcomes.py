"""Rows by what became of them: those a candidate fixed, those it broke, and those nobody can tell of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.comparison.row_changes import row_changes

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_pairs import RunPair


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """A row that one run passes more often than the other.

    Attributes:
        source_row: its place in the baseline's dataset, from 0.
        key: what the row is.
        passes, attempts: of the baseline and of the candidate, over scored attempts.
        p, p_adjusted: of the exact test, alone and among all rows.
    """

    source_row: int
    key: str
    passes: tuple[int, int]
    attempts: tuple[int, int]
    p: float
    p_adjusted: float

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        sides = [
            {"passes": passes, "attempts": attempts}
            for passes, attempts in zip(self.passes, self.attempts, strict=True)
        ]
        return {
            "source_row_index": self.source_row,
            "digest": self.key,
            "baseline": sides[0],
            "candidate": sides[1],
            "p": self.p,
            "p_adjusted": self.p_adjusted,
        }


@dataclass(frozen=True, slots=True)
class OutcomesOfKind:
    """Rows of one kind: how many there are, and the first of them."""

    count: int
    shown: tuple[RowOutcome, ...]

    def data(self) -> dict[str, Any]:
        """Return them as scripts see them."""
        return {"count": self.count, "rows": [row.data() for row in self.shown]}


@dataclass(frozen=True, slots=True)
class RowOutcomes:
    """The rows that both runs have a score of.

    Attributes:
        compared: how many those are.
        fixed, broken: the candidate passes them more often, or less, beyond chance; the surest first.
        unstable: they changed, and chance may have done it; the largest change first.
    """

    compared: int
    fixed: OutcomesOfKind
    broken: OutcomesOfKind
    unstable: OutcomesOfKind

    def data(self) -> dict[str, Any]:
        """Return them as scripts see them."""
        kinds = {kind: getattr(self, kind).data() for kind in ("fixed", "broken", "unstable")}
        return {"compared": self.compared, **kinds}


def row_outcomes(pair: RunPair, *, shown: int) -> RowOutcomes:
    """Sort the rows of a paired comparison by what became of them.

    Args:
        pair: the runs.
        shown: how many rows of each kind are named.
    """
    import numpy as np

    a, b = pair.a.pass_counts(), pair.b.pass_counts()
    both = np.flatnonzero((a.counts > 0) & (b.counts > 0))
    tables = (a.passes[both], a.counts[both], b.passes[both], b.counts[both])
    found = row_changes(*tables)
    sources, keys = pair.a.run.source_rows, pair.a.run.row_keys

    def named(place: int) -> RowOutcome:
        row = int(pair.a.index[both[place]])
        passes_a, tried_a, passes_b, tried_b = (int(part[place]) for part in tables)
        return RowOutcome(
            source_row=int(sources[row]),
            key=keys[row],
            passes=(passes_a, passes_b),
            attempts=(tried_a, tried_b),
            p=float(found.p[place]),
            p_adjusted=float(found.p_adjusted[place]),
        )

    kinds = (
        OutcomesOfKind(int(kind.size), tuple(named(place) for place in kind[:shown].tolist()))
        for kind in (found.fixed, found.broken, found.unstable)
    )
    return RowOutcomes(int(both.size), *kinds)

"""Row selection of a run, decided once at submission.

The recorded draw reproduces the rows from the dataset; the digest verifies that these are the counted bytes.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any

from osmosis_ai.datasets.selection import RowsDrawn, Selection, sample_rows, select_rows
from osmosis_ai.errors import ConflictError

SAMPLED_FRACTION = 0.1
"""The share of rows that a run without a limit uses."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """How a run's rows are chosen."""

    total_rows: int
    limit: int | None
    draw_seed: int | None
    sha256: str
    extension: str
    chosen: bool = False

    @classmethod
    def of(cls, *, total_rows: int, limit: int | None, sha256: str, extension: str) -> RowSelection:
        """Choose for a new run; without a limit, a draw of its own."""
        draw_seed = secrets.randbits(31) if limit is None else None
        return cls(total_rows, limit, draw_seed, sha256, extension)

    @classmethod
    def read(cls, recorded: dict[str, Any]) -> RowSelection:
        """Return the choice that a run's row keeps."""
        return cls(**recorded)

    def record(self) -> dict[str, Any]:
        """Return what a run's row keeps."""
        return asdict(self)

    def rows(self) -> Selection:
        """Return the rows; the same ones every time."""
        if self.chosen:
            raise ConflictError(
                "which rows this run has used is known from its samples alone: it was imported."
            )
        if self.draw_seed is None:
            return select_rows(self.total_rows, limit=self.limit, rows=None)
        return sample_rows(self.total_rows, fraction=SAMPLED_FRACTION, seed=self.draw_seed)

    def drawn(self, rows: int) -> RowsDrawn:
        """Return how many rows of how many, which are known to be ``rows``, without drawing them again."""
        if self.draw_seed is None:
            return RowsDrawn(rows, self.total_rows, "chosen" if self.chosen else "first")
        return RowsDrawn(rows, self.total_rows, "random", SAMPLED_FRACTION, self.draw_seed)

"""A run of a comparison in a line: what it is, how far it got, and what it took."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.comparison.run_pairs import HUGE

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs, RunSamples


@dataclass(frozen=True, slots=True)
class RunTotals:
    """A run without its samples."""

    name: str
    place: str
    location: str
    status: str
    inputs: ComparedInputs
    rows: int | None
    planned: int
    tried: int | None
    scored: int | None
    attempts: int
    cost_usd: float | None
    priced: int
    tokens: int | None
    tokens_reported: int
    duration_s: float | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, run: RunSamples, name: str) -> RunTotals:
        """Return the totals of a run, under the name it has here."""
        import numpy as np

        if run.summary is not None:
            told = run.summary
            rows, tried, scored, attempts = told.rows, told.tried, told.scored, run.inputs.n or 0
        else:
            rows, tried, scored = len(run.row_keys), int(run.samples.size), int(run.scored.sum())
            attempts = int(np.bincount(run.samples["row"]).max(initial=0)) if tried else 0
        sums = {field: _sum(run, field) for field in ("cost_usd", "tokens", "duration_ms")}
        tokens, duration_ms = sums["tokens"], sums["duration_ms"]
        return cls(
            name=name,
            place=run.place,
            location=run.location,
            status=run.status,
            inputs=run.inputs,
            rows=rows,
            planned=run.planned,
            tried=tried,
            scored=scored,
            attempts=run.inputs.n or attempts,
            cost_usd=sums["cost_usd"],
            priced=int(np.isfinite(run.samples["cost_usd"]).sum()),
            tokens=None if tokens is None else round(tokens),
            tokens_reported=int(np.isfinite(run.samples["tokens"]).sum()),
            duration_s=None if duration_ms is None else duration_ms / 1000,
            notes=run.notes,
        )

    def data(self) -> dict[str, Any]:
        """Return them as scripts see them."""
        names = ("name", "place", "location", "status", "rows", "planned", "tried", "scored", "attempts")
        costs = ("cost_usd", "priced", "tokens", "tokens_reported", "duration_s")
        return {
            **{name: getattr(self, name) for name in (*names, *costs)},
            "inputs": self.inputs.data(),
            "notes": list(self.notes),
        }


def _sum(run: RunSamples, field: str) -> float | None:
    """Return the sum of what attempts have recorded; None where none has anything."""
    import numpy as np

    values = run.samples[field]
    known = values[np.abs(values) < HUGE]
    return math.fsum(known.tolist()) if known.size else None

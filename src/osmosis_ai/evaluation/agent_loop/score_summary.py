"""What an eval function's scores add up to: as documented, and with their uncertainty.

The documented numbers count every run, and one without a score counts 0.0. Beside them stand ours, of the runs
that have a score, each with its standard error and interval. A run without a score never passes, whatever the
threshold is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.evaluation import pass_at_k as attempts_together
from osmosis_ai.evaluation import statistics
from osmosis_ai.evaluation.statistics import Estimate

DOCUMENTED_KS = (1, 3, 5, 10)


@dataclass
class EvalEvalSummary:
    """The numbers of one eval function."""

    mean: float
    std: float
    min: float
    max: float
    pass_at_k: dict[int, float] = field(default_factory=dict)
    scored: int = 0
    unscored: int = 0
    estimate: Estimate | None = None
    pass_at_k_estimates: dict[int, Estimate] = field(default_factory=dict)

    def documented(self) -> dict[str, Any]:
        """Return the fields of a results file as they are documented."""
        found = {"mean": self.mean, "std": self.std, "min": self.min, "max": self.max}
        return found | {f"pass_at_{k}": value for k, value in self.pass_at_k.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the documented fields, with ours beside them."""
        return self.documented() | {
            "scored": self.scored,
            "unscored": self.unscored,
            "estimate": estimate_json(self.estimate),
            "pass_at_k_estimates": {str(k): estimate_json(e) for k, e in self.pass_at_k_estimates.items()},
        }


def summarize_scores(
    rows: Sequence[Sequence[float | None]],
    *,
    n_runs: int,
    pass_threshold: float,
    ks: Collection[int] = (),
    clusters: Sequence[int] | None = None,
) -> EvalEvalSummary:
    """Summarize the scores of one eval function."""
    every = [score if score is not None else 0.0 for row in rows for score in row]
    scored = [(index, score) for index, row in enumerate(rows) for score in row if score is not None]
    described = statistics.describe(every)
    attempts = [sum(score is not None for score in row) for row in rows]
    passes = [sum(score is not None and score >= pass_threshold for score in row) for row in rows]
    return EvalEvalSummary(
        mean=described.mean if described else 0.0,
        std=described.std if described else 0.0,
        min=described.min if described else 0.0,
        max=described.max if described else 0.0,
        pass_at_k=_documented_pass_at_k([len(row) for row in rows], passes, n_runs, {*DOCUMENTED_KS, *ks}),
        scored=len(scored),
        unscored=len(every) - len(scored),
        estimate=statistics.estimate_reward(
            [score for _, score in scored],
            [index for index, _ in scored],
            [clusters[index] for index, _ in scored] if clusters is not None else None,
        ),
        pass_at_k_estimates=_pass_at_k_estimates(attempts, passes, ks_for(n_runs, ks), clusters),
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that one of ``k`` of ``n`` attempts passes, of which ``c`` did."""
    if c <= 0:
        return 0.0
    if n <= k or c >= n:
        return 1.0
    return attempts_together.pass_at_k(n, c, k)


def ks_for(n_runs: int, further: Iterable[int] = ()) -> list[int]:
    """Return every k that pass@k is told for: the documented ones, the powers of two, and ``further``."""
    powers = (1 << exponent for exponent in range(n_runs.bit_length()))
    return sorted(k for k in {*DOCUMENTED_KS, *powers, *further} if 1 <= k <= n_runs)


def estimate_json(estimate: Estimate | None) -> Mapping[str, Any] | None:
    """Return an estimate as files hold it: value, standard error, interval, and from how many."""
    if estimate is None:
        return None
    return {
        "value": estimate.value,
        "stderr": estimate.stderr,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.n,
        "clusters": estimate.clusters,
    }


def _documented_pass_at_k(
    runs: Sequence[int], passes: Sequence[int], n_runs: int, ks: Iterable[int]
) -> dict[int, float]:
    if n_runs < 2 or not runs:
        return {}
    return {
        k: sum(pass_at_k(n, c, k) for n, c in zip(runs, passes, strict=True)) / len(runs)
        for k in sorted(ks)
        if 1 <= k <= n_runs
    }


def _pass_at_k_estimates(
    attempts: Sequence[int], passes: Sequence[int], ks: Iterable[int], clusters: Sequence[int] | None
) -> dict[int, Estimate]:
    found = {k: attempts_together.estimate_pass_at_k(attempts, passes, k, clusters) for k in ks}
    return {k: estimate for k, estimate in found.items() if estimate is not None}

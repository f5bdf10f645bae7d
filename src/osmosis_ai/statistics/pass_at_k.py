"""pass@k and pass^k: the probabilities that at least one of k attempts passes, and that all of them do.

pass@k measures what an agent can do if the best attempt is chosen, pass^k how reliable it is. Both are unbiased for a
row with n >= k attempts. Both are means over rows: rows with fewer attempts are left out, and the rows are the units
of independence.

Sources:
    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1 (pass@k).
    Yao et al. 2024, "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains",
        section 2 (pass^k).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from osmosis_ai.statistics.estimates import CONFIDENCE, Estimate, estimate_rate_of_rows

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Floats, Labels


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of ``k`` attempts passes."""
    _require_defined("pass@", n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of the probability that all of ``k`` attempts pass, pass^k."""
    _require_defined("pass^", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def pass_at_k_by_row(attempts: Labels, passes: Labels, k: int) -> Floats:
    """Return pass@k of every row that has at least ``k`` attempts."""
    return _by_row(pass_at_k, attempts, passes, k)


def pass_hat_k_by_row(attempts: Labels, passes: Labels, k: int) -> Floats:
    """Return pass^k of every row that has at least ``k`` attempts; arguments and errors as :func:`pass_at_k_by_row`."""
    return _by_row(pass_hat_k, attempts, passes, k)


def estimate_pass_at_k(
    attempts: Labels,
    passes: Labels,
    k: int,
    clusters: Labels | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> Estimate | None:
    """Estimate pass@k over rows, with the interval of a rate; None when no row has ``k`` attempts."""
    return _estimate(pass_at_k_by_row, attempts, passes, k, clusters, confidence)


def estimate_pass_hat_k(
    attempts: Labels,
    passes: Labels,
    k: int,
    clusters: Labels | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> Estimate | None:
    """Estimate pass^k over rows; otherwise like :func:`estimate_pass_at_k`."""
    return _estimate(pass_hat_k_by_row, attempts, passes, k, clusters, confidence)


def _require_defined(name: str, n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"{name}{k} is not defined for {c} passes in {n} attempts")


def _by_row(chance: Callable[[int, int, int], float], attempts: Labels, passes: Labels, k: int) -> Floats:
    import numpy as np

    tries, passed = np.asarray(attempts, dtype=np.int64), np.asarray(passes, dtype=np.int64)
    enough = tries >= k
    tries, passed = tries[enough], passed[enough]
    # Rows share few combinations of attempts and passes, so each is computed once.
    span = int(passed.max(initial=0)) + 1
    distinct, which = np.unique(tries * span + passed, return_inverse=True)
    known = np.array([chance(*divmod(int(pair), span), k) for pair in distinct], dtype=np.float64)
    by_row: Floats = known[which.reshape(-1)] if known.size else known
    return by_row


def _estimate(
    chances: Callable[[Labels, Labels, int], Floats],
    attempts: Labels,
    passes: Labels,
    k: int,
    clusters: Labels | None,
    confidence: float,
) -> Estimate | None:
    import numpy as np

    tries = np.asarray(attempts, dtype=np.int64)
    enough = tries >= k
    labels = np.flatnonzero(enough) if clusters is None else np.asarray(clusters, dtype=np.int64)[enough]
    samples = int(tries[enough].sum())
    return estimate_rate_of_rows(
        chances(attempts, passes, k), labels, samples=samples, independent=samples / k, confidence=confidence
    )

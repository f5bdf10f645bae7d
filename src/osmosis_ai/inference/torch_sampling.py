"""``sampling`` on torch tensors, making the same choices without copying the logits.

The logits of a real vocabulary are too large to copy to the CPU at every step. Only the random number of each row
comes from ``sampling.uniforms``, so the token equals the one NumPy would sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from osmosis_ai.inference.language_model import Drawn, SamplingRows
from osmosis_ai.inference.sampling import GREEDY_BELOW, uniforms


def draw(logits: torch.Tensor, sampling: SamplingRows) -> Drawn:
    """Draw one token for each row of R x V logits."""
    greedy = sampling.temperatures < GREEDY_BELOW
    log_probs = log_probabilities(logits, np.where(greedy, 1.0, sampling.temperatures))
    tokens = _choose(log_probs, sampling)
    if greedy.any():
        tokens = torch.where(torch.from_numpy(greedy).to(tokens.device), log_probs.argmax(dim=1), tokens)
    chosen = log_probs.gather(1, tokens[:, None])[:, 0]
    return Drawn(tokens.tolist(), chosen.tolist(), _likeliest(log_probs, sampling.top_counts))


def log_probabilities(logits: torch.Tensor, temperatures: np.ndarray) -> torch.Tensor:
    """Return the distributions (R x V, float64, natural logarithm) at each row's temperature."""
    divisors = torch.from_numpy(temperatures).to(logits.device)
    return torch.log_softmax(logits.double() / divisors[:, None], dim=1)


def _choose(log_probs: torch.Tensor, sampling: SamplingRows) -> torch.Tensor:
    probabilities = log_probs.exp()
    truncated = np.flatnonzero(sampling.top_ps < 1.0)
    if len(truncated):
        rows = torch.from_numpy(truncated).to(log_probs.device)
        top_ps = torch.from_numpy(sampling.top_ps[truncated]).to(log_probs.device)
        probabilities[rows] = _nucleus(probabilities[rows], top_ps)
    sums = probabilities.cumsum(dim=1)
    total = sums[:, -1]
    numbers = torch.from_numpy(uniforms(sampling.streams, sampling.positions)).to(log_probs.device)
    # Rounding must not carry the threshold to the total, where no token is left to choose.
    thresholds = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    return (sums <= thresholds[:, None]).sum(dim=1)


def _nucleus(probabilities: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Zero all but the fewest most likely tokens whose sum reaches ``top_p``; ties go to the lower id."""
    ranked, order = probabilities.sort(dim=1, descending=True, stable=True)
    before = ranked.cumsum(dim=1) - ranked
    before[:, 0] = -1.0  # the most likely token always stays
    kept = ranked * (before < top_ps[:, None])
    return torch.zeros_like(probabilities).scatter(1, order, kept)


def _likeliest(log_probs: torch.Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    most = max(counts)
    if not most:
        return [()] * len(counts)
    values, ids = log_probs.sort(dim=1, descending=True, stable=True)
    pairs = zip(ids[:, :most].tolist(), values[:, :most].tolist(), counts, strict=True)
    return [
        tuple(zip(row_ids[:count], row_values[:count], strict=True)) for row_ids, row_values, count in pairs
    ]

"""Random choices determined only by the request's seed and the token's position.

There is no generator state: a hash of (seed, position) decides token ``position``. The rest of the batch, restarts
and the engine have no influence. All engines call these functions on their logits.

The hash is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014; constants of Stafford's variant 13). It is applied to the seed first, so that neighbouring
seeds do not give shifted copies of one stream.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = 0xFFFFFFFFFFFFFFFF
# Below this temperature the choice is the most likely token: dividing by it could overflow.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """How one request draws its tokens."""

    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0

    def stream(self, choice: int = 0) -> int:
        """Return the 64-bit key of this request's random numbers; each of its choices has its own."""
        seed = int.from_bytes(os.urandom(8), "big") if self.seed is None else self.seed & _MASK_64
        if choice == 0:
            return seed
        return int(_mix(_mix(np.array([seed], np.uint64)) + np.uint64(choice))[0])


def uniforms(streams: NDArray[np.uint64], positions: NDArray[np.int64]) -> Floats:
    """Return the numbers in [0, 1) that decide the tokens at ``positions``; 53 random bits each."""
    counters = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    fractions: Floats = (_mix(_mix(streams) + counters) >> np.uint64(11)) * 2.0**-53
    return fractions


def log_probabilities(logits: Floats, temperatures: Floats) -> Floats:
    """Return the distributions (B x V, natural logarithm) at each row's temperature."""
    scaled = logits / np.where(temperatures < GREEDY_BELOW, 1.0, temperatures)[:, None]
    scaled -= scaled.max(axis=1, keepdims=True)
    normalised: Floats = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return normalised


def choose(
    log_probs: Floats,
    temperatures: Floats,
    top_ps: Floats,
    streams: NDArray[np.uint64],
    positions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw one token for each row."""
    probabilities = np.exp(log_probs)
    truncated = top_ps < 1.0
    if truncated.any():
        probabilities[truncated] = _nucleus(probabilities[truncated], top_ps[truncated])
    sums = np.cumsum(probabilities, axis=1)
    total = sums[:, -1]
    # Rounding must not carry the threshold to the total, where no token is left to choose.
    thresholds = np.minimum(uniforms(streams, positions) * total, np.nextafter(total, 0.0))
    drawn = (sums <= thresholds[:, None]).sum(axis=1)
    tokens: NDArray[np.int64] = np.where(temperatures < GREEDY_BELOW, log_probs.argmax(axis=1), drawn)
    return tokens


def _nucleus(probabilities: Floats, top_ps: Floats) -> Floats:
    """Zero all but the fewest most likely tokens whose sum reaches ``top_p``; ties go to the lower id."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked
    before[:, 0] = -1.0  # the most likely token always stays
    kept = np.zeros_like(probabilities)
    np.put_along_axis(kept, order, np.where(before < top_ps[:, None], ranked, 0.0), axis=1)
    return kept


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every output bit depends on every input bit."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed

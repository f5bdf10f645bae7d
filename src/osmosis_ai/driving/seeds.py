"""One seed per model call, a pure function of the run's seed and the call's place in the run.

Which attempts run at the same time, in which order, and how often the run was interrupted do not
enter it: a model that honours seeds answers a resumed run as it would have answered an
undisturbed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

MAX_SEED = 0x7FFFFFFF


def call_seed(run_seed: int, source_row: int, attempt: int, call_index: int) -> int:
    """Return the seed (31 bits) of the ``call_index``-th model call of an attempt on a dataset row."""
    place = f"{run_seed}:{source_row}:{attempt}:{call_index}"
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") & MAX_SEED


def attempt_seeds(run_seed: int, source_row: int, attempt: int) -> Callable[[int], int]:
    """Return the function from call index to seed of one attempt."""
    return lambda call_index: call_seed(run_seed, source_row, attempt, call_index)

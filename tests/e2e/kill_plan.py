"""A plan of kills, spread over a run's journal and repeatable with its seed.

The test suite kills each victim once, always at the same moments. ``make nightly`` draws new moments and sets
``OSMOSIS_KILLS`` for more kills.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from tests.conftest import NIGHTLY
from tests.e2e.platform_process import Kill

KILLS = int(os.environ.get("OSMOSIS_KILLS", "1"))
"""How often each victim is killed."""
# Between two kills, the rollouts of a killed server can be repeated.
_RECORDS_PER_KILL = 60


def sizes(victims: Sequence[str]) -> tuple[int, int]:
    """Return how many rows and attempts a run needs for all kills to be in its middle."""
    samples = max(200, _RECORDS_PER_KILL * KILLS * len(victims))
    rows = min(200, samples // 4)
    return rows, -(-samples // rows)


def seed_of_kills() -> int:
    """Return the seed of this run's kills, and print it."""
    drawn = random.SystemRandom().randrange(10**6) if NIGHTLY or KILLS > 1 else 7
    seed = int(os.environ.get("KILL_SEED", drawn))
    print(f"seed of the kills: {seed} (set KILL_SEED to repeat)")
    return seed


def plan_of_kills(seed: int, victims: Sequence[str], samples: int) -> list[Kill]:
    """Return the kills in order: each victim equally often, one in each equal part of the run's middle."""
    draw = random.Random(seed)
    order = list(victims) * KILLS
    draw.shuffle(order)
    first, last = 1, samples - 40
    width = (last - first) / len(order)
    return [
        Kill(round(first + (number + draw.random()) * width), victim, draw.uniform(0, 0.05))
        for number, victim in enumerate(order)
    ]


def after(kill: Kill, records: int) -> Kill:
    """Return ``kill``, at the earliest after one more record: a shard fails after several kills without progress."""
    return kill._replace(records=max(kill.records, records + 1))

"""When and what to kill: spread over a run's journal, with a seed that repeats it.

The suite kills each victim once, at the same moments every time. ``make nightly`` draws new moments, and
``scripts/kill_series.py`` sets ``OSMOSIS_KILLS`` for more kills.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from tests.conftest import NIGHTLY
from tests.e2e.platform_process import Kill

KILLS = int(os.environ.get("OSMOSIS_KILLS", "1"))
"""How often each victim is killed."""
# Far enough apart for the rollouts that went down with a server to be made again in between.
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
    """Return ``kill``, but not before there is something new: what dies over and over without it is given up."""
    return kill._replace(records=max(kill.records, records + 1))

"""How many rollout servers work on a run: as many as this machine has processors to spare for it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from osmosis_ai.config.execution import MOST_SERVERS
from osmosis_ai.driving.control_group_limits import CGROUPS, MEMBERSHIP, granted_processors


def default_servers(*, cpus: float | None = None, gpus: int | None = None) -> int:
    """Return how many servers a run has whose user did not say."""
    return 1 if gpus else max(1, min(MOST_SERVERS, granted_cores(cpus) - 1))


def useful_servers(asked: int, *, rollouts: int, at_once: int | None) -> int:
    """Return how many of the servers ``asked`` for have something to do."""
    return max(1, min(asked, rollouts, at_once or asked))


def granted_cores(cpus: float | None = None, *, limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many processors this process may use: by its affinity, its control groups and ``cpus``."""
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    counts += [math.floor(quota) for quota in granted_processors(limits, membership)]
    if cpus is not None:
        counts.append(math.floor(cpus))
    return max(1, min(counts))

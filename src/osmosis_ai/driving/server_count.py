"""How many rollout servers work on a run: as many as this machine has processors to spare for it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from osmosis_ai.config.execution import MOST_SERVERS
from osmosis_ai.driving.control_group_limits import CGROUPS, MEMBERSHIP, granted_processors


def default_servers(*, cpus: float | None = None, gpus: int | None = None) -> int:
    """Return how many servers a run has whose user did not say.

    One processor is left to this process, which serves the model to the agents. A server that holds a GPU stays
    alone: what it has loaded there would be loaded as often as there are servers.

    Args:
        cpus: processors that were granted to the run, where somebody said.
        gpus: GPUs that the run asks for.
    """
    return 1 if gpus else max(1, min(MOST_SERVERS, granted_cores(cpus) - 1))


def useful_servers(asked: int, *, rollouts: int, at_once: int | None) -> int:
    """Return how many of the servers ``asked`` for have something to do.

    Args:
        rollouts: those that are left to be made.
        at_once: how many the user lets run at once, where somebody said.
    """
    return max(1, min(asked, rollouts, at_once or asked))


def granted_cores(cpus: float | None = None, *, limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many processors this process may use: by its affinity, its control groups and ``cpus``.

    Args:
        cpus: what was granted to the run, where somebody said.
        limits: where the kernel shows control groups.
        membership: where it says to which of them this process belongs.
    """
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    counts += [math.floor(quota) for quota in granted_processors(limits, membership)]
    if cpus is not None:
        counts.append(math.floor(cpus))
    return max(1, min(counts))

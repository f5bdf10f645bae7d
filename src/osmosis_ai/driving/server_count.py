"""How many rollout servers work on a run: as many as this machine has processors to spare for it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from osmosis_ai.config.execution import MOST_SERVERS

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


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


def granted_cores(
    cpus: float | None = None, *, limits: Path = _CGROUPS, membership: Path = _MEMBERSHIP
) -> int:
    """Return how many processors this process may use: by its affinity, its control groups and ``cpus``.

    Args:
        cpus: what was granted to the run, where somebody said.
        limits: where the kernel shows control groups.
        membership: where it says to which of them this process belongs.
    """
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    counts += [math.floor(quota) for quota in _quotas(limits, membership)]
    if cpus is not None:
        counts.append(math.floor(cpus))
    return max(1, min(counts))


def _quotas(limits: Path, membership: Path) -> Iterator[float]:
    """Yield the processor time, in processors, that each control group above this process grants (cgroup v2, v1)."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for group in groups:
        if len(group) != 3 or (group[1] and "cpu" not in group[1].split(",")):
            continue
        root = limits if not group[1] else limits / "cpu"
        place = root / group[2].lstrip("/")
        # In a container the path is the host's, and the container's own group is the root.
        for directory in {root, place, *place.parents}:
            if directory == root or root in directory.parents:
                yield from _quota(directory)


def _quota(directory: Path) -> Iterator[float]:
    try:
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota, period = (
                (directory / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        granted = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # not set ("max"), or not there
        return
    if granted > 0:
        yield granted

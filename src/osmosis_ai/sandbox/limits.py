"""Resource limits of a run, enforced by the kernel for each of its processes.

A process limit counts processes of the sandbox's own user namespace (Linux 5.14 and newer), so that runs do not count
each other's. The kernel does not enforce it for a process that is root outside.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Collection
from dataclasses import dataclass

from osmosis_ai.sandbox.resource_control import Resource

MOST_PROCESSES = 4096
"""Threads count, too; a server with a thread for each of its rollouts stays far below."""
TEMPORARY_BYTES = 2 * 1024**3
"""Of each of the places that are held in memory: /tmp, the home, /dev/shm."""
_GIB = 1024**3


@dataclass(frozen=True)
class RunLimits:
    """Limits of one run."""

    memory_gb: float | None = None
    cpus: float | None = None
    processes: int = MOST_PROCESSES
    temporary_bytes: int = TEMPORARY_BYTES
    processors: tuple[int, ...] = ()

    def shell(self, held: Collection[Resource] = ()) -> str:
        """Return the words of a POSIX shell that keep it and its children to the limits."""
        # `-u` is bash's name for it, `-p` that of dash and busybox.
        words = ["ulimit -c 0"]
        if "processes" not in held:
            words.append(f"{{ ulimit -u {self.processes} || ulimit -p {self.processes}; }}")
        if self.memory_gb is not None and "memory" not in held:
            words.append(f"ulimit -d {max(1, int(self.memory_gb * _GIB // 1024))}")
        if self.processors:
            # Of util-linux; where it is missing, all are used.
            words.append(f"taskset -pc {','.join(map(str, self.processors))} $$ >/dev/null")
        return " 2>/dev/null; ".join(words) + " 2>/dev/null"


def processors_for(cpus: float | None) -> tuple[int, ...]:
    """Choose ``cpus`` processors of this process at random, again for each run."""
    if cpus is None or not hasattr(os, "sched_getaffinity"):
        return ()
    there = sorted(os.sched_getaffinity(0))
    count = math.ceil(cpus)
    return tuple(sorted(random.SystemRandom().sample(there, count))) if count < len(there) else ()

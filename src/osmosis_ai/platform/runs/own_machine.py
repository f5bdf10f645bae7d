"""What the platform's own machine has for runs that name no pool: a run that asks for more is refused, not begun in vain."""

from __future__ import annotations

import os
from pathlib import Path

from osmosis_ai.config.execution import PLACE, ExecutionSection
from osmosis_ai.config.issues import Issue
from osmosis_ai.controller.server_process import granted_memory
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.machines import Machine
from osmosis_ai.sandbox.gpus import counted_gpus

_GIB = 1 << 30


def own_machine(root: Path = Path("/")) -> Machine:
    """Return what this machine has; of GPUs that are none of NVIDIA's it is not known."""
    gpus = counted_gpus(root)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # In a container, or below a service's limit, it is what the kernel lets this process and its runs have.
    return Machine(gpus=gpus, memory_gb=round(min([memory, *granted_memory(root)]) / _GIB, 1))


def own_machine_problem(
    config: PlatformConfig, asked: ExecutionSection, machine: Machine | None = None
) -> Issue | None:
    """Return why the platform's own machine is none for a run that it would be given; None of any other run."""
    wanted = ExecutionSection(gpus=asked.gpus, memory_gb=asked.memory_gb)
    if config.ray is not None or asked.pool is not None or wanted == ExecutionSection():
        return None
    lacking = list((machine or own_machine()).lacks(wanted))
    if not lacking:
        return None
    key = "gpus" if "gpus" in lacking[0] else "memory_gb"
    return Issue(
        f"{PLACE}.{key}",
        f"asks for more than the platform's own machine has, which executes runs without a pool: {', '.join(lacking)}; "
        "name a pool whose workers have it",
    )

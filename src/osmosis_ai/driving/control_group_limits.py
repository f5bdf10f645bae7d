"""What the control groups above this process grant it: processors and memory, in version 2 and in version 1.

A group grants no more than every group above it does. In a container the paths are the host's, and the container's own group is
the root of what is shown there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""Where the kernel shows control groups."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""Where it says to which of them this process belongs."""


def granted_processors(limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[float]:
    """Yield the processor time that each group above this process grants, in processors."""
    for group in _groups("cpu", limits, membership):
        try:
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = (
                    (group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
                )
            granted = int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):  # not set ("max"), or not there
            continue
        if granted > 0:
            yield granted


def granted_memory(limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[int]:
    """Yield the memory that each group above this process grants, in bytes; version 1 says an endless number where it sets none."""
    for group in _groups("memory", limits, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                granted = int((group / name).read_text())
            except (OSError, ValueError):  # not set ("max"), or not there
                continue
            if granted > 0:
                yield granted


def _groups(controller: str, limits: Path, membership: Path) -> Iterator[Path]:
    """Yield the directories of the groups of a controller that this process is in, those above them included."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for group in groups:
        if len(group) != 3 or (group[1] and controller not in group[1].split(",")):
            continue
        root = limits if not group[1] else limits / controller
        place = root / group[2].lstrip("/")
        for directory in {root, place, *place.parents}:
            if directory == root or root in directory.parents:
                yield directory

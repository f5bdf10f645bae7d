"""CPU time of processes and of their descendants, from /proc."""

from __future__ import annotations

import math
import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU time (user and system) of a process and of its children that have ended; nan if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> set[int]:
    """Return a process and its living descendants."""
    found, ahead = {pid}, [pid]
    while ahead:
        for task in Path(f"/proc/{ahead.pop()}/task").glob("*/children"):
            try:
                children = set(map(int, task.read_text().split())) - found
            except OSError:
                continue  # it has just ended
            found |= children
            ahead += children
    return found


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of all descendants, including ended ones."""
    return sum(seconds for each in tree(pid) if not math.isnan(seconds := cpu_s(each)))

"""Limit the combined resources of all programs of a run.

A control group limits memory, processes and processors, if this process may create one (:mod:`.run_group`). Otherwise
each program's shell sets per-process kernel limits (:mod:`.limits`). These only advise on processors, do not
limit the combined memory of several processes, and do not limit the number of root's processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Resource = Literal["memory", "processes", "CPU"]
RESOURCES: tuple[Resource, ...] = ("memory", "processes", "CPU")


@dataclass(frozen=True)
class MetLimit:
    """A limit that a part of a run met before it ended."""

    words: str
    remedy: str


class ResourceControl(Protocol):
    """Holds one run's programs together to its limits."""

    @property
    def holds(self) -> frozenset[Resource]:
        """What it limits of the run as a whole."""

    @property
    def words(self) -> str:
        """What holds, and what does not, in a few words."""

    def command(self, program: Sequence[str], part: str) -> list[str]:
        """Return the command that is held to the limits, then becomes ``program``."""

    def end_of(self, part: str) -> MetLimit | None:
        """Say which limit a part that has ended met since it was started last; None where none is known."""

    @property
    def refused(self) -> int:
        """How often the run was refused a process or a thread, as far as that is counted."""

    def close(self) -> None:
        """End whatever is left of the run's programs."""


@dataclass(frozen=True)
class ProcessLimits:
    """No group: the limits that each process has."""

    problem: str | None = None
    user: int = os.geteuid() if hasattr(os, "geteuid") else -1

    @property
    def holds(self) -> frozenset[Resource]:
        """Nothing of the run as a whole."""
        return frozenset()

    @property
    def words(self) -> str:
        """What holds, and what does not."""
        return limit_words(self.holds, by="cgroup", user=self.user)

    def command(self, program: Sequence[str], part: str) -> list[str]:
        """Return ``program`` itself."""
        return list(program)

    def end_of(self, part: str) -> MetLimit | None:
        """Nothing is known of that."""
        return None

    @property
    def refused(self) -> int:
        """Nobody counts."""
        return 0

    def close(self) -> None:
        """Nothing is left: a sandbox ends with all that is in it."""


def limit_words(held: frozenset[Resource], *, by: str, user: int | None = None) -> str:
    """Return what limits a run where a group holds ``held`` of it, in a few words."""
    user = os.geteuid() if user is None and hasattr(os, "geteuid") else user
    by_group = [name for name in RESOURCES if name in held]
    by_process = [] if "memory" in held else ["memory of each process"]
    if "processes" not in held and user != 0:
        by_process.append("processes")
    absent = [] if "memory" in held else ["memory of the run"]
    absent += [name for name in RESOURCES[1:] if name not in by_group and name not in by_process]
    said = [
        *([f"{by} ({', '.join(by_group)})"] if by_group else []),
        *([f"rlimits ({', '.join(by_process)})"] if by_process else []),
    ]
    unlimited = f"; unlimited: {', '.join(absent)}" if absent else ""
    return f"limits: {', '.join(said)}{unlimited}"

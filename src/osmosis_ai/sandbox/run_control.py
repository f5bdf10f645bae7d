"""Choose the resource control of runs: a control group if possible, otherwise process limits.

If this process has no delegated group, systemd may start each worker in a delegated scope
(`systemd-run --scope -p Delegate=yes`): the system's for root, otherwise the user's.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass

from osmosis_ai.sandbox.control_groups import (
    CONTROLLERS,
    Delegation,
    arrange,
    hierarchy_mount,
    look_at_delegation,
    said_by,
)
from osmosis_ai.sandbox.limits import RunLimits
from osmosis_ai.sandbox.resource_control import ProcessLimits, ResourceControl, limit_words
from osmosis_ai.sandbox.run_group import RESOURCE_OF, SCOPE, RunGroup, sweep

logger = logging.getLogger(__name__)

CGROUP_ENV = "OSMOSIS_CGROUP"
"""``off``: no group is made, and none that is there is arranged."""
# $0 is where the hierarchy is mounted. Dash's `read` takes a line of its own as it comes: `0::/user.slice/...`.
_SAY_CONTROLLERS = 'while IFS=: read -r n c path; do [ "$n" = 0 ] && cat "$0$path/cgroup.controllers"; done < /proc/self/cgroup'


@dataclass(frozen=True)
class MachineControl:
    """What holds runs to their limits on this machine."""

    delegation: Delegation
    starter: tuple[str, ...] = ()
    by_scope: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What holds, and what does not, in a few words."""
        controllers = self.by_scope if self.starter else self.delegation.controllers
        by = SCOPE if self.starter else "cgroup"
        words = limit_words(frozenset(RESOURCE_OF[name] for name in controllers), by=by)
        return words if controllers else f"{words}; no cgroup: {self.delegation.problem}"


def look_at_control() -> MachineControl:
    """Find out what would hold runs to their limits, and change nothing; blocking where systemd is asked."""
    found = _look()
    return MachineControl(found) if found.path is not None else _by_systemd(found)


def prepare_control() -> MachineControl:
    """Arrange what is to hold runs to their limits, before any of them is started; blocking."""
    found = arrange(_look())
    return MachineControl(found) if found.path is not None else _by_systemd(found)


def control_run(run: str, limits: RunLimits) -> ResourceControl:
    """Return a new resource control for a run's programs. Close it when the run has ended here."""
    found = arrange(_look())
    if found.path is None:
        return ProcessLimits(found.problem)
    left = sweep(found.path)
    if left:
        logger.info("%d control groups of runs whose worker is gone were ended", left)
    try:
        return RunGroup.make(found, run, limits)
    except OSError as error:
        return ProcessLimits(f"no group (cgroup) can be made: {error.strerror or error}")


def _look() -> Delegation:
    if os.environ.get(CGROUP_ENV, "").strip() == "off":
        return Delegation(problem=f"{CGROUP_ENV}=off")
    return look_at_delegation()


def _by_systemd(found: Delegation) -> MachineControl:
    """Return the control that workers have in a scope, where systemd makes one that limits anything."""
    if os.environ.get(CGROUP_ENV, "").strip() == "off":
        return MachineControl(found)
    program, mount = shutil.which("systemd-run"), hierarchy_mount()
    if program is None or mount is None:
        return MachineControl(found)
    whose = [] if os.geteuid() == 0 else ["--user"]
    starter = (program, *whose, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")
    there = said_by([*starter, "/bin/sh", "-c", _SAY_CONTROLLERS, str(mount)]).split()
    controllers = tuple(name for name in CONTROLLERS if name in there)
    return MachineControl(found, starter, controllers) if controllers else MachineControl(found)

"""Isolation policy of a platform, determined once at startup.

If a sandbox is required and unavailable, no runs are executed. If it is only preferred, a platform may serve one
workspace, whose members trust each other; a second one needs the operator's consent. The same applies to a machine of a
pool.
"""

from __future__ import annotations

import logging
import os

from osmosis_ai.config.execution import PLACE, ExecutionSection
from osmosis_ai.config.issues import Issue
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.sandbox.control_groups import prepare_control
from osmosis_ai.sandbox.isolation import (
    ISOLATION_ENV,
    Isolation,
    IsolationUnavailableError,
    check_sandbox,
    choose_isolation,
    stricter,
)

logger = logging.getLogger(__name__)


def isolation_of(config: PlatformConfig) -> Isolation:
    """Return what runs get that ask for nothing; blocking, for the sandbox is tried."""
    wanted = stricter(config.isolation, "required" if config.network == "none" else None)
    if wanted == "off":
        return Isolation("none")
    return choose_isolation(wanted, check_sandbox(config.home), config.network or "host")


def look_at_isolation(config: PlatformConfig) -> tuple[str, bool]:
    """Describe how rollouts are sandboxed, and whether runs may be executed; problems are logged."""
    if os.geteuid() == 0:
        logger.warning(
            "the platform runs as root, so its rollouts can access all files that root can; "
            "run it as a separate user"
        )
    try:
        found = isolation_of(config)
    except IsolationUnavailableError as error:
        logger.error("no run is executed: %s Fix: %s", error.message, error.hint)
        return f"required but unavailable, so no run is executed: {error.problem}; {error.hint}", False
    if found.warning is not None:
        logger.warning("%s", found.warning)
    if not found.is_sandboxed:
        return f"{found.words}; {found.remedy}" if found.remedy else found.words, True
    return f"{found.words}, network {config.network or 'host'}; {prepare_control().words}", True


def why_not_shared(config: PlatformConfig, workspaces: int) -> str | None:
    """Return why a platform with several workspaces executes no runs, as after a move to another machine."""
    if (found := _unshared(config, workspaces - 1)) is None:
        return None
    why = (
        f"none, and there are {workspaces} workspaces, whose runs could read each other's secrets and files, so no run is "
        f"executed: {found.reason}; {found.remedy}; or, if all of them trust each other, say so with {ISOLATION_ENV}=off"
    )
    logger.error("isolation: %s", why)
    return why


def isolation_shown(config: PlatformConfig, run: DbRun) -> str | None:
    """Describe a run's isolation, or why this platform does not start it."""
    waits = run.status == "pending" and run.pool is None
    return run.isolation or (config.executes_nothing if waits else None)


def isolation_problem(config: PlatformConfig, asked: ExecutionSection) -> Issue | None:
    """Return why a run that requires a sandbox would fail on this machine; None for any other run."""
    is_elsewhere = config.ray is not None or asked.pool is not None
    if is_elsewhere or config.executes_nothing or not asked.needs_sandbox:
        return None
    found = check_sandbox(config.home)
    if found.works:
        return None
    key = "isolation" if asked.isolation == "required" else "network"
    return Issue(
        f"{PLACE}.{key}",
        f"needs a sandbox, and the platform's machine can make none: {found.problem}; {found.remedy}, or name a pool "
        "whose workers can",
    )


def require_one_workspace(config: PlatformConfig, workspaces: int) -> None:
    """Refuse a further workspace where rollouts of one could read what the other's have."""
    if (found := _unshared(config, workspaces)) is None:
        return
    raise ConflictError(
        f"a second workspace is not added: rollouts cannot be sandboxed here ({found.reason}), so runs of one workspace could read the secrets and files of "
        "the other.",
        hint=f"{found.remedy}; or, if all of them trust each other, say so with {ISOLATION_ENV}=off, to this command as to "
        "`platform start`",
    )


def _unshared(config: PlatformConfig, others: int) -> Isolation | None:
    """Return the missing isolation if a workspace in addition to ``others`` needs the operator's consent."""
    # The nodes of a cluster are asked with each claim.
    if others < 1 or config.isolation != "auto" or config.ray is not None:
        return None
    found = isolation_of(config)
    return None if found.is_sandboxed else found

"""What a platform does about holding rollouts back: looked at once when it starts, and said wherever it is asked about.

Where a sandbox is required and there is none, nothing is executed. Where it is only wished for, a platform may serve the
people of one workspace, who trust each other; a second one needs the operator's word. So does a machine of a pool.
"""

from __future__ import annotations

import logging
import os

from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.config.execution import PLACE, ExecutionSection
from osmosis_ai.config.issues import Issue
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.sandbox import (
    ISOLATION_ENV,
    Isolation,
    IsolationUnavailableError,
    SandboxCapability,
    check_sandbox,
    choose_isolation,
    prepare_control,
    stricter,
)

logger = logging.getLogger(__name__)


def isolation_of(config: PlatformConfig, capability: SandboxCapability | None = None) -> Isolation:
    """Return what runs get that ask for nothing; blocking, for the sandbox is tried."""
    wanted = stricter(config.isolation, "required" if config.network == "none" else None)
    if wanted == "off":
        return Isolation("none")
    return choose_isolation(wanted, capability or check_sandbox(config.home), config.network or "host")


def look_at_isolation(config: PlatformConfig) -> tuple[str, bool]:
    """Return in a few words what holds rollouts back, and whether runs may be executed; what is amiss is logged."""
    if os.geteuid() == 0:
        logger.warning(
            "the platform runs as root, and so do its rollouts, as far as files are in their reach: "
            "run it as a user of its own"
        )
    try:
        found = isolation_of(config)
    except IsolationUnavailableError as error:
        logger.error("no run is executed: %s Mend it: %s", error.message, error.hint)
        return f"required, and not possible, so no run is executed: {error.problem}; {error.hint}", False
    if found.warning is not None:
        logger.warning("%s", found.warning)
    if not found.is_sandboxed:
        return f"{found.words}; {found.remedy}" if found.remedy else found.words, True
    return f"{found.words}, network {config.network or 'host'}; {prepare_control().words}", True


def why_not_shared(
    config: PlatformConfig, workspaces: int, capability: SandboxCapability | None = None
) -> str | None:
    """Return why a platform that starts executes nothing: several workspaces, as on a machine that it was
    moved to."""
    if (found := _unshared(config, workspaces - 1, capability)) is None:
        return None
    why = (
        f"none, and there are {workspaces} workspaces, whose runs could read each other's secrets and files, so no run is "
        f"executed: {found.reason}; {found.remedy}; or, if all of them trust each other, say so with {ISOLATION_ENV}=off"
    )
    logger.error("isolation: %s", why)
    return why


def lacks_isolation(offer: WorkerOffer) -> bool:
    """Tell whether a machine can not hold rollouts back, and its operator has not said that they trust each other."""
    return offer.sandbox is False and offer.isolation == "auto"


def why_not_for_all(offer: WorkerOffer, workspaces: int, *, of_cluster: bool = False) -> str | None:
    """Return why a machine that can not hold rollouts back gets no runs of several workspaces; None where it
    may."""
    if workspaces < 2:
        return None
    name = _named(offer) if of_cluster else "this machine"
    remedy = "" if of_cluster else "give it a token for one (`worker-token create --workspace`), or, "
    return (
        f"{name} gets no runs of {workspaces} workspaces: rollouts can not be sandboxed there "
        f"({offer.sandbox_problem or 'it does not say why'}), so runs of one could read the secrets and files of another; "
        f"{remedy}if all of them trust each other, set {ISOLATION_ENV}=off there."
    )


def why_not_at_all(offer: WorkerOffer) -> str:
    """Return why a node of a cluster that can not hold rollouts back does not get a run that needs it."""
    return (
        f"{_named(offer)} does not get this run, which needs a sandbox: rollouts can not be sandboxed there "
        f"({offer.sandbox_problem or 'it does not say why'})."
    )


def _named(offer: WorkerOffer) -> str:
    return f"the machine '{offer.machine}'" if offer.machine else "this machine"


def isolation_shown(config: PlatformConfig, run: DbRun) -> str | None:
    """Return what is told of a run: what held its rollouts back, or why this platform does not begin it."""
    waits = run.status == "pending" and run.pool is None
    return run.isolation or (config.executes_nothing if waits else None)


def isolation_problem(
    config: PlatformConfig, asked: ExecutionSection, capability: SandboxCapability | None = None
) -> Issue | None:
    """Return why this machine would execute a run that asks for a sandbox only to fail; None of any other
    run."""
    is_elsewhere = config.ray is not None or asked.pool is not None
    if is_elsewhere or config.executes_nothing or not asked.needs_sandbox:
        return None
    found = capability or check_sandbox(config.home)
    if found.works:
        return None
    key = "isolation" if asked.isolation == "required" else "network"
    return Issue(
        f"{PLACE}.{key}",
        f"needs a sandbox, and the platform's machine can make none: {found.problem}; {found.remedy}, or name a pool "
        "whose workers can",
    )


def require_one_workspace(
    config: PlatformConfig, workspaces: int, capability: SandboxCapability | None = None
) -> None:
    """Refuse a further workspace where rollouts of one could read what the other's have."""
    if (found := _unshared(config, workspaces, capability)) is None:
        return
    raise ConflictError(
        f"a second workspace is not added: rollouts can not be sandboxed here ({found.reason}), so runs of one workspace could read the secrets and files of "
        "the other.",
        hint=f"{found.remedy}; or, if all of them trust each other, say so with {ISOLATION_ENV}=off, to this command as to "
        "`platform start`",
    )


def _unshared(config: PlatformConfig, others: int, capability: SandboxCapability | None) -> Isolation | None:
    """Return how little rollouts are held back where a workspace beside ``others`` needs the operator's word."""
    # The nodes of a cluster are asked with each claim.
    if others < 1 or config.isolation != "auto" or config.ray is not None:
        return None
    found = isolation_of(config, capability)
    return None if found.is_sandboxed else found

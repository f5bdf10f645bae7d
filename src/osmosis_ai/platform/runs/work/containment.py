"""What holds a run's rollouts back on this machine, decided once by the worker and said on the run.

A sandboxed run builds in a cache of its workspace's own: what a build leaves there, other workspaces never use.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.files import cache_dir
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.logs import LogLine
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.sandbox import (
    Isolation,
    RunLimits,
    Sandbox,
    check_sandbox,
    choose_isolation,
    narrower,
    stricter,
)


@dataclass(frozen=True)
class RunContainment:
    """How a run is held back.

    Attributes:
        isolation: the level that it has.
        sandbox: around its rollout servers and the builds of their environment; None where there is none.
        cache: where environments are built and kept.
    """

    isolation: Isolation
    sandbox: Sandbox | None
    cache: Path

    @property
    def words(self) -> str:
        """What the run's row says of it."""
        words = self.isolation.words
        return f"{words}, network {self.sandbox.network}" if self.sandbox else words

    @property
    def line(self) -> LogLine:
        """What the run's log says of it."""
        if self.isolation.warning is not None:
            return LogLine(self.isolation.warning, level="warning", step="isolation")
        how = "in a sandbox (bubblewrap)" if self.sandbox else "without a sandbox (OSMOSIS_ISOLATION=off)"
        reach = ", and reach the run's model alone" if self.sandbox and self.sandbox.network == "none" else ""
        return LogLine(f"rollouts run {how}{reach}", step="isolation")


def contain(
    config: PlatformConfig, directory: WorkingDirectory, workspace_id: str, asked: ExecutionSection
) -> RunContainment:
    """Decide how a run is held back; blocking, for the sandbox is tried.

    Raises:
        IsolationUnavailableError: a sandbox is required, and this machine can not make one.
    """
    network = narrower(config.network, asked.network)
    wanted = stricter(config.isolation, "required" if network == "none" else asked.isolation)
    if wanted == "off":
        return RunContainment(Isolation("none"), None, cache_dir())
    capability = check_sandbox(config.home)
    isolation = choose_isolation(wanted, capability, network)
    if not isolation.is_sandboxed:
        return RunContainment(isolation, None, cache_dir())
    sandbox = capability.sandbox(
        directory.source, hidden=[config.home], limits=RunLimits(memory_gb=asked.memory_gb), network=network
    )
    return RunContainment(isolation, sandbox, cache_dir() / "workspaces" / workspace_id)

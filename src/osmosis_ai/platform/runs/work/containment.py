"""What holds a run's rollouts back on this machine, decided once by the worker and said on the run.

A sandboxed run builds in a cache of its workspace's own: what a build leaves there, other workspaces never use.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.files import cache_dir
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.sandbox import (
    Isolation,
    IsolationUnavailableError,
    RunLimits,
    Sandbox,
    check_sandbox,
    choose_isolation,
    control_run,
    narrower,
    processors_for,
    stricter,
)

_GUARDED = (
    "because this machine hands out the credentials of the platform's bucket at its metadata address; "
    "OSMOSIS_NETWORK=host says that rollouts may reach it"
)


@dataclass(frozen=True)
class RunContainment:
    """How a run is held back.

    Attributes:
        isolation: the level that it has.
        sandbox: around its rollout servers and the builds of their environment; None where there is none.
        cache: where environments are built and kept.
        because: why it reaches no network although nobody asked for that; the end of a sentence.
    """

    isolation: Isolation
    sandbox: Sandbox | None
    cache: Path
    because: str = ""

    @property
    def words(self) -> str:
        """What the run's row says of it."""
        words = self.isolation.words
        if self.sandbox is None:
            return words
        return f"{words}, network {self.sandbox.network}; {self.sandbox.control.words}"

    @property
    def line(self) -> LogLine:
        """What the run's log says of it."""
        if self.isolation.warning is not None:
            return LogLine(self.isolation.warning, level="warning", step="isolation")
        how = "in a sandbox (bubblewrap)" if self.sandbox else "without a sandbox (OSMOSIS_ISOLATION=off)"
        reach = ", and reach the run's model alone" if self.sandbox and self.sandbox.network == "none" else ""
        because = f", {self.because}" if self.because else ""
        limits = f"; {self.sandbox.control.words}" if self.sandbox else ""
        return LogLine(f"rollouts run {how}{reach}{because}{limits}", step="isolation")

    def close(self) -> None:
        """End whatever the run's programs left here."""
        if self.sandbox is not None:
            self.sandbox.control.close()


def contain(
    config: PlatformConfig,
    directory: WorkingDirectory,
    workspace_id: str,
    asked: ExecutionSection,
    *,
    hands_out_keys: bool = False,
) -> RunContainment:
    """Decide how a run is held back; blocking, for the sandbox is tried.

    Args:
        config: of the platform.
        directory: of the run.
        workspace_id: whose it is.
        asked: what its config asks for.
        hands_out_keys: whether this machine gives the credentials of the platform's bucket to every program that asks
            its metadata address; rollouts do not reach it then unless the operator says that they may.

    Raises:
        IsolationUnavailableError: a sandbox is required, and this machine can not make one.
    """
    is_guarded = hands_out_keys and config.network is None
    network = "none" if is_guarded else narrower(config.network, asked.network)
    wanted = stricter(config.isolation, "required" if network == "none" else asked.isolation)
    if wanted == "off":
        return RunContainment(Isolation("none"), None, cache_dir())
    capability = check_sandbox(config.home)
    try:
        isolation = choose_isolation(wanted, capability, network)
    except IsolationUnavailableError as error:
        if is_guarded:
            error.hint = f"{error.hint}; the run has no network {_GUARDED}"
        raise
    if not isolation.is_sandboxed:
        return RunContainment(isolation, None, cache_dir())
    limits = RunLimits(memory_gb=asked.memory_gb, cpus=asked.cpus, processors=processors_for(asked.cpus))
    sandbox = capability.sandbox(
        directory.source,
        hidden=[config.home],
        limits=limits,
        control=control_run(directory.path.name, limits),
        network=network,
    )
    because = _GUARDED if is_guarded else ""
    return RunContainment(isolation, sandbox, cache_dir() / "workspaces" / workspace_id, because)

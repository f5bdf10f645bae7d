"""Isolation of a run on this machine, decided once by the worker and stored on the run.

Sandboxed builds use a cache per workspace, so that workspaces cannot affect each other's builds.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.files import cache_dir
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.worker.directory import WorkingDirectory
from osmosis_ai.sandbox import (
    GpuGrant,
    Isolation,
    IsolationUnavailableError,
    RunLimits,
    Sandbox,
    check_sandbox,
    choose_isolation,
    control_run,
    grant_gpus,
    narrower,
    processors_for,
    stricter,
)

GPU_LOCKS = "gpus"
"""Its directory has a lock for each of the machine's GPUs that a run uses."""
_GUARDED = (
    "because the metadata address of this machine gives the credentials of the platform's bucket to every program; "
    "OSMOSIS_NETWORK=host permits rollouts to reach it"
)


@dataclass(frozen=True)
class RunContainment:
    """Isolation of a run."""

    isolation: Isolation
    sandbox: Sandbox | None
    cache: Path
    because: str = ""
    gpus: str = ""

    @property
    def words(self) -> str:
        """The description in the run's row."""
        if self.sandbox is None:
            return self.isolation.words
        return f"{self.isolation.words}, network {self.sandbox.network}; {self.sandbox.control.words}"

    @property
    def line(self) -> LogLine:
        """The description in the run's log."""
        if self.isolation.warning is not None:
            return LogLine(self.isolation.warning, level="warning", step="isolation")
        if self.sandbox is None:
            return LogLine("rollouts run without a sandbox (OSMOSIS_ISOLATION=off)", step="isolation")
        reach = " and reach only the run's model" if self.sandbox.network == "none" else ""
        because = f", {self.because}" if self.because else ""
        more = f"{reach}{because}; {self.sandbox.control.words}{self.gpus}"
        return LogLine(f"rollouts run in a sandbox (bubblewrap){more}", step="isolation")

    @property
    def refusals(self) -> LogLine | None:
        """The log line about processes that were refused, if there were any."""
        if self.sandbox is None or not (often := self.sandbox.control.refused):
            return None
        times = "once" if often == 1 else f"{often} times"
        words = f"the run exceeded its limit of {self.sandbox.limits.processes} processes and threads {times}"
        return LogLine(words, level="warning", step="isolation")

    def close(self) -> None:
        """End whatever the run's programs left on this machine."""
        if self.sandbox is not None:
            self.sandbox.control.close()
            if self.sandbox.gpus is not None:
                self.sandbox.gpus.close()


def contain(
    config: PlatformConfig,
    directory: WorkingDirectory,
    workspace_id: str,
    asked: ExecutionSection,
    *,
    has_bucket_keys: bool = False,
) -> RunContainment:
    """Decide a run's isolation. Blocking, because it tests the sandbox."""
    is_guarded = has_bucket_keys and config.network is None
    network = "none" if is_guarded else narrower(config.network, asked.network)
    wanted = stricter(config.isolation, "required" if network == "none" else asked.isolation)
    if wanted == "off":
        return RunContainment(Isolation("none"), None, cache_dir())
    capability = check_sandbox(config.home)
    try:
        # The message is read on the run's page, and the machine may be any node of a cluster.
        machine = f"on the machine '{socket.gethostname()}'"
        isolation = choose_isolation(wanted, capability, network, where=machine)
    except IsolationUnavailableError as error:
        if is_guarded:
            error.hint = f"{error.hint}; the run has no network {_GUARDED}"
        raise
    if not isolation.is_sandboxed:
        return RunContainment(isolation, None, cache_dir())
    limits = RunLimits(memory_gb=asked.memory_gb, cpus=asked.cpus, processors=processors_for(asked.cpus))
    granted = grant_gpus(asked.gpus, config.home / GPU_LOCKS) if asked.gpus else None
    sandbox = capability.sandbox(
        directory.source,
        hidden=[config.home],
        limits=limits,
        control=control_run(directory.path.name, limits),
        gpus=granted,
        network=network,
    )
    cache = cache_dir() / "workspaces" / workspace_id
    because = _GUARDED if is_guarded else ""
    return RunContainment(isolation, sandbox, cache, because, _gpu_words(asked.gpus, granted))


def _gpu_words(asked: int | None, granted: GpuGrant | None) -> str:
    if not asked:
        return ""
    if granted is None:
        return f"; it requests GPUs ({asked}), but this machine has none"
    shared = f", {granted.shared} of them shared with other runs" if granted.shared else ""
    return f"; GPUs: {len(granted.visible)} of {asked}{shared}"

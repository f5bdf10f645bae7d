"""What a machine that takes runs has, and says of itself in each claim."""

from __future__ import annotations

from dataclasses import dataclass

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.controller.server_process import granted_cores
from osmosis_ai.sandbox import IsolationSetting, SandboxCapability
from osmosis_ai.sandbox.gpus import VISIBLE_ENV, counted_gpus

_LONGEST_PROBLEM = 500
RUN_PATIENCE_S = 600.0
"""For how long one run alone is asked for, where nobody said otherwise: as long as a ticket can be used to claim."""


@dataclass(frozen=True)
class HostTerms:
    """What a machine takes, and for how long."""

    pool: str | None = None
    run_id: str | None = None
    slots: int = 1
    once: bool = False
    idle_exit_s: float | None = None
    labels: tuple[str, ...] = ()
    cpus: float | None = None
    gpus: int = 0
    memory_gb: float | None = None
    address: str | None = None
    machine: str | None = None
    sandbox: SandboxCapability | None = None
    isolation: IsolationSetting | None = None

    @property
    def patience_s(self) -> float:
        """How many seconds the host keeps running without a run."""
        if self.idle_exit_s is not None:
            return self.idle_exit_s
        return float("inf") if self.run_id is None else RUN_PATIENCE_S

    @property
    def cpus_of_worker(self) -> float | None:
        """What one worker is granted of this machine's processors, which all slots share; None where nobody said."""
        return None if self.cpus is None else min(self.cpus, granted_cores() / self.slots)

    def doubts(self) -> list[str]:
        """Return what it says of this machine and does not see: it is taken at its word, for a container may hide that."""
        seen = counted_gpus()
        if seen is None or seen >= self.gpus:
            return []
        return [
            f"--gpus {self.gpus}, and this machine shows {seen or 'none'} (/dev/nvidia*, {VISIBLE_ENV}): runs that ask "
            "for GPUs are taken all the same"
        ]

    def told(self, address: str) -> str:
        """Return in a sentence what it takes of the platform at ``address``."""
        if self.run_id is None:
            return f"takes runs of {address}"
        return (
            f"takes the run {self.run_id} of {address}, and waits for it for {_span(self.patience_s)} at most"
        )

    @property
    def missed(self) -> str:
        """What is said of the one run that was asked for, and is not given."""
        return (
            f"the run {self.run_id} could not be taken: it is not there for this worker, has ended, or "
            "another one works on it."
        )

    def offer(self, claim_id: str, wait_s: float) -> WorkerOffer:
        """Return a claim."""
        return WorkerOffer(
            claim_id=claim_id,
            sdk_version=__version__,
            run_id=self.run_id,
            pool=self.pool,
            machine=self.machine,
            sandbox=self.sandbox.works if self.sandbox is not None else None,
            sandbox_problem=_problem(self.sandbox),
            isolation=self.isolation,
            labels=list(self.labels),
            cpus=self.cpus,
            gpus=self.gpus,
            memory_gb=self.memory_gb,
            wait_s=wait_s,
        )


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"


def _problem(sandbox: SandboxCapability | None) -> str | None:
    if sandbox is None or sandbox.works:
        return None
    said = "; ".join(filter(None, (sandbox.problem, sandbox.remedy)))
    return " ".join(said.split())[:_LONGEST_PROBLEM]

"""Interface of executors: start, inspect, stop and list jobs, each a worker for one run.

Jobs are processes of this machine or jobs of a Ray cluster. An executor knows how long these operations take, what a
job waits for and how it ended. :mod:`~osmosis_ai.platform.runs.execute.executor_loop` decides which runs get jobs.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from osmosis_ai.errors import OsmosisError

Phase = Literal["waiting", "running", "ended"]
Fault = Literal["nobody", "ours", "run"]
"""Against whom the end of a job counts."""
_PREFIX = "osm-"


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A worker that is wanted for a run."""

    id: str
    run_id: str
    cpus: float = 1.0
    gpus: int = 0
    memory_gb: float | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job is."""

    id: str
    phase: Phase
    told: str = ""
    fault: Fault = "nobody"
    log: str = ""


class ExecutorAway(OsmosisError):
    """Where jobs are executed cannot be asked, or does not do what it was asked."""

    where: ClassVar[str]


class Executor(Protocol):
    """Where workers start; for one thread, but for :meth:`close`."""

    every_s: float
    first_pause_s: float
    works_here: bool

    def start(self, job: WantedJob, ticket: str) -> str:
        """Start a job with the right to claim its run; return what the run's log is to say of it."""
        ...

    def state(self, job: WantedJob) -> JobState | None:
        """Return how a job is; None of one that was never started."""
        ...

    def stop(self, job: WantedJob) -> None:
        """End a job by force; harmless when it has ended."""
        ...

    def list(self) -> builtins.list[JobState]:
        """Return the jobs that there are."""
        ...

    def close(self) -> None:
        """Let go of everything; jobs that need not end with this process go on."""
        ...


def job_id(run_id: str, number: int) -> str:
    """Return the id of the ``number``-th job of a run."""
    return f"{_PREFIX}{run_id}-{number}"


def run_and_number(job: str) -> tuple[str, int] | None:
    """Return whose job that is, and which of its run; None where :func:`job_id` did not make the id."""
    run_id, _, number = job.removeprefix(_PREFIX).rpartition("-")
    if not job.startswith(_PREFIX) or not run_id or not (number.isascii() and number.isdigit()):
        return None
    return run_id, int(number)

"""A Ray cluster that a test plays, and the executor that runs go to it with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.ray_cluster import RayCluster
from osmosis_ai.platform.runs.execute.executor_loop import ExecutorLoop
from osmosis_ai.platform.runs.leases import Lease
from tests.platform.runs.execute.recorded_ray import RecordedRay
from tests.platform.runs.pretended_workers import Bench

NO_ANSWER = httpx.ReadTimeout("slow")


class Notes:
    """Tickets, noted down."""

    def __init__(self) -> None:
        self.issued: list[str] = []
        self.seen_running: list[str] = []
        self.withdrawn: list[str] = []
        self.unconfined: dict[str, str] = {}

    def issue_ticket(self, run_id: str) -> str:
        self.issued.append(run_id)
        return f"ticket-{len(self.issued)}-of-{run_id}"

    def note_running(self, run_id: str) -> None:
        self.seen_running.append(run_id)

    def withdraw(self, run_id: str) -> None:
        self.withdrawn.append(run_id)

    def why_unconfined(self, run_id: str) -> str | None:
        return self.unconfined.get(run_id)


class Cluster:
    """A cluster, the executor that uses it, and runs."""

    def __init__(self, bench: Bench, directory: Path) -> None:
        self.bench, self.clock, self.leases = bench, bench.clock, bench.leases
        self.directory = directory
        self.ray = RecordedRay()
        self.notes = Notes()
        self.executor = self.started()

    def add(self, name: str, **changes: Any) -> str:
        return self.bench.add(name, **changes)

    def started(self, slots: int = 100) -> ExecutorLoop:
        """Return an executor as a platform that starts has it."""
        services = self.bench.services
        config = replace(services.config, ray=RayCluster("http://127.0.0.1:8265"), executor_slots=slots)
        jobs = self.ray.jobs_of(self.directory, self.clock.monotonic)
        parts = replace(services.executor_parts(config), clock=self.clock, tickets=self.notes)
        return ExecutorLoop(parts, jobs)

    def rounds(self, seconds: float = 0.0) -> None:
        """Let time pass, with a round every ten seconds and one at its end."""
        while seconds > 0:
            step = min(10.0, seconds)
            self.clock.advance(step)
            self.executor.round()
            seconds -= step
        self.executor.round()

    def claim(self, run_id: str) -> Lease:
        lease = self.leases.claim(run_id, f"worker-of-{run_id}")
        assert lease is not None
        return lease

    def change(self, run_id: str, **changes: Any) -> None:
        with self.bench.services.db.transaction() as session:
            run = session.get_one(DbRun, run_id)
            for name, value in changes.items():
                setattr(run, name, value)

    def run(self, run_id: str) -> DbRun:
        with self.bench.services.db.session() as session:
            return session.get_one(DbRun, run_id)

    def waits(self, run_id: str) -> str | None:
        """Return what REST, pages and commands say that a run waits for."""
        return self.bench.services.why_it_waits(self.run(run_id))

    def log(self, run_id: str) -> list[str]:
        return [line.message for line in self.bench.services.logs.page(run_id).logs]

"""An executor whose workers are only pretended: the test decides what becomes of each."""

from __future__ import annotations

import secrets
from typing import Any

from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.local_execution import open_local_executor
from osmosis_ai.platform.runs.execute.worker_process import ENDED
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member


class Pretended:
    """A worker process whose fate the test decides."""

    pid = 2**22 + 1

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.token = secrets.token_urlsafe(24)
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        if self.status is None:
            self.status = -9


class Bench:
    """An executor of two slots, its workers and the runs they are for."""

    def __init__(self, services: PlatformServices, clock: ManualClock, member: Member) -> None:
        self.services = services
        self.clock = clock
        self.member = member
        self.leases = Leases(services.db, clock)
        self.started: list[Pretended] = []
        self.executor = open_local_executor(services, start_worker=self._start)

    def _start(self, run_id: str, credential: str, claim_id: str) -> Pretended:
        self.started.append(Pretended(run_id))
        return self.started[-1]

    def add(self, name: str, member: Member | None = None, **changes: Any) -> str:
        self.clock.advance(1)
        described: dict[str, Any] = {
            "id": f"run_{name}",
            "workspace_id": (member or self.member).workspace.id,
            "kind": "eval",
            "name": name,
            "status": "pending",
            "created_at": self.clock.now(),
            "request": {},
            "rollout_name": "multiply",
            "dataset_name": "multiply",
            "model_path": "osmosis/tiny",
        }
        run = DbRun(**{**described, **changes})
        with self.services.db.transaction() as session:
            session.add(run)
        return run.id

    def claim(self, worker: Pretended) -> Lease:
        lease = self.leases.claim(worker.run_id, worker.token)
        assert lease is not None
        self.directory(worker.run_id).note_lease(worker.token)
        return lease

    def round(self, later_s: float = 0.0) -> None:
        """Have the executor do what there is to be done after some time."""
        self.clock.advance(later_s)
        self.executor.round()

    def die(self, status: int = -9, *, later_s: float = 0.0, is_claimed: bool = True) -> None:
        """Let a worker start, if none is there, and die; pass some time when that was noticed."""
        self.executor.round()
        if is_claimed:
            self.claim(self.started[-1])
        self.started[-1].status = status
        self.round()
        self.clock.advance(later_s)

    def ask_to_stop(self, run_id: str) -> None:
        with self.services.db.transaction() as session:
            session.get_one(DbRun, run_id).stop_requested_at = self.clock.now()

    def record(self, run_id: str) -> None:
        """Let a worker get something done."""
        run = self.run(run_id)
        directory = WorkingDirectory(self.services.config.runs_dir, run_id)
        if run.kind == "training":
            checkpoints = directory.training.checkpoints
            checkpoints.mkdir(parents=True, exist_ok=True)
            done = len(list(checkpoints.iterdir()))
            (checkpoints / f"step-{done + 1:08d}").mkdir()
            return
        evaluation = directory.evaluation(run.name)
        evaluation.path.mkdir(parents=True, exist_ok=True)
        with evaluation.events.open("ab") as journal:
            journal.write(b"{}\n")

    def directory(self, run_id: str) -> WorkingDirectory:
        return WorkingDirectory(self.services.config.runs_dir, run_id)

    def run(self, run_id: str) -> DbRun:
        with self.services.db.session() as session:
            return session.get_one(DbRun, run_id)

    def end(self, worker: Pretended) -> None:
        lease = self.claim(worker)
        with self.leases.writing(lease) as (_, run):
            self.leases.end(run, "finished")
        worker.status = ENDED

    @property
    def order(self) -> list[str]:
        return [worker.run_id.removeprefix("run_") for worker in self.started]


def messages(bench: Bench, run_id: str) -> list[str]:
    return [line.message or "" for line in bench.services.logs.page(run_id, direction="newer").logs]

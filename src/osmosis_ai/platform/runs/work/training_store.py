"""What a training worker finds out becomes visible: metric points, checkpoints, how far the run is.

Every write is keyed by what it is about (run, metric and step; run and step), so a step that is repeated after a
resume replaces itself and nothing is there twice. Every write is made under the run's lease: a worker that was
replaced writes nothing any more. An adapter's files are stored before the row that names them, never after.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.tables import DbLoraModel, DbMetricPoint, new_id, upsert
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.training.runs.metrics import TRAINING_REWARD, StepRecord, finite

ROLLOUTS = "rollout/samples"
"""The metric that counts the rollouts of a step; their sum is what a run has processed."""


class TrainingRunWriter:
    """Writes one training run.

    Args:
        lease: the right to write it.
        leases, blobs: where it is written.
        clock: dates the checkpoints.
        base_model: what the run's adapters are adapters of.

    Every method raises :class:`~osmosis_ai.platform.runs.leases.LeaseLostError`, having written nothing, once
    the run has another owner or has ended.
    """

    def __init__(
        self, lease: Lease, leases: Leases, blobs: BlobStore, clock: Clock, *, base_model: str
    ) -> None:
        self._lease = lease
        self._leases = leases
        self._blobs = blobs
        self._clock = clock
        self._base_model = base_model

    def begin(self, *, total_steps: int, steps_done: int = 0) -> None:
        """Say how long the run will be, and where it goes on; what came after that is forgotten.

        Args:
            total_steps: of the whole run.
            steps_done: the step of the checkpoint that the run continues from; 0 for a new one.
        """
        with self._leases.writing(self._lease) as (session, run):
            later = (DbMetricPoint.run_id == run.id, DbMetricPoint.step > steps_done)
            session.execute(delete(DbMetricPoint).where(*later))
            run.results = _results(session, run.id, current_step=steps_done, total_steps=total_steps)

    def append_steps(self, records: Sequence[StepRecord]) -> None:
        """Record what steps have come to, all of them or none; what is no finite number is left out."""
        if not records:
            return
        points = [
            {
                "run_id": self._lease.run_id,
                "key": key,
                "step": record.step,
                "value": value,
                "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc),
            }
            for record in records
            for key, value in finite(record.metrics).items()
        ]
        with self._leases.writing(self._lease) as (session, run):
            upsert(session, DbMetricPoint, points)
            known = run.results or {}
            run.results = _results(
                session,
                run.id,
                current_step=max(known.get("current_step", 0), *(record.step for record in records)),
                total_steps=known.get("total_steps"),
            )

    def checkpoint_steps(self) -> set[int]:
        """Return the steps whose checkpoints are kept already."""
        with self._leases.writing(self._lease) as (session, run):
            return set(session.scalars(select(DbLoraModel.step).where(DbLoraModel.run_id == run.id)))

    def add_checkpoint(
        self, step: int, adapter: Path, *, provenance: Path | None = None, reward: float | None = None
    ) -> str:
        """Keep an adapter as a checkpoint of the run, and return its name; blocking, as long as its files take.

        Args:
            step: after which it was saved.
            adapter: a directory in PEFT's layout; every file directly in it is kept.
            provenance: a file that says what made it, kept beside them.
            reward: of the policy with it, where that is known.

        Raises:
            OSError: the files could not be read or stored; there is no checkpoint then.
        """
        paths = [path for path in sorted(adapter.iterdir()) if path.is_file()]
        paths += [provenance] if provenance is not None else []
        files = {path.name: self._stored(step, path) for path in paths}
        with self._leases.writing(self._lease) as (session, run):
            model = session.scalar(
                select(DbLoraModel).where(DbLoraModel.run_id == run.id, DbLoraModel.step == step)
            )
            if model is None:
                model = DbLoraModel(
                    id=new_id("lora"),
                    workspace_id=run.workspace_id,
                    run_id=run.id,
                    name=f"{run.name}-step-{step}",
                    base_model=self._base_model,
                    step=step,
                    created_at=self._clock.now(),
                )
                session.add(model)
            model.files, model.reward = files, reward
            return model.name

    def _stored(self, step: int, path: Path) -> dict[str, Any]:
        # The key says what the file is, so that storing it again leaves nothing behind.
        key = f"runs/{self._lease.run_id}/checkpoints/{step}/{path.name}"
        with path.open("rb") as content:
            info = self._blobs.put(key, content)
        return {"blob_key": key, "size": info.size, "sha256": info.sha256}


def _results(session: Session, run_id: str, *, current_step: int, total_steps: int | None) -> dict[str, Any]:
    """Return what lists show of a run; derived from its points, so that repeating a step changes nothing."""
    mine = DbMetricPoint.run_id == run_id
    reward = session.scalar(
        select(DbMetricPoint.value)
        .where(mine, DbMetricPoint.key == TRAINING_REWARD)
        .order_by(DbMetricPoint.step.desc())
        .limit(1)
    )
    rollouts = session.scalar(
        select(func.sum(DbMetricPoint.value)).where(mine, DbMetricPoint.key == ROLLOUTS)
    )
    known = {
        "current_step": current_step,
        "total_steps": total_steps,
        "reward": reward,
        "examples_processed_count": int(rollouts or 0),
    }
    return {key: value for key, value in known.items() if value is not None}

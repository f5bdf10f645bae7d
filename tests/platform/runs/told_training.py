"""What a worker says of a training run, in the words of the protocol."""

from __future__ import annotations

from io import BytesIO

from osmosis_ai.api.wire.workers import CheckpointPart, TrainingNews, TrainingStart, TrainingStep
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.training.runs.metrics import StepRecord
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import (
    Submits,
    training_body,
)
from tests.platform.training_desk import DeskSink

RUNS = "/api/cli/training-runs"
SUBMITS = Submits(RUNS, training_body)
submitted, refused = SUBMITS.taken, SUBMITS.refused


def claimed(services: PlatformServices, run_id: str, token: str = "worker-1") -> Lease:
    lease = Leases(services.db, services.clock).claim(run_id, token)
    assert lease is not None
    return lease


class Told:
    """What a worker says of its training run, in the words of the protocol, and the platform's rows."""

    def __init__(self, services: PlatformServices, lease: Lease) -> None:
        leases = Leases(services.db, services.clock)
        self.sink = DeskSink(lease, leases, services.blobs, services.clock)

    def begin(self, *, total_steps: int, steps_done: int = 0) -> None:
        start = TrainingStart(total_steps=total_steps, steps_done=steps_done)
        self.sink.send(TrainingNews(start=start))

    def append_steps(self, records: list[StepRecord]) -> None:
        steps = [
            TrainingStep(
                step=record.step,
                timestamp_ms=record.timestamp_ms,
                metrics={**record.metrics},
                validation_rewards={**record.validation_rewards},
            )
            for record in records
        ]
        self.sink.send(TrainingNews(steps=steps))

    def add_archive(self, step: int) -> None:
        name = f"resume/{step}-a/checkpoint.tar"
        part = CheckpointPart(
            step=step, base_model="osmosis/tiny", files={"checkpoint.tar": name}, is_resume=True
        )
        self.sink.send(TrainingNews(checkpoints=[part]), {name: BytesIO(b"archive")})

    def add_checkpoint(self, step: int, weights: bytes = b"weights", *, reward: float | None = None) -> str:
        files = {"adapter_model.safetensors": weights, "adapter_config.json": b"{}"}
        names = {name: f"checkpoints/{step}/{name}" for name in files}
        part = CheckpointPart(step=step, base_model="osmosis/tiny", files=names, reward=reward)
        blobs = {names[name]: BytesIO(content) for name, content in files.items()}
        return self.sink.send(TrainingNews(checkpoints=[part]), blobs)[step]


def gone_on(services: PlatformServices, run_id: str, token: str) -> Told:
    """Return what the next worker of a run says, that of the first having let it go."""
    leases = Leases(services.db, services.clock)
    leases.release(run_id, "worker-1")
    return Told(services, claimed(services, run_id, token))


def done(step: int, metrics: dict[str, float], clock: ManualClock) -> StepRecord:
    """Return a step that ended just now."""
    return StepRecord(step, round(clock.now().timestamp() * 1000), metrics)

"""What a worker says of a training run, over HTTP."""

from __future__ import annotations

from hashlib import sha256

from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.training_names import version_of
from osmosis_ai.platform.runs.work.validation_files import ValidationFiles
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, training_body
from tests.platform.platform_parts import PlatformServices, Redactor
from tests.platform.runs.desk.desk_workers import DeskWorker
from tests.platform.training_desk import DeskSink
from tests.viewer.source_contract import leave_validation, sample_record

RUNS = "/api/cli/training-runs"
SUBMITS = Submits(RUNS, training_body)
submitted, refused = SUBMITS.taken, SUBMITS.refused
TRAINING_REWARD, VALIDATION_REWARD = "rollout/raw_reward", "eval/validation/reward"
ROLLOUTS = "rollout/samples"


class Told(DeskWorker):
    """The owner of a training run."""

    def begin(self, *, total_steps: int, steps_done: int = 0) -> None:
        self.sync(training={"start": {"total_steps": total_steps, "steps_done": steps_done}})

    def step(self, number: int, metrics: dict[str, float], clock: ManualClock, **validated: float) -> None:
        """Say that a step ended just now."""
        at_ms = round(clock.now().timestamp() * 1000)
        step = {"step": number, "timestamp_ms": at_ms, "metrics": metrics, "validation_rewards": validated}
        self.sync(training={"steps": [step]})

    def add_archive(self, step: int, folder: str = "") -> None:
        """Send what another machine goes on from."""
        name = f"resume/{folder or f'{step}-a'}/checkpoint.tar"
        part = {"step": step, "base_model": "osmosis/tiny", "files": {"checkpoint.tar": name}}
        grant = self.wants(name, b"archive")
        sent = [self.puts(grant, b"archive")] if grant.url else []
        self.sync(sent=sent, training={"checkpoints": [{**part, "is_resume": True}]})

    def add_checkpoint(self, step: int, weights: bytes = b"weights", *, reward: float | None = None) -> str:
        files = {"adapter_model.safetensors": weights, "adapter_config.json": b"{}"}
        # Named for what they hold, as a worker does it.
        names = {
            name: f"checkpoints/{step}/{sha256(content).hexdigest()[:16]}-{name}"
            for name, content in files.items()
        }
        part = {"step": step, "base_model": "osmosis/tiny", "files": names, "reward": reward}
        grants = {name: self.wants(names[name], content) for name, content in files.items()}
        sent = [self.puts(grant, files[name]) for name, grant in grants.items() if grant.url]
        return self.sync(sent=sent, training={"checkpoints": [part]}).checkpoints[step]

    def add_validation(self, step: int) -> str:
        """Send a validation of one file; return the key of its blob."""
        content = f"after step {step}".encode()
        version = version_of(step, content)
        name = f"validation/{version}/a-samples.jsonl"
        file = {"path": "validation/samples.jsonl", "kind": "validation", "size": len(content), "blob": name}
        grant = self.wants(name, content)
        sent = [self.puts(grant, content)] if grant.url else []
        self.sync(sent=sent, training={"validation": {"version": version, "files": [file]}})
        return f"runs/{self.run_id}/{name}"


def claimed(services: PlatformServices, run_id: str) -> Told:
    worker = Told.claims(services, run_id=run_id)
    assert isinstance(worker, Told)
    return worker


def gone_on(worker: Told) -> Told:
    """Return who owns a run when its worker has let it go."""
    worker.releases()
    return claimed(worker.services, worker.run_id)


def validate(services: PlatformServices, run_id: str, step: int) -> None:
    """Publish, as a worker does, a validation of three samples, of the second of which there is a conversation."""
    records = [
        sample_record(0, 0, 1.0),
        sample_record(1, 0, 0.5, notes="Nearly."),
        sample_record(2, 0, error="no"),
    ]
    samples = ValidationSamples.of(records, step=step, pass_threshold=1.0)
    directory = WorkingDirectory(services.config.runs_dir, run_id).training
    leave_validation(directory, samples, {(1, 0): b'{"steps": [%d]}' % step})
    leases = Leases(services.db, services.clock)
    lease = leases.claim(run_id, f"worker-{step}")
    assert lease is not None
    sink = DeskSink(lease, leases, services.blobs, services.clock)
    ValidationFiles(sink, sink.stored().validation, Redactor(), directory).publish()
    leases.release(run_id, lease.token)

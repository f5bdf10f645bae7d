"""A trainer that learns nothing, a run for it, and workers that come for that."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.work.inputs import RunInputs
from osmosis_ai.platform.runs.work.publisher import Publisher
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from osmosis_ai.platform.runs.work.run_work import Interrupt, WorkResult
from osmosis_ai.platform.runs.work.training_work import PreparedTraining, TrainingWork
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.loop import Ending, SavedCheckpoint, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import TRAINING_REWARD, MetricsHistory, StepRecord
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import TrainingSummary
from tests.platform.evaluations import training_body
from tests.platform.runs.work.claimed_runs import DeskLink

RUNS = "/api/cli/training-runs"
# training_body() keeps a checkpoint every 5 steps.
STEPS = 8


class PretendedTrainer:
    """Takes steps without learning anything, and ends as the test says."""

    ends: Callable[[PretendedTrainer], Ending]

    def __init__(
        self,
        spec: TrainingSpec,
        run_dir: Path,
        hooks: TrainingHooks,
        *,
        environ: Any,
        provenance: Any,
        **_contained: Any,
    ) -> None:
        self.spec = spec
        self.hooks = hooks
        self.environ = environ
        self.provenance = provenance
        self.directory = TrainingDirectory(run_dir)
        self.stopped = asyncio.Event()

    async def run(self) -> TrainingSummary:
        self.directory.checkpoints.mkdir(parents=True, exist_ok=True)
        if not self.directory.manifest.exists():
            Manifest("training", {}, {}).write(self.directory.manifest)
        loop = asyncio.get_running_loop()
        self.hooks.started(lambda: loop.call_soon_threadsafe(self.stopped.set))
        done = max((each.step for each in checkpoints_in(self.directory.checkpoints)), default=0)
        self.hooks.plan(TrainingPlan(self.directory.path, "osmosis/tiny", 100, 5, 32, STEPS, done, "cpu"))
        ending = type(self).ends(self)
        return TrainingSummary(self.directory.path, ending, 0, STEPS, [])

    def take_steps(self, first: int, last: int) -> None:
        history = MetricsHistory(self.directory.metrics)
        for step in range(first, last + 1):
            record = StepRecord(step, 1000 * step, {TRAINING_REWARD: step / 10})
            history.append(record)
            self.hooks.step(record, STEPS)
            saved = save_checkpoint(self.directory, step, self.provenance, keep=step % 5 == 0)
            self.hooks.checkpoint(SavedCheckpoint(step, saved, step % 5 == 0))


def save_checkpoint(directory: TrainingDirectory, step: int, provenance: Any, *, keep: bool) -> Path:
    writing, saved = directory.path / "writing", directory.checkpoints / f"step-{step:08d}"
    (writing / "adapter").mkdir(parents=True)
    (writing / "adapter" / "adapter_config.json").write_text("{}")
    (writing / "adapter" / "adapter_model.safetensors").write_bytes(f"weights {step}".encode())
    described = {**provenance, "step": step, "metrics": {TRAINING_REWARD: step / 10}}
    (writing / "provenance.json").write_text(json.dumps(described))
    (writing / "trainer_state.json").write_text(json.dumps({"step": step}))
    if keep:
        (writing / "keep").touch()
    writing.rename(saved)
    return saved


class Bench:
    """One submitted run and the workers that come for it."""

    def __init__(self, api: TestClient, services: PlatformServices, **changes: Any) -> None:
        self.api = api
        self.services = services
        reply = api.post(RUNS, json=training_body(**changes))
        assert reply.status_code == 200, reply.text
        self.id, self.name = reply.json()["id"], reply.json()["name"]
        self.config = services.config
        self.directory = WorkingDirectory(services.config.runs_dir, self.id)
        self.prepared: PreparedTraining | None = None
        self.error: Exception | None = None

    def move(self, home: Path) -> None:
        """Let the next workers be of another machine, with a home of its own."""
        self.config = replace(self.services.config, home=home)
        self.config.prepare_home()
        self.directory = WorkingDirectory(self.config.runs_dir, self.id)

    def work(self, interrupt: Interrupt | None = None) -> WorkResult | None:
        """Let a worker work on the run once; return its verdict, or None with the error kept."""
        services = self.services
        offer = WorkerOffer(claim_id=os.urandom(16).hex(), sdk_version=__version__, run_id=self.id)
        assignment = services.desk.claim(offer, ClaimScope(run_id=self.id))
        assert assignment is not None
        channel = RunChannel(DeskLink(services), assignment)
        self.directory.create()
        inputs = RunInputs(self.config, channel, self.directory)
        work = TrainingWork(inputs, channel, self.directory)
        self.prepared = work.prepare()
        channel.sync()  # hears whether it is to stop
        publisher = Publisher(channel, services.clock, self.prepared.redactor)
        publisher.start()
        verdict = None
        try:
            verdict = asyncio.run(work.execute(self.prepared, publisher, interrupt or Interrupt()))
        except Exception as error:
            self.error = error
        except Gone:
            publisher._closing = True
            publisher._thread.join()  # type: ignore[union-attr]
            raise
        publisher.finish()
        channel.release(ending=work.ending)
        return verdict

    def ask_to_stop(self) -> None:
        with self.services.db.transaction() as session:
            session.get_one(DbRun, self.id).stop_requested_at = self.services.clock.now()

    def checkpoints(self) -> list[int]:
        listed = self.api.get(f"{RUNS}/{self.name}/checkpoints").json()["checkpoints"]
        return [one["checkpoint_step"] for one in listed]

    def steps(self) -> list[int]:
        series = self.api.get(f"{RUNS}/{self.name}/metrics").json()["metrics"]
        return [point["step"] for each in series for point in each["data_points"]]

    def log(self) -> str:
        page = self.api.get(f"{RUNS}/{self.name}/logs", params={"limit": 200}).json()
        return "\n".join(line["message"] for line in page["logs"])


def finishes(pretended: PretendedTrainer) -> Ending:
    pretended.take_steps(1, STEPS)
    return Ending("finished", f"all {STEPS} steps are done.")


def is_stopped(pretended: PretendedTrainer) -> Ending:
    pretended.take_steps(1, 7)
    return Ending("stopped", "stopped after step 7.")


def goes_on(pretended: PretendedTrainer) -> Ending:
    (*_, last) = checkpoints_in(pretended.directory.checkpoints)
    pretended.take_steps(last.step + 1, STEPS)
    return Ending("finished", f"all {STEPS} steps are done.")


class Gone(BaseException):
    """A machine, with everything on it."""

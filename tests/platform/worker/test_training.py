"""What a worker gives a trainer and reports of it: the trainer is a fake, the platform and the files are real."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.models.workers import FinishRequest, ReleaseRequest
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.platform.db.tables import DbDataset, DbRun
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.platform.worker.client import WorkerClient
from osmosis_ai.platform.worker.process import WorkerExit, WorkingDirectory
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.training import TrainingWork
from osmosis_ai.platform.worker.work import Interrupt, ShardEnd
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.learner.ranks import LearnerProcessLostError
from osmosis_ai.training.runs import trainer
from osmosis_ai.training.runs.loop import StopReason, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_PLANNED,
    MetricsHistory,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import TrainingSummary
from tests.lazily import needs
from tests.platform.conftest import Member, World
from tests.platform.evaluations import add_dataset
from tests.platform.fake_worker import TRAININGS, FakeWorker, settle
from tests.training.samples import write_checkpoint

needs("torch")
RUNS = "/api/cli/training-runs"
# A checkpoint is kept every 5 steps.
STEPS = 8


class FakeTrainer:
    """Takes steps without learning anything, and ends as the test says."""

    train: Callable[[FakeTrainer], StopReason]

    def __init__(
        self,
        spec: TrainingSpec,
        run_dir: Path,
        hooks: TrainingHooks,
        *,
        environ: Any,
        provenance: Any,
        **_: Any,
    ) -> None:
        self.spec, self.hooks, self.environ, self.provenance = spec, hooks, environ, provenance
        self.directory = TrainingDirectory(run_dir)
        self.stopped = asyncio.Event()

    async def run(self) -> TrainingSummary:
        directory = self.directory
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        if not directory.manifest.exists():
            Manifest("training", {}, {}).write(directory.manifest)
        loop = asyncio.get_running_loop()
        self.hooks.started(lambda: loop.call_soon_threadsafe(self.stopped.set))
        self.done = max((each.step for each in checkpoints_in(directory.checkpoints)), default=0)
        plan = TrainingPlan(directory.path, "osmosis/tiny", 100, 5, 32, STEPS, self.done, "cpu")
        self.hooks.plan(plan)
        return TrainingSummary(directory.path, type(self).train(self), 0, STEPS, [])

    def take_steps(self, last: int) -> None:
        history = MetricsHistory(self.directory.metrics)
        for step in range(self.done + 1, last + 1):
            taken = StepRecord(step, 1000 * step, {TRAINING_REWARD: step / 10})
            history.append(taken)
            self.hooks.step(taken, STEPS)
            described = {**self.provenance, "step": step, "metrics": taken.metrics}
            self.hooks.checkpoint(
                write_checkpoint(self.directory, step, provenance=described, keep=step % 5 == 0)
            )
        self.done = last

    def validate(self, step: int, said: str) -> None:
        """Validate on two rows; the conversation of the second is incomplete."""
        found = [
            TerminalRecord(row, 0, f"valid-{step:06d}-row-{row}-0", "success", 5, reward=0.5, output=said)
            for row in range(2)
        ]
        for each, content in zip(found, (json.dumps({"steps": [{"message": said}]}), '{"st'), strict=True):
            (self.directory.trials / each.rollout_id).mkdir(parents=True)
            (self.directory.trials / each.rollout_id / "trajectory.json").write_text(content)
        self.directory.write_validation(ValidationSamples.of(found, step=step, pass_threshold=1.0))
        taken = StepRecord(step, 1000 * step, {VALIDATION_PLANNED: 2.0})
        MetricsHistory(self.directory.metrics).append(taken)
        self.hooks.step(taken, STEPS)


class Machine:
    """One training run and the workers that come for it."""

    def __init__(
        self, api: TestClient, world: World, client: WorkerClient, patch: pytest.MonkeyPatch
    ) -> None:
        self.api, self.world, self.client, self.patch = api, world, client, patch
        self.config = world.services.config
        patch.setattr(trainer, "Trainer", FakeTrainer)

    def submit(self, **changes: Any) -> Machine:
        submitted = TRAININGS.taken(self.api, **changes)
        self.id, self.name = submitted["id"], submitted["name"]
        return self

    def move(self, home: Path) -> None:
        """Let the next workers be on another machine."""
        self.config = replace(self.world.services.config, home=home)
        self.config.prepare_home()

    def work(self, train: Callable[[FakeTrainer], StopReason], *, must_stop: bool = False) -> ShardEnd:
        """Let a worker execute the run once, and release it."""
        self.patch.setattr(FakeTrainer, "train", train, raising=False)
        self.owner = FakeWorker.claims(self.world, run_id=self.id)
        self.directory = WorkingDirectory(self.config.runs_dir, self.owner.shard_id)
        self.directory.create()
        assigned, clock = self.owner.assignment, self.world.services.clock
        self.reporter = Reporter(self.client, assigned, clock, lambda _: None)
        self.interrupt = Interrupt()
        work = TrainingWork(self.config, self.reporter, self.directory)
        work.prepare()
        if must_stop:
            self.api.post(f"{RUNS}/{self.name}/stop", json={})
            self.interrupt.set()
        self.reporter.sync()  # the answer says whether the run must stop
        self.reporter.start()
        try:
            result = asyncio.run(work.execute(self.interrupt))
        finally:
            self.reporter.flush()
            self.reporter.close()
            self.note = work.note
            self.owner.releases()
        return result

    def checkpoints(self) -> list[int]:
        listed = self.api.get(f"{RUNS}/{self.name}/checkpoints").json()["checkpoints"]
        return [one["checkpoint_step"] for one in listed]

    def steps(self) -> list[int]:
        series = self.api.get(f"{RUNS}/{self.name}/metrics").json()["metrics"]
        return [point["step"] for each in series for point in each["data_points"]]

    @property
    def log(self) -> str:
        return "\n".join(self.owner.messages())


def finishes(fake: FakeTrainer) -> StopReason:
    fake.take_steps(STEPS)
    return StopReason("finished", f"all {STEPS} steps are done.")


def stops_at(step: int) -> Callable[[FakeTrainer], StopReason]:
    def train(fake: FakeTrainer) -> StopReason:
        fake.take_steps(step)
        return StopReason("stopped", f"stopped after step {step}.")

    return train


@pytest.fixture
def machine(api: TestClient, world: World, real: WorkerClient, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(api, world, real, monkeypatch)


def test_run_moves_between_machines(machine: Machine, tmp_path: Path) -> None:
    machine.submit()
    assert machine.work(stops_at(7)) == ReleaseRequest()
    assert machine.checkpoints() == [5], "the run does not end at step 7"
    first = machine.config
    machine.move(tmp_path / "elsewhere")
    machine.work(stops_at(8))
    assert "resumed from the stored checkpoint of step 7" in machine.log
    assert [each.step for each in checkpoints_in(machine.directory.training.checkpoints)] == [7, 8]
    machine.config = first
    assert machine.work(finishes) == FinishRequest(outcome="finished")
    assert "from the stored checkpoint of step 8" in machine.log
    assert machine.steps() == list(range(1, STEPS + 1))
    assert [each.step for each in read_history(machine.directory.training.metrics)] == machine.steps()
    assert machine.checkpoints() == [5, 8]


def test_validation_dataset(machine: Machine, world: World, member: Member, tmp_path: Path) -> None:
    held = add_dataset(world, member, "held", rows=[{"user_prompt": "9 * 9?", "ground_truth": "81"}])
    machine.submit(advanced_config={"validation_dataset": "held", "validation_attempts": 3})
    read = []

    def train(fake: FakeTrainer) -> StopReason:
        plan = fake.spec.validation
        assert plan.path is not None and plan.path != fake.spec.dataset.path
        read.append((plan.attempts, plan.path.read_bytes()))
        return stops_at(7)(fake)

    machine.work(train)
    with world.services.db.transaction() as session:
        session.delete(session.get_one(DbDataset, held.id))
    machine.work(train)  # this machine has its own copy
    assert read == [(3, b'{"user_prompt": "9 * 9?", "ground_truth": "81"}\n')] * 2
    machine.move(tmp_path / "elsewhere")
    with pytest.raises(OsmosisError, match="the validation dataset was replaced before the run began"):
        machine.work(finishes)


def test_damaged_archive(machine: Machine, tmp_path: Path) -> None:
    machine.submit().work(stops_at(7))
    (key,) = machine.world.stored(f"runs/{machine.id}/resume")
    machine.world.store(key, b"something else")
    machine.move(tmp_path / "elsewhere")
    with pytest.raises(OsmosisError):
        machine.work(finishes)
    assert list(machine.directory.training.path.iterdir()) == []


def breaks(machine: Machine, times: float, *, only: str = "") -> threading.Event:
    """Let the uploads of blobs with a name fail so many times; the event is set at the first."""
    send, failed, left = machine.client.send_all, threading.Event(), [times]

    def sending(blobs: Any, **options: Any) -> Any:
        if left[0] > 0 and any(only in blob.name for blob, _ in blobs):
            left[0] -= 1
            failed.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return send(blobs, **options)

    machine.patch.setattr(machine.client, "send_all", sending)
    return failed


ENDED = FinishRequest(outcome="finished")


@pytest.mark.parametrize(
    ("steps", "failures", "ending", "result", "kept", "logged"),
    [
        (3, 0, StopReason("finished", "done."), ENDED, [3], ""),
        (3, 0, StopReason("nothing_to_learn", "equal rewards: ended."), ENDED, [3], ""),
        (3, 0, StopReason("stopped", "stopped."), ReleaseRequest(), [], ""),
        (3, 0, OsmosisError("the GPU has no memory left."), "no memory left", [3], ""),
        # A checkpoint that cannot be stored is tried again with the next one.
        (
            8,
            1,
            StopReason("finished", "done."),
            ENDED,
            [5, 8],
            "step 5 could not be stored: [Errno 28] No space left",
        ),
        (8, math.inf, StopReason("finished", "done."), "last checkpoint could not be stored", [], ""),
    ],
    ids=["finished", "nothing to learn", "stopped", "failed", "one full disk", "full disk"],
)
def test_last_checkpoint_is_kept_if_the_run_ends(
    machine: Machine,
    steps: int,
    failures: float,
    ending: StopReason | Exception,
    result: ShardEnd | str,
    kept: list[int],
    logged: str,
) -> None:
    failed = breaks(machine.submit(), failures)

    def train(fake: FakeTrainer) -> StopReason:
        fake.take_steps(min(steps, 5))
        assert not failures or failed.wait(60)
        fake.take_steps(steps)
        if isinstance(ending, Exception):
            raise ending
        return ending

    if isinstance(ending, Exception):
        with pytest.raises(OsmosisError, match=str(result)):
            machine.work(train)
    elif isinstance(result, str):
        end = machine.work(train)
        assert isinstance(end, FinishRequest) and end.outcome == "failed" and result in (end.error or "")
    else:
        assert machine.work(train) == result
    assert (machine.checkpoints(), machine.steps()) == (kept, list(range(1, steps + 1)))
    is_note = isinstance(ending, StopReason) and ending.because == "nothing_to_learn"
    assert machine.note == ("Equal rewards: ended." if is_note else None)
    assert logged in machine.log


def test_stopped_run_reports_the_steps_of_a_killed_worker(machine: Machine) -> None:
    machine.submit()
    settle(machine.world)
    shard = FakeWorker.claims(machine.world, run_id=machine.id)
    shard.releases()
    directory = WorkingDirectory(machine.config.runs_dir, shard.shard_id).training
    directory.checkpoints.mkdir(parents=True)
    for step in (1, 2):
        MetricsHistory(directory.metrics).append(StepRecord(step, 1000, {TRAINING_REWARD: 0.5}))
    write_checkpoint(directory, 2, keep=False)
    Manifest("training", {}, {}).write(directory.manifest)
    assert machine.work(lambda _: pytest.fail("it trains"), must_stop=True) == ReleaseRequest()
    assert (machine.steps(), machine.checkpoints()) == ([1, 2], [2])
    assert any(machine.world.stored(f"runs/{machine.id}/resume"))


def test_lost_learner_process_ends_the_worker(machine: Machine) -> None:
    class Died(BaseException):
        pass

    def die(status: int) -> None:
        raise Died(status)

    def train(fake: FakeTrainer) -> StopReason:
        fake.take_steps(3)
        raise LearnerProcessLostError("process 1 of the learner ended (signal 9).", hint="")

    machine.submit().patch.setattr(os, "_exit", die)
    with pytest.raises(Died, match=str(WorkerExit.LEARNER_LOST.value)):
        machine.work(train)
    assert machine.steps() == [1, 2, 3] and machine.checkpoints() == []
    assert "process 1 of the learner ended (signal 9)." in machine.log


def test_trainer_arguments(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "of-the-operator")
    seen: list[FakeTrainer] = []

    def train(fake: FakeTrainer) -> StopReason:
        seen.append(fake)
        assert os.environ["HF_TOKEN"] == "hf-canary", "models are loaded with the run's own token"
        fake.hooks.note("the agent printed canary-7291")
        return finishes(fake)

    given = {"AGENT_KEY": "canary-7291", "HF_TOKEN": "hf-canary"}
    machine.submit(secrets={"required": sorted(given), "provided": given})
    assert machine.work(train) == FinishRequest(outcome="finished")
    spec, provenance = seen[0].spec, seen[0].provenance
    assert (spec.model_path, spec.adapter, spec.entrypoint) == ("osmosis/tiny", None, "main.py")
    assert (spec.rollout_dir / "main.py").is_file()
    assert spec.dataset.path.is_relative_to(machine.directory.path)
    assert (spec.settings.n_samples_per_prompt, spec.settings.checkpoint_save_freq) == (4, 5)
    assert (provenance["run"], provenance["git_head"]) == (machine.name, machine.owner.run.commit_sha)
    assert dict(spec.secret_values) == given and "HF_TOKEN" not in seen[0].environ
    assert "canary" not in repr([spec, seen[0].environ, provenance])
    assert "the agent printed [REDACTED]" in machine.log


def test_newest_complete_validation_is_kept_without_secrets(machine: Machine, world: World) -> None:
    given = {"AGENT_KEY": "canary-7291"}
    machine.submit(secrets={"required": list(given), "provided": given})
    with world.services.db.session() as session:
        workspace_id = session.get_one(DbRun, machine.id).workspace_id
    source = PlatformSource(world.services, workspace_id)

    def validates(step: int) -> Callable[[FakeTrainer], StopReason]:
        def train(fake: FakeTrainer) -> StopReason:
            fake.validate(step, "it is canary-7291")
            return StopReason("stopped", "stopped.")

        return train

    assert source.validation(machine.name) is None
    machine.work(validates(2))
    first = source.validation(machine.name)
    assert first is not None and (first.step, first.total) == (2, 2)
    assert {each.output for each in first.records} == {"it is [REDACTED]"}
    found = [source.conversation(machine.name, row, 0, max_bytes=999, kind="training") for row in (0, 1)]
    assert [each.content for each in found] == [b'{"steps":[{"message":"it is [REDACTED]"}]}', None]
    with machine.patch.context() as patch:
        machine.patch, before = patch, machine.patch
        breaks(machine, float("inf"), only="-conversations")
        machine.work(validates(4))
        machine.patch = before
    assert source.validation(machine.name) == first, "half of a new one does not replace it"
    assert "the conversations of the newest validation could not be stored" in machine.log
    machine.work(stops_at(0))
    second = source.validation(machine.name)
    assert second is not None and second.step == 4
    keys = world.stored(f"runs/{machine.id}/validation")
    assert {key.split("/")[3].partition("-")[0] for key in keys} == {"4"}


def test_warnings_of_a_step_are_published_before_it(machine: Machine) -> None:
    """A reader that polls the step fetches its curves and warnings once."""
    sync, seen = machine.client.sync, list[str]()

    def record(shard_id: str, token: Any, request: Any, **options: Any) -> Any:
        seen.extend(line.message for line in (request.log.lines if request.log else ()))
        seen.extend(f"publish {step.step}" for step in (request.training.steps if request.training else ()))
        return sync(shard_id, token, request, **options)

    def train(fake: FakeTrainer) -> StopReason:
        for step in (1, 2):
            taken = StepRecord(step, 1000, {TRAINING_REWARD: 0.5}, warnings=[f"warning of step {step}"])
            fake.hooks.warning(step, taken.warnings[0])
            fake.hooks.step(taken, STEPS)
        return StopReason("stopped", "stopped.")

    machine.submit().patch.setattr(machine.client, "sync", record)
    machine.work(train)
    for step in (1, 2):
        assert seen.index(f"warning of step {step}") < seen.index(f"publish {step}")


@pytest.mark.e2e
def test_only_a_worker_that_trains_imports_torch() -> None:
    program = (
        "import sys; import osmosis_ai.platform.app, osmosis_ai.platform.server, osmosis_ai.platform.worker.worker; "
        "print(sorted({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

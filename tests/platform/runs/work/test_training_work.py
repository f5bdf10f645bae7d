"""What a worker gives a trainer and makes of its endings: the trainer is pretended, the platform and the files are real."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai import training
from osmosis_ai.api.wire.workers import UploadGrant
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.execute.worker_process import LEARNER_LOST
from osmosis_ai.platform.runs.read.sample_counts import SampleCounts
from osmosis_ai.platform.runs.work.run_work import Interrupt, WorkResult
from osmosis_ai.platform.runs.work.training_publisher import TrainingPublisher
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.learner.ranks import LearnerProcessLostError
from osmosis_ai.training.runs.loop import Ending
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_PLANNED,
    MetricsHistory,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.lazily import needs
from tests.platform.conftest import ManualClock, assert_flat_error
from tests.platform.evaluations import experiment, training_body, wait_until
from tests.platform.runs.work.claimed_runs import DeskLink
from tests.platform.runs.work.pretended_trainer import (
    RUNS,
    STEPS,
    Bench,
    Gone,
    PretendedTrainer,
    finishes,
    goes_on,
    is_stopped,
    save_checkpoint,
)

needs("torch")


@pytest.fixture
def bench(api: TestClient, services: PlatformServices) -> Bench:
    return Bench(api, services)


def test_another_machine_goes_on_from_the_last_checkpoint_that_was_sent_with_the_curve_up_to_it(
    bench: Bench, ends: Any, tmp_path: Path, clock: ManualClock, services: PlatformServices
) -> None:
    def is_lost(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 7)
        wait_until(lambda: any(services.blobs.keys(f"runs/{bench.id}/resume")))
        raise Gone

    ends(is_lost)
    with pytest.raises(Gone):
        bench.work()
    clock.advance(60)
    bench.move(tmp_path / "elsewhere")
    ends(goes_on)
    assert bench.work() == WorkResult("finished")
    steps = [record.step for record in read_history(bench.directory.training.metrics)]
    assert steps == bench.steps() == list(range(1, STEPS + 1))
    assert bench.checkpoints() == [5, STEPS]
    assert "resumed on another machine from the checkpoint of step 5" in bench.log()


def test_a_machine_that_leaves_sends_its_checkpoint(bench: Bench, ends: Any, tmp_path: Path) -> None:
    ends(is_stopped)
    assert bench.work() == WorkResult(None)
    assert bench.checkpoints() == [5], "step 7 is no place where the run ended"
    first = bench.directory
    bench.move(tmp_path / "elsewhere")
    ends(lambda pretended: pretended.take_steps(8, 8) or Ending("stopped", "stopped after step 8."))
    bench.work()
    assert [each.step for each in checkpoints_in(bench.directory.training.checkpoints)] == [7, 8]
    bench.directory, bench.config = first, bench.services.config
    ends(goes_on)
    assert bench.work() == WorkResult("finished")
    assert "on another machine from the checkpoint of step 8" in bench.log()
    assert bench.steps() == list(range(1, STEPS + 1))


def test_a_damaged_checkpoint(bench: Bench, ends: Any, tmp_path: Path, services: PlatformServices) -> None:
    ends(is_stopped)
    bench.work()
    (key,) = services.blobs.keys(f"runs/{bench.id}/resume")
    services.blobs.put(key, BytesIO(b"something else"))
    bench.move(tmp_path / "elsewhere")
    with pytest.raises(OsmosisError, match="the run's stored checkpoint cannot be used"):
        bench.work()
    assert list(bench.directory.training.path.iterdir()) == []


def test_a_run_that_may_send_no_more_ends_at_the_checkpoint_that_does_not_go_in(
    bench: Bench, ends: Any, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    kept = TrainingPublisher._send_adapter
    monkeypatch.setattr(
        TrainingPublisher, "_send_adapter", lambda own, one: [sent.append(one.step), kept(own, one)][1]
    )

    def trains_on(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 7)
        wait_until(lambda: bool(pretended.hooks._interrupt))  # type: ignore[attr-defined]
        return Ending("stopped", "stopped after step 7.")

    ends(trains_on)
    monkeypatch.setattr(services.desk._uploads, "most_bytes", 10)
    verdict = bench.work()
    assert verdict is not None and verdict.outcome == "failed"
    assert verdict.error is not None
    assert verdict.error.startswith("the checkpoint of step 5 could not be stored: this run may send")
    assert bench.checkpoints() == [] and sent == [5], "it is not tried again and again"
    assert bench.log().count("another machine needs to go on") <= 1


def test_a_failure_keeps_the_last_checkpoint_and_is_passed_on(bench: Bench, ends: Any) -> None:
    def runs_out_of_memory(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 3)
        raise OsmosisError("the GPU has no memory left for a step.", hint="lower `micro_batch_tokens`")

    ends(runs_out_of_memory)
    assert bench.work() is None
    assert "no memory left" in str(bench.error)
    assert bench.checkpoints() == [3]
    assert bench.steps() == [1, 2, 3]


def test_a_stop_keeps_the_last_checkpoint(bench: Bench, ends: Any) -> None:
    ends(is_stopped)
    assert bench.work() == WorkResult(None)
    assert bench.checkpoints() == [5], "the run goes on: step 7 is no place where it ended"
    bench.ask_to_stop()
    interrupt = Interrupt()
    interrupt.set()
    ends(lambda _: pytest.fail("a run that is to stop is not trained any more"))
    assert bench.work(interrupt) == WorkResult(None)
    assert bench.checkpoints() == [5, 7]


def test_the_work_of_a_killed_worker_is_gathered(bench: Bench, ends: Any) -> None:
    # Its steps and checkpoints are durable, and it did not get to say so.
    directory = bench.directory.training
    directory.checkpoints.mkdir(parents=True)
    for step in (1, 2):
        MetricsHistory(directory.metrics).append(StepRecord(step, 1000, {TRAINING_REWARD: 0.5}))
    save_checkpoint(directory, 2, {}, keep=False)
    bench.ask_to_stop()
    interrupt = Interrupt()
    interrupt.set()
    assert bench.work(interrupt) == WorkResult(None)
    assert (bench.steps(), bench.checkpoints()) == ([1, 2], [2])


def test_a_run_that_has_nothing_more_to_learn_is_finished_and_says_why(bench: Bench, ends: Any) -> None:
    why = "in 10 steps in a row all attempts on each prompt got equal rewards: ended after step 6."

    def falls_silent(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 6)
        return Ending("nothing_to_learn", why)

    ends(falls_silent)
    assert bench.work() == WorkResult("finished")
    assert why in bench.api.get(f"{RUNS}/{bench.name}").json()["training_run"]["notes"]
    assert bench.checkpoints() == [5, 6]


def test_a_checkpoint_waits_for_room(bench: Bench, ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = iter([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
    real, refused = DeskLink.send, threading.Event()

    def send(self: DeskLink, grant: UploadGrant, content: Any, size: int) -> str:
        if (error := next(puts, None)) is not None:
            refused.set()
            raise error
        return real(self, grant, content, size)

    def goes_on(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 5)
        assert refused.wait(300)
        pretended.take_steps(6, STEPS)
        return Ending("finished", "done.")

    ends(goes_on)
    monkeypatch.setattr(DeskLink, "send", send)
    assert bench.work() == WorkResult("finished")
    assert bench.checkpoints() == [5, STEPS]
    assert "the checkpoint of step 5 could not be stored: [Errno 28] No space left on device" in bench.log()


def test_a_lost_last_checkpoint_fails(bench: Bench, ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: DeskLink, grant: UploadGrant, content: Any, size: int) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends(finishes)
    monkeypatch.setattr(DeskLink, "send", send)
    verdict = bench.work()
    assert verdict is not None and verdict.outcome == "failed"
    assert "its last checkpoint could not be stored" in (verdict.error or "")
    assert bench.steps() == list(range(1, STEPS + 1))


def test_a_lost_learner_process(bench: Bench, ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def loses_a_process(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 3)
        raise LearnerProcessLostError("process 1 of the learner ended (signal 9).", hint="the next goes on")

    class Died(BaseException):
        pass

    def die(status: int) -> None:
        raise Died(status)

    ends(loses_a_process)
    monkeypatch.setattr(os, "_exit", die)
    with pytest.raises(Died, match=str(LEARNER_LOST)):
        bench.work()
    assert bench.steps() == [1, 2, 3]
    assert bench.log().endswith("process 1 of the learner ended (signal 9).")
    assert bench.checkpoints() == [], "the run goes on: step 3 is no place where it ended"


def test_values_of_secrets_reach_the_agent_and_nothing_else(
    api: TestClient, services: PlatformServices, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "of-whoever-runs-the-platform")
    seen: list[PretendedTrainer] = []

    def looks(pretended: PretendedTrainer) -> Ending:
        seen.append(pretended)
        assert os.environ["HF_TOKEN"] == "hf-canary", "models are loaded with the run's own"
        pretended.hooks.note("the agent printed canary-7291")
        return finishes(pretended)

    ends(looks)
    given = {"AGENT_KEY": "canary-7291", "HF_TOKEN": "hf-canary"}
    bench = Bench(api, services, secrets={"required": sorted(given), "provided": given})
    assert bench.work() == WorkResult("finished"), bench.error
    (pretended,) = seen
    assert dict(pretended.spec.secret_values) == given
    assert "canary" not in repr([pretended.spec, pretended.environ, pretended.provenance, bench.prepared])
    assert "HF_TOKEN" not in pretended.environ
    assert "the agent printed [REDACTED]" in bench.log()


def validates(pretended: PretendedTrainer, step: int, said: str) -> None:
    """Leave a validation of two samples, the second of which was killed while its conversation was written."""
    records = [
        TerminalRecord(row, 0, f"valid-{step:06d}-row-{row}-0", "success", 5, reward=0.5, output=said)
        for row in range(2)
    ]
    trials = pretended.directory.trials
    for record, content in zip(records, (json.dumps({"steps": [{"message": said}]}), '{"st'), strict=True):
        (trials / record.rollout_id).mkdir(parents=True)
        (trials / record.rollout_id / "trajectory.json").write_text(content)
    pretended.directory.write_validation(ValidationSamples.of(records, step=step, pass_threshold=1.0))
    record = StepRecord(step, 1000 * step, {VALIDATION_PLANNED: 2.0})
    MetricsHistory(pretended.directory.metrics).append(record)
    pretended.hooks.step(record, STEPS)


def test_the_conversations_of_the_newest_validation_are_kept_without_secrets(
    api: TestClient, services: PlatformServices, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"AGENT_KEY": "canary-7291"}
    bench = Bench(api, services, secrets={"required": list(given), "provided": given})
    with services.db.session() as session:
        source = PlatformSource(services, session.get_one(DbRun, bench.id).workspace_id, SampleCounts())
    assert source.validation(bench.name) is None

    def validates_once(pretended: PretendedTrainer) -> Ending:
        validates(pretended, 2, "it is canary-7291")
        return is_stopped(pretended)

    ends(validates_once)
    bench.work()
    first = source.validation(bench.name)
    assert first is not None and (first.step, first.total) == (2, 2)
    assert {record.output for record in first.records} == {"it is [REDACTED]"}
    conversations = [source.validation_conversation(bench.name, row, 0, max_bytes=999) for row in (0, 1)]
    assert [each.content for each in conversations] == [b'{"steps":[{"message":"it is [REDACTED]"}]}', None]

    def kept_steps() -> set[str]:
        keys = services.blobs.keys(f"runs/{bench.id}/validation")
        return {key.split("/")[3].partition("-")[0] for key in keys}

    real = DeskLink.send

    def send(self: DeskLink, grant: UploadGrant, content: Any, size: int) -> str:
        if grant.name.startswith("validation/4-") and grant.name.endswith("-conversations"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, grant, content, size)

    def validates_again(pretended: PretendedTrainer) -> Ending:
        validates(pretended, 4, "again")
        return is_stopped(pretended)

    monkeypatch.setattr(DeskLink, "send", send)
    ends(validates_again)
    bench.work()
    assert source.validation(bench.name) == first, "the one before is whole; half a new one is none"
    assert "the conversations of the newest validation could not be stored" in bench.log()
    assert "2" in kept_steps()
    monkeypatch.setattr(DeskLink, "send", real)
    ends(is_stopped)
    bench.work()
    second = source.validation(bench.name)
    assert second is not None and second.step == 4
    assert kept_steps() == {"4"}


def test_what_a_trainer_is_given(bench: Bench, ends: Any, services: PlatformServices) -> None:
    seen: list[PretendedTrainer] = []

    def looks(pretended: PretendedTrainer) -> Ending:
        seen.append(pretended)
        return finishes(pretended)

    ends(looks)
    bench.work()
    spec, provenance = seen[0].spec, seen[0].provenance
    assert (spec.model_path, spec.adapter, spec.entrypoint) == ("osmosis/tiny", None, "main.py")
    assert (spec.rollout_dir / "main.py").is_file()
    assert spec.dataset.path.is_relative_to(bench.directory.path)
    assert (spec.settings.n_samples_per_prompt, spec.settings.checkpoint_save_freq) == (4, 5)
    assert (provenance["run"], provenance["git_head"]) == (
        bench.name,
        bench.prepared and bench.prepared.commit_sha,
    )


@pytest.mark.parametrize("runs", ["training-runs", "eval-runs"])
def test_an_adapter_that_does_not_exist_is_refused_by_name(api: TestClient, runs: str) -> None:
    body = {"experiment_config": experiment(model_path="osmosis/tiny:no-such-step-9")}
    refused = assert_flat_error(api.post(f"/api/cli/{runs}", json=body), 400, "INVALID_CONFIG")
    assert refused["issues"][0]["key"] == "experiment.model_path"
    assert "no adapter 'no-such-step-9' of `osmosis/tiny`" in refused["issues"][0]["message"]


def test_training_needs_torch(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "find_spec", lambda _: None)
    refused = assert_flat_error(api.post(RUNS, json=training_body()), 409, "TRAINING_NOT_INSTALLED")
    assert "cannot train" in refused["error"]
    assert "[train]" in refused["error"]
    assert api.get(RUNS).json()["total_count"] == 0


@pytest.mark.e2e
def test_neither_the_platform_nor_a_worker_that_has_not_begun_to_train_imports_torch() -> None:
    program = (
        "import sys; import osmosis_ai.platform.app, osmosis_ai.platform.server, osmosis_ai.platform.runs.work.worker; "
        "print(sorted({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

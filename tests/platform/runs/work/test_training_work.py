"""What a worker makes of a trainer's endings: the trainer is pretended, the platform and the files are real."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import StoredTraining, TrainingNews, UploadGrant
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import WARNED, LogLine
from osmosis_ai.platform.runs.execute.worker_process import LEARNER_LOST
from osmosis_ai.platform.runs.read.sample_counts import SampleCounts
from osmosis_ai.platform.runs.work.run_work import Interrupt, WorkResult
from osmosis_ai.platform.runs.work.training_publisher import TrainingPublisher
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.learner.ranks import LearnerProcessLostError
from osmosis_ai.training.runs.loop_state import Ending
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    MetricsHistory,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from tests.lazily import needs
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import wait_until
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
    assert "went on, on another machine, from the checkpoint of step 5" in bench.log()


def test_a_machine_that_is_told_to_leave_sends_its_last_checkpoint_and_one_that_is_behind_fetches_it(
    bench: Bench, ends: Any, tmp_path: Path
) -> None:
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
    assert "on another machine, from the checkpoint of step 8" in bench.log()
    assert bench.steps() == list(range(1, STEPS + 1))


def test_a_stored_checkpoint_that_can_not_be_used_is_told_and_leaves_nothing_behind(
    bench: Bench, ends: Any, tmp_path: Path, services: PlatformServices
) -> None:
    ends(is_stopped)
    bench.work()
    (key,) = services.blobs.keys(f"runs/{bench.id}/resume")
    services.blobs.put(key, BytesIO(b"something else"))
    bench.move(tmp_path / "elsewhere")
    with pytest.raises(OsmosisError, match="that the run was to go on from can not be used"):
        bench.work()
    assert list(bench.directory.training.path.iterdir()) == []


def test_where_another_worker_went_on_is_a_mark_on_the_curves(
    bench: Bench, ends: Any, services: PlatformServices
) -> None:
    ends(is_stopped)
    bench.work()
    with services.db.session() as session:
        source = PlatformSource(services, session.get_one(DbRun, bench.id).workspace_id, SampleCounts())
    assert {mark.kind for mark in source.curves(bench.name).marks} == {"checkpoint"}
    ends(goes_on)
    assert bench.work() == WorkResult("finished")
    marks = [(mark.step, mark.kind, mark.text) for mark in source.curves(bench.name).marks]
    assert [each[:2] for each in marks] == [(5, "checkpoint"), (7, "restart"), (STEPS, "checkpoint")]
    assert marks[1][2] == "went on after step 7"


def test_what_a_step_warns_of_is_a_mark_on_the_curves_once(
    bench: Bench, ends: Any, services: PlatformServices
) -> None:
    def warns(trainer: PretendedTrainer) -> Ending:
        for step in (3, 3, 7):
            trainer.hooks.warning(step, f"step {step}: most rewards are the same")
        return finishes(trainer)

    ends(warns)
    assert bench.work() == WorkResult("finished")
    with services.db.session() as session:
        run = session.get_one(DbRun, bench.id)
    for told in ([], "3", -1, 2**70, None):
        facts = {"training_step": told}
        services.logs.append(run.id, [LogLine("no step", "warning", step=WARNED, details=facts)])
    source = PlatformSource(services, run.workspace_id, SampleCounts())
    marks = [mark for mark in source.curves(bench.name).marks if mark.kind == "warning"]
    assert [(mark.step, mark.text) for mark in marks] == [
        (3, "step 3: most rewards are the same"),
        (7, "step 7: most rewards are the same"),
    ]
    lines = services.logs.marks(run.id, WARNED)
    assert {line.level for line in lines} == {"warning"}


def test_a_finished_run_keeps_the_checkpoints_that_are_due_and_the_last(bench: Bench, ends: Any) -> None:
    ends(finishes)
    assert bench.work() == WorkResult("finished")
    assert bench.checkpoints() == [5, STEPS]
    assert bench.steps() == list(range(1, STEPS + 1))
    assert f"step {STEPS} of {STEPS}: reward 0.800" in bench.log()


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


def test_a_policy_that_fell_below_its_start_says_so_where_the_run_is_shown(bench: Bench, ends: Any) -> None:
    fell = "the validation reward fell 0.29 below its initial value"

    def falls(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, STEPS)
        return Ending("finished", f"all {STEPS} steps are done.", warning=fell)

    ends(falls)
    assert bench.work() == WorkResult("finished")
    notes = bench.api.get(f"{RUNS}/{bench.name}").json()["training_run"]["notes"]
    assert "The validation reward fell 0.29 below its initial value" in notes


def test_a_failure_keeps_the_last_checkpoint_and_is_passed_on(bench: Bench, ends: Any) -> None:
    def runs_out_of_memory(pretended: PretendedTrainer) -> Ending:
        pretended.take_steps(1, 3)
        raise OsmosisError("the GPU has no memory left for a step.", hint="lower `micro_batch_tokens`")

    ends(runs_out_of_memory)
    assert bench.work() is None
    assert "no memory left" in str(bench.error)
    assert bench.checkpoints() == [3]
    assert bench.steps() == [1, 2, 3]


def test_a_stop_keeps_the_last_checkpoint_and_the_end_of_the_platform_only_those_that_are_due(
    bench: Bench, ends: Any
) -> None:
    ends(is_stopped)
    assert bench.work() == WorkResult(None)
    assert bench.checkpoints() == [5], "the run goes on: step 7 is no place where it ended"
    bench.ask_to_stop()
    interrupt = Interrupt()
    interrupt.set()
    ends(lambda _: pytest.fail("a run that is to stop is not trained any more"))
    assert bench.work(interrupt) == WorkResult(None)
    assert bench.checkpoints() == [5, 7]


def test_what_a_worker_that_was_killed_had_done_is_gathered(bench: Bench, ends: Any) -> None:
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


def test_a_checkpoint_that_finds_the_disk_full_is_stored_when_there_is_room(
    bench: Bench, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_run_whose_last_checkpoint_cannot_be_stored_has_failed(
    bench: Bench, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: DeskLink, grant: UploadGrant, content: Any, size: int) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends(finishes)
    monkeypatch.setattr(DeskLink, "send", send)
    verdict = bench.work()
    assert verdict is not None and verdict.outcome == "failed"
    assert "its last checkpoint could not be stored" in (verdict.error or "")
    assert bench.steps() == list(range(1, STEPS + 1))


def test_a_worker_that_lost_a_process_of_its_learner_says_so_and_dies_for_another_to_go_on(
    bench: Bench, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_checkpoint_that_two_threads_come_to_keep_is_kept_and_told_once(tmp_path: Path) -> None:
    directory = TrainingDirectory(tmp_path / "training")
    (directory.checkpoints / "step-00000004" / "adapter").mkdir(parents=True)
    (directory.checkpoints / "step-00000004" / "provenance.json").write_text("{}")
    (step,) = [checkpoint.step for checkpoint in checkpoints_in(directory.checkpoints)]
    kept: list[int] = []
    both = threading.Barrier(2)

    class Sink:
        def stored(self) -> StoredTraining:
            return StoredTraining()

        def send(self, news: TrainingNews, blobs: Any = None) -> dict[int, str]:
            kept.extend(part.step for part in news.checkpoints if not part.is_resume)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # where nothing keeps them apart, both have looked before either knows
            return {part.step: f"run-step-{part.step}" for part in news.checkpoints}

    told: list[LogLine] = []
    training = TrainingPublisher(
        directory, cast("Any", Sink()), Redactor(), told.append, base_model="osmosis/tiny", save_freq=step
    )
    threads = [threading.Thread(target=keep) for keep in (training.keep_due, training.keep_last)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == [step] and [line.message for line in told if "kept as" in line.message] == [
        f"kept as `run-step-{step}`"
    ]

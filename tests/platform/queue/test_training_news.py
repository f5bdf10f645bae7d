"""What training workers report: repeated, out of date, and made up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.db.tables import DbRunShard
from osmosis_ai.platform.queue.reports import ROLLOUTS
from osmosis_ai.platform.runs.lifecycle import version_of
from osmosis_ai.training.runs.metrics import TRAINING_REWARD
from tests.platform.conftest import ManualClock, World
from tests.platform.fake_worker import (
    GPU,
    TERM_S,
    TRAININGS,
    FakeTrainer,
    FakeWorker,
    Refused,
    claim,
    expire_leases,
    pool_token,
)
from tests.platform.queue.test_sync import refused

ARCHIVE = "checkpoint.tar"
PART = {"step": 5, "base_model": "osmosis/tiny"}
VERSION = "2-0123456789abcdef"
V = f"validation/{VERSION}"


@pytest.fixture
def trainer(api: TestClient, world: World) -> FakeTrainer:
    """The owner of a training run's shard."""
    TRAININGS.taken(api, advanced_config=GPU)
    return FakeTrainer.claims(world, "gpu")  # type: ignore[return-value]


def successor_of(trainer: FakeTrainer) -> FakeTrainer:
    expire_leases(trainer.world.services.clock)  # type: ignore[arg-type]
    return FakeTrainer.claims(trainer.world, "gpu")  # type: ignore[return-value]


def points(api: TestClient, trainer: FakeTrainer) -> dict[int, float]:
    """Return the rewards of the run by step."""
    series = api.get(f"{TRAININGS.route}/{trainer.run_id}/metrics").json()["metrics"]
    found = [each["data_points"] for each in series if each["metric_key"] == TRAINING_REWARD]
    return {point["step"]: point["value"] for point in (found[0] if found else [])}


def detail(api: TestClient, trainer: FakeTrainer) -> Any:
    return api.get(f"{TRAININGS.route}/{trainer.run_id}").json()["training_run"]


def step(trainer: FakeTrainer, number: int, **validated: float) -> None:
    trainer.step(number, {TRAINING_REWARD: number / 10, ROLLOUTS: 8.0}, **validated)


def is_progress(trainer: FakeTrainer, report: Callable[[], object]) -> bool:
    """Whether a report resets the number of failed attempts."""
    with trainer.world.services.db.transaction() as session:
        session.get_one(DbRunShard, trainer.shard_id).failed_attempts = 2
    report()
    return trainer.shard.failed_attempts == 0


def test_repeated_and_late_reports_change_nothing(api: TestClient, trainer: FakeTrainer) -> None:
    trainer.begins(total_steps=4)
    assert is_progress(trainer, lambda: step(trainer, 1))
    step(trainer, 2)
    trainer.begins(total_steps=4)
    assert not is_progress(trainer, lambda: step(trainer, 1))
    assert points(api, trainer) == {1: 0.1, 2: 0.2}
    found = detail(api, trainer)
    assert (found["current_step"], found["examples_processed_count"]) == (2, 16)


def test_a_resumed_run_repeats_the_steps_after_its_checkpoint(api: TestClient, trainer: FakeTrainer) -> None:
    trainer.begins(total_steps=4)
    for number in (1, 2, 3):
        step(trainer, number, row=0.5)
    successor = successor_of(trainer)
    assert not is_progress(successor, lambda: successor.begins(total_steps=4, steps_done=1))
    assert points(api, successor) == {1: 0.1}
    with pytest.raises(Refused, match="409 LEASE_LOST"):
        step(trainer, 4)
    for number in (2, 3):
        assert not is_progress(successor, lambda number=number: step(successor, number))  # type: ignore[misc]
    assert is_progress(successor, lambda: step(successor, 4))
    assert points(api, successor) == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}


def test_only_the_newest_archive_is_kept(trainer: FakeTrainer) -> None:
    for number, name in ((5, "5-a"), (5, "5-a"), (10, "10-a"), (10, "10-b"), (5, "5-c")):
        trainer.add_archive(number, name)
    kept = {key.split("/")[3] for key in trainer.world.stored(f"runs/{trainer.run_id}/resume")}
    assert kept == {"10-b"}, "the last one came late"
    stored = successor_of(trainer).assignment.training
    assert stored is not None and stored.resume is not None and stored.resume_step == 10
    assert trainer.download(stored.resume.url) == b"archive"


def test_checkpoints_and_the_newest_validation_are_kept(api: TestClient, trainer: FakeTrainer) -> None:
    first = trainer.add_validation(1)
    names = [trainer.add_checkpoint(number, b"%d" % number, reward=0.5) for number in (1, 2)]
    assert trainer.add_checkpoint(2, b"again") == names[1], "it replaces itself"
    second = trainer.add_validation(2)
    assert trainer.add_validation(2) == second
    keys = trainer.world.stored(f"runs/{trainer.run_id}/validation")
    assert keys == [second] and first != second
    listed = api.get(f"{TRAININGS.route}/{trainer.run_id}/checkpoints").json()["checkpoints"]
    assert sorted(each["checkpoint_name"] for each in listed) == sorted(names)
    stored = successor_of(trainer).assignment.training
    assert stored is not None and stored.checkpoint_steps == [1, 2]
    assert stored.validation is not None and stored.validation.startswith("2-")


@pytest.mark.parametrize("count", [1e308, -1e308, float(1 << 31), -1.0])
def test_an_impossible_number_of_rollouts_is_ignored(
    api: TestClient, trainer: FakeTrainer, count: float
) -> None:
    trainer.begins(total_steps=4)
    for number in (1, 2):
        trainer.step(number, {ROLLOUTS: count, "a": count})
    step(trainer, 3)
    assert detail(api, trainer)["examples_processed_count"] == 8


def named(files: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"checkpoints": [{**PART, "files": files, **more}]}


def validated(path: str, blob: str, version: str = VERSION, kind: str = "validation") -> Any:
    files = [{"path": path, "kind": kind, "size": 1, "blob": blob}]
    return {"validation": {"version": version, "files": files}}


MADE_UP: list[tuple[str, Any]] = [
    ("", named({"w": "checkpoints/5/unknown"})),
    ("checkpoints/5/w", named({"../w": "checkpoints/5/w"})),
    ("resume/5/w", named({"w": "resume/5/w"})),
    ("resume/w", named({ARCHIVE: "resume/w"}, is_resume=True)),
    ("checkpoints/5/w", named({ARCHIVE: "checkpoints/5/w"}, is_resume=True)),
    ("resume/5/w", named({"w": "resume/5/w"}, is_resume=True)),
    ("", named({}, is_resume=True)),
    ("", named({})),
    ("", validated("validation/a.json", f"{V}/unknown")),
    (f"{V}/a", validated("validation/../a.json", f"{V}/a")),
    (f"{V}/a", validated("samples/a.json", f"{V}/a")),
    (f"{V}/a", validated("validation/a.json", f"{V}/a", kind="trajectories")),
    ("validation/x/a", validated("validation/a.json", "validation/x/a")),
    (f"{V}/a", validated("validation/a.json", f"{V}/a", version="../..")),
]
STEP = {"step": 1, "timestamp_ms": 1, "metrics": {TRAINING_REWARD: 0.1}}
WRONG_STEPS: list[dict[str, Any]] = [
    {"step": 1 << 31},
    {"step": -1},
    {"timestamp_ms": 1 << 60},
    {"metrics": {"k" * 129: 1.0}},
    {"metrics": {"a\0": 1.0}},
]


def test_what_a_worker_makes_up_is_refused_and_changes_nothing(
    api: TestClient, trainer: FakeTrainer, clock: ManualClock
) -> None:
    for name in {sent for sent, _ in MADE_UP if sent}:
        trainer.sync(sent=[trainer.uploads(name, b"w")])
    for sent, news in MADE_UP:
        error = refused(trainer, {"training": {"steps": [STEP], **news}, "environment": "changed"})
        assert re.match("400 VALIDATION(: the worker |_FAILED)|409 UPLOAD_GONE", str(error)), (sent, news)
    for wrong in WRONG_STEPS:
        error = refused(trainer, {"training": {"steps": [STEP, {**STEP, **wrong}]}})
        assert error.status == 400, wrong
    assert (
        refused(trainer, {"training": {"checkpoints": [{**PART, "base_model": "\0", "files": {}}]}}).status
        == 400
    )
    assert points(api, trainer) == {}


def test_the_errors_of_one_worker_keep_no_lease_of_another(
    world: World, worker: FakeWorker, trainer: FakeTrainer, clock: ManualClock
) -> None:
    version = version_of(1, b"rows")
    sent = trainer.uploads(name := f"validation/{version}/a-samples.jsonl", b"rows")
    file = {"path": "validation/samples.jsonl", "kind": "validation", "size": 4, "blob": name}
    trainer.sync(sent=[sent])
    for _ in range(2):
        clock.advance(TERM_S - 5)
        with pytest.raises(Refused) as refused:
            trainer.sync(training={"validation": {"version": version, "files": [file, file]}})
        assert refused.value.status == 400
        trainer.sync()
    found = claim(world, pool_token(world))
    assert found is not None and found.run.id == worker.run_id, "its worker has been silent for a lease"

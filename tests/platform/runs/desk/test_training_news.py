"""What the platform makes of a training worker's words over HTTP: repeated, out of date, and made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.lazily import needs
from tests.platform.conftest import ManualClock
from tests.platform.platform_parts import DbRun, PlatformServices
from tests.platform.runs.desk.desk_workers import Refused
from tests.platform.runs.told_training import (
    ROLLOUTS,
    RUNS,
    TRAINING_REWARD,
    Told,
    claimed,
    gone_on,
    submitted,
)

needs("torch")

ARCHIVE = "checkpoint.tar"
PART = {"step": 5, "base_model": "osmosis/tiny"}
VERSION = "2-0123456789abcdef"
V = f"validation/{VERSION}"


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> Told:
    """The owner of a training run."""
    return claimed(services, submitted(api)["id"])


def points(api: TestClient, worker: Told) -> dict[int, float]:
    series = api.get(f"{RUNS}/{worker.run_id}/metrics").json()["metrics"]
    found = [each["data_points"] for each in series if each["metric_key"] == TRAINING_REWARD]
    return {point["step"]: point["value"] for point in (found[0] if found else [])}


def step(worker: Told, clock: ManualClock, number: int, **validated: float) -> None:
    worker.step(number, {TRAINING_REWARD: number / 10, ROLLOUTS: 8.0}, clock, **validated)


def is_further(worker: Told, say: Callable[[], None]) -> bool:
    """Whether what a worker says is progress, for which deaths before it are forgiven."""
    with worker.services.db.transaction() as session:
        session.get_one(DbRun, worker.run_id).fruitless = 2
    say()
    return worker.run.fruitless != 2


def test_news_that_come_twice_or_late_change_nothing(
    api: TestClient, worker: Told, clock: ManualClock
) -> None:
    worker.begin(total_steps=4)
    assert is_further(worker, lambda: step(worker, clock, 1))
    step(worker, clock, 2)
    worker.begin(total_steps=4)
    assert not is_further(worker, lambda: step(worker, clock, 1))
    assert points(api, worker) == {1: 0.1, 2: 0.2}, "beginning late a second time would forget a step"
    detail = api.get(f"{RUNS}/{worker.run_id}").json()["training_run"]
    assert (detail["current_step"], detail["examples_processed_count"]) == (2, 16)


def test_a_resumed_run_repeats_the_steps_after_its_checkpoint(
    api: TestClient, worker: Told, clock: ManualClock
) -> None:
    worker.begin(total_steps=4)
    for number in (1, 2, 3):
        step(worker, clock, number, row=0.5)
    worker = gone_on(worker)
    assert not is_further(worker, lambda: worker.begin(total_steps=4, steps_done=1))
    assert points(api, worker) == {1: 0.1}
    assert not is_further(worker, lambda: [step(worker, clock, number) for number in (2, 3)] and None)
    assert is_further(worker, lambda: step(worker, clock, 4))


def test_only_the_newest_archive_is_kept(worker: Told) -> None:
    def kept() -> set[str]:
        return {key.split("/")[3] for key in worker.services.blobs.keys(f"runs/{worker.run_id}/resume")}

    for number, name in ((5, "5-a"), (5, "5-a"), (10, "10-a"), (10, "10-b"), (5, "5-c")):
        worker.add_archive(number, name)
    assert kept() == {"10-b"}, "an older one came late"
    stored = gone_on(worker).assignment.training
    assert stored is not None and stored.resume is not None and stored.resume_step == 10
    assert worker.blob(stored.resume.url) == b"archive"


def test_an_archive_that_a_run_is_resumed_from_is_never_deleted(worker: Told) -> None:
    worker.add_archive(10, "10-b")
    same, beside = f"resume/10-b/{ARCHIVE}", f"resume/10-b/other-{ARCHIVE}"
    sent = [worker.sends(beside, b"archive")]
    for number, blob in ((7, same), (12, beside)):
        part = {**PART, "step": number, "files": {ARCHIVE: blob}, "is_resume": True}
        worker.sync(sent=sent if blob == beside else [], training={"checkpoints": [part]})
    stored = gone_on(worker).assignment.training
    assert stored is not None and stored.resume is not None and stored.resume_step == 12
    assert worker.blob(stored.resume.url) == b"archive"


@pytest.mark.parametrize("count", [1e308, -1e308, float(1 << 31), -1.0])
def test_an_impossible_count_of_rollouts_is_ignored(
    api: TestClient, worker: Told, clock: ManualClock, count: float
) -> None:
    worker.begin(total_steps=4)
    for number in (1, 2):
        worker.step(number, {ROLLOUTS: count, "a": count}, clock)
    step(worker, clock, 3)
    detail = api.get(f"{RUNS}/{worker.run_id}").json()["training_run"]
    assert detail["examples_processed_count"] == 8


def named(files: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"checkpoints": [{**PART, "files": files, **more}]}


def validated(path: str, blob: str, version: str = VERSION, kind: str = "validation") -> Any:
    files = [{"path": path, "kind": kind, "size": 1, "blob": blob}]
    return {"validation": {"version": version, "files": files}}


@pytest.mark.parametrize(
    ("sent", "news"),
    [
        ("", named({"w": "checkpoints/5/w"})),
        ("checkpoints/5/w", named({"../w": "checkpoints/5/w"})),
        ("artifacts/5/w", named({"w": "artifacts/5/w"})),
        ("resume/w", named({ARCHIVE: "resume/w"}, is_resume=True)),
        ("checkpoints/5/w", named({ARCHIVE: "checkpoints/5/w"}, is_resume=True)),
        ("resume/5/w", named({"w": "resume/5/w"}, is_resume=True)),
        ("", named({}, is_resume=True)),
        ("", validated("validation/a.json", f"{V}/a")),
        (f"{V}/a", validated("validation/../a.json", f"{V}/a")),
        (f"{V}/a", validated("samples/a.json", f"{V}/a")),
        (f"{V}/a", validated("validation/a.json", f"{V}/a", kind="trajectories")),
        ("validation/x/a", validated("validation/a.json", "validation/x/a")),
    ],
)
def test_what_a_worker_makes_up_is_refused_and_nothing_is_written(
    api: TestClient, worker: Told, sent: str, news: Any
) -> None:
    uploads = [worker.sends(sent, b"w")] if sent else []
    steps = [{"step": 1, "timestamp_ms": 1, "metrics": {TRAINING_REWARD: 0.1}}]
    with pytest.raises(Refused, match=r"VALIDATION: the worker names|nothing has come of"):
        worker.sync(sent=uploads, training={"steps": steps, **news})
    assert points(api, worker) == {}
    assert api.get(f"{RUNS}/{worker.run_id}/checkpoints").json()["checkpoints"] == []


@pytest.mark.parametrize(
    "wrong", [{"step": 1 << 31}, {"step": -1}, {"timestamp_ms": 1 << 60}, {"metrics": {"k" * 129: 1.0}}]
)
def test_numbers_that_no_database_takes_are_refused(worker: Told, wrong: dict[str, Any]) -> None:
    good = {"step": 1, "timestamp_ms": 1, "metrics": {"reward": 1.0}}
    with pytest.raises(Refused, match="VALIDATION"):
        worker.say_raw({"training": {"steps": [{**good, **wrong}]}})

"""What the platform makes of a training worker's words: on either database, repeated, out of date, and made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from osmosis_ai.api.wire.workers import (
    CheckpointPart,
    RunFilePart,
    TrainingNews,
    TrainingStart,
    TrainingStep,
    ValidationPart,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobInfo
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import Base, DbMetricPoint, DbRun, DbRunFile, DbWorkspace
from osmosis_ai.platform.runs.desk.training import (
    ROLLOUTS,
    AppliedTraining,
    apply_training,
    stored_training,
)
from osmosis_ai.platform.runs.resume_state import forget_resume, resume_step
from osmosis_ai.platform.runs.training_names import RESUME_FILE, version_of
from osmosis_ai.training.runs.metrics import TRAINING_REWARD
from tests.platform.databases import postgres_database

MOMENT = datetime(2026, 11, 2, 9, 30, tzinfo=timezone.utc)
RUN = "run_1"


class Desk:
    """One training run, claimed once."""

    def __init__(self, db: Database) -> None:
        self.db = db
        with db.transaction() as session:
            Base.metadata.create_all(session.connection())
            session.add(DbWorkspace(id="wsp_1", name="fern", created_at=MOMENT))
            session.flush()
            session.add(
                DbRun(
                    id=RUN,
                    workspace_id="wsp_1",
                    kind="training",
                    name="keen-owl",
                    status="running",
                    attempt=1,
                    created_at=MOMENT,
                    request={},
                    rollout_name="multiply",
                    dataset_name="multiply",
                    model_path="osmosis/tiny",
                )
            )

    def apply(self, sent: Mapping[str, int] | None = None, **news: Any) -> AppliedTraining:
        """Apply news that came with blobs of these sizes."""
        stored = {name: BlobInfo(size, f"{size:064x}") for name, size in (sent or {}).items()}
        with self.db.transaction() as session:
            return apply_training(session, self.run(session), TrainingNews(**news), stored, MOMENT)

    def claim_again(self) -> None:
        with self.db.transaction() as session:
            self.run(session).attempt += 1

    def run(self, session: Any) -> DbRun:
        run: DbRun = session.get_one(DbRun, RUN)
        return run

    def points(self) -> dict[int, float]:
        with self.db.session() as session:
            found = select(DbMetricPoint.step, DbMetricPoint.value).where(
                DbMetricPoint.key == TRAINING_REWARD
            )
            return {row.step: row.value for row in session.execute(found.order_by(DbMetricPoint.step))}

    def stored(self) -> Any:
        with self.db.session() as session:
            return stored_training(session, self.run(session), lambda key, name: f"/{key}?{name}")

    def validate(self, step: int, *rows: int) -> AppliedTraining:
        version = version_of(step, b"listed")
        paths = ["samples.jsonl", *(f"row_{row}_run_0.json" for row in rows)]
        blobs = {f"validation/{version}/a-{path}": 9 for path in paths}
        files = [
            RunFilePart(path=f"validation/{path}", kind="validation", size=9, blob=blob)
            for path, blob in zip(paths, blobs, strict=True)
        ]
        return self.apply(blobs, validation=ValidationPart(version=version, files=files))

    def go_on_from(self, step: int, random: str = "a") -> AppliedTraining:
        blob = f"resume/{step}-{random}/{RESUME_FILE}"
        part = CheckpointPart(step=step, base_model="osmosis/tiny", files={RESUME_FILE: blob}, is_resume=True)
        return self.apply({blob: step}, checkpoints=[part])


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    if request.param == "sqlite":
        db = Database(f"sqlite:///{tmp_path / 'platform.db'}")
        yield Desk(db)
        db.dispose()
        return
    with postgres_database() as url:
        db = Database(url)
        yield Desk(db)
        db.dispose()


def step(number: int, reward: float | None = None, **validated: float) -> TrainingStep:
    reward = number / 10 if reward is None else reward
    metrics = {TRAINING_REWARD: reward, "rollout/samples": 8.0, "gone": float("nan")}
    return TrainingStep(
        step=number, timestamp_ms=1000 * number, metrics=metrics, validation_rewards=validated
    )


def begin(total: int, done: int = 0) -> TrainingStart:
    return TrainingStart(total_steps=total, steps_done=done)


def test_news_that_come_twice_or_late_change_nothing(desk: Desk) -> None:
    first = {"start": begin(4), "steps": [step(0), step(1)]}
    assert desk.apply(**first).is_further
    desk.apply(steps=[step(2)])
    assert not desk.apply(**first).is_further
    assert desk.points() == {0: 0.0, 1: 0.1, 2: 0.2}, "beginning late a second time would forget a step"
    with desk.db.session() as session:
        run = desk.run(session)
        assert run.results == {
            "current_step": 2,
            "total_steps": 4,
            "reward": 0.2,
            "examples_processed_count": 24,
        }


def test_who_goes_on_behind_a_checkpoint_makes_the_later_steps_anew_and_is_no_further_for_it(
    desk: Desk,
) -> None:
    desk.apply(start=begin(4), steps=[step(1), step(2, row=0.5), step(3)])
    desk.claim_again()
    assert not desk.apply(start=begin(4, 1)).is_further
    assert desk.points() == {1: 0.1}
    with desk.db.session() as session:
        assert desk.run(session).metrics is None
    assert not desk.apply(steps=[step(2), step(3)]).is_further
    assert desk.apply(steps=[step(4)]).is_further


def test_a_run_has_the_files_of_its_newest_validation_and_those_before_are_named_for_deletion(
    desk: Desk,
) -> None:
    def paths() -> set[str]:
        with desk.db.session() as session:
            return set(session.scalars(select(DbRunFile.path)))

    assert desk.validate(2, 0, 1).obsolete == []
    assert desk.stored().validation == version_of(2, b"listed")
    assert desk.validate(2, 0).obsolete == [], "it has that one already"
    assert paths() == {
        "validation/samples.jsonl",
        "validation/row_0_run_0.json",
        "validation/row_1_run_0.json",
    }
    assert desk.validate(4, 3).obsolete == [f"runs/{RUN}/validation/{version_of(2, b'listed')}"]
    assert paths() == {"validation/samples.jsonl", "validation/row_3_run_0.json"}
    gone = desk.apply(validation=ValidationPart(version=None))
    assert gone.obsolete == [f"runs/{RUN}/validation/{version_of(4, b'listed')}"]
    assert paths() == set() and desk.stored().validation is None


def test_only_the_newest_archive_to_go_on_from_is_kept(desk: Desk) -> None:
    assert desk.stored().resume is None
    assert desk.go_on_from(5).obsolete == []
    assert desk.go_on_from(5).obsolete == [], "said twice"
    assert desk.go_on_from(10).obsolete == [f"runs/{RUN}/resume/5-a"]
    assert desk.go_on_from(10, "b").obsolete == [f"runs/{RUN}/resume/10-a"]
    assert desk.go_on_from(5, "c").obsolete == [f"runs/{RUN}/resume/5-c"], "an older one came late"
    stored = desk.stored()
    assert (stored.resume_step, stored.resume.size) == (10, 10)
    assert stored.resume.url == f"/runs/{RUN}/resume/10-b/{RESUME_FILE}?{RESUME_FILE}"
    desk.apply(start=begin(20, 10), steps=[step(11)])
    with desk.db.transaction() as session:
        forget_resume(desk.run(session))
        forget_resume(desk.run(session))
    with desk.db.session() as session:
        assert resume_step(desk.run(session)) is None
    assert desk.stored().resume is None, "no machine is told to go on from it"
    assert not desk.apply(steps=[step(11)]).is_further, "how far it was is remembered"


def test_an_archive_that_is_gone_on_from_is_never_named_for_deletion(desk: Desk) -> None:
    desk.go_on_from(5)
    desk.go_on_from(10, "b")
    same, beside = f"resume/10-b/{RESUME_FILE}", f"resume/10-b/other-{RESUME_FILE}"
    for number, blob in ((7, same), (12, beside)):
        part = CheckpointPart(
            step=number, base_model="osmosis/tiny", files={RESUME_FILE: blob}, is_resume=True
        )
        assert desk.apply({blob: 10}, checkpoints=[part]).obsolete == []
    assert desk.stored().resume_step == 12


@pytest.mark.parametrize("count", [1e308, -1e308, float(1 << 31), -1.0])
def test_a_count_of_rollouts_that_is_none_keeps_no_later_step_from_being_told(
    desk: Desk, count: float
) -> None:
    for number in (1, 2):
        said = {ROLLOUTS: count, "a": count}
        desk.apply(steps=[TrainingStep(step=number, timestamp_ms=1, metrics=said)])
    desk.apply(steps=[step(3)])
    with desk.db.session() as session:
        assert (desk.run(session).results or {})["examples_processed_count"] == 8


def named(files: dict[str, str], *, is_resume: bool = False) -> dict[str, Any]:
    part = CheckpointPart(step=5, base_model="osmosis/tiny", files=files, is_resume=is_resume)
    return {"checkpoints": [part]}


def validated(path: str, blob: str, version: str = version_of(2, b"x"), kind: str = "validation") -> Any:
    files = [RunFilePart(path=path, kind=kind, size=1, blob=blob)]
    return {"validation": ValidationPart(version=version, files=files)}


V = f"validation/{version_of(2, b'x')}"


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("sent", "news"),
    [
        ({}, named({"w": "checkpoints/5/w"})),
        ({"checkpoints/5/w": 1}, named({"../w": "checkpoints/5/w"})),
        ({"artifacts/5/w": 1}, named({"w": "artifacts/5/w"})),
        ({"resume/w": 1}, named({RESUME_FILE: "resume/w"}, is_resume=True)),
        ({"checkpoints/5/w": 1}, named({RESUME_FILE: "checkpoints/5/w"}, is_resume=True)),
        ({"resume/5/w": 1}, named({"w": "resume/5/w"}, is_resume=True)),
        ({}, named({}, is_resume=True)),
        ({}, validated("validation/a.json", f"{V}/a")),
        ({f"{V}/a": 1}, validated("validation/../a.json", f"{V}/a")),
        ({f"{V}/a": 1}, validated("samples/a.json", f"{V}/a")),
        ({f"{V}/a": 1}, validated("validation/a.json", f"{V}/a", kind="trajectories")),
        ({"validation/x/a": 1}, validated("validation/a.json", "validation/x/a")),
        ({"validation/../a": 1}, validated("validation/a.json", "validation/../a", version="..")),
    ],
)
def test_what_a_worker_makes_up_is_refused_and_nothing_is_written(desk: Desk, sent: Any, news: Any) -> None:
    with pytest.raises(OsmosisError, match="the worker names") as refused:
        desk.apply(sent, steps=[step(1)], **news)
    assert refused.value.code == "VALIDATION"
    assert desk.points() == {} and desk.stored().checkpoint_steps == []


@pytest.mark.parametrize(
    "wrong",
    [{"step": 1 << 31}, {"step": -1}, {"timestamp_ms": 1 << 60}, {"metrics": {"k" * 129: 1.0}}],
)
def test_numbers_that_no_database_takes_are_refused_by_the_wire(wrong: dict[str, Any]) -> None:
    good = {"step": 1, "timestamp_ms": 1, "metrics": {"reward": 1.0}}
    TrainingStep.model_validate(good)
    with pytest.raises(ValidationError):
        TrainingStep.model_validate({**good, **wrong})

"""Curves of a training run, read from its directory. A curve point with an interval is one value.

Missing data is omitted. Reading stops at the first damaged line of the history, which is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from osmosis_ai.api.wire.training_runs import ValidatedRows
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.lenient_json import as_number, as_table
from osmosis_ai.evaluation.metrics import LEAST_SCORED
from osmosis_ai.evaluation.run_log import parse_line
from osmosis_ai.files import open_regular
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.metrics import (
    TITLES,
    TRAINING_REWARD,
    TRAINING_REWARD_HIGH,
    TRAINING_REWARD_LOW,
    VALIDATION_PASS_RATE,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.validation_headline import CURVES, ValidationHeadline

_MOST_LOG_BYTES = 32 << 20
LARGEST_STEP = 2**53 - 1
"""What any chart and any reader of JSON can still tell from the next one."""
_INTERVALS = {
    TRAINING_REWARD: (TRAINING_REWARD_LOW, TRAINING_REWARD_HIGH),
    VALIDATION_REWARD: (VALIDATION_REWARD_LOW, VALIDATION_REWARD_HIGH),
}
_BESIDE_A_VALUE = {key for ends in _INTERVALS.values() for key in ends} | {
    VALIDATION_SCORED,
    VALIDATION_PLANNED,
}
"""Metrics that say something of another one's value."""


@dataclass(frozen=True, slots=True)
class CurveValue:
    """A metric after a step; ``over`` is how many it stands on, ``of`` how many there should have been."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None
    over: int | None = None
    of: int | None = None

    @property
    def is_hollow(self) -> bool:
        """Whether it stands on too little of what it was to stand on."""
        return self.over is not None and self.of is not None and self.over < LEAST_SCORED * self.of


@dataclass(frozen=True, slots=True)
class ViewedCurve:
    """A metric of a training run, by rising step; ``key`` is a name of ``training.runs.metrics.TITLES``."""

    key: str
    title: str
    points: Sequence[CurveValue]


@dataclass(frozen=True, slots=True)
class CurveMark:
    """What happened at a step: a ``checkpoint``, a ``restart`` or a ``warning``."""

    step: int
    kind: Literal["checkpoint", "restart", "warning"]
    text: str


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """A saved adapter; ``deployment`` is None where it was never deployed, and on this machine."""

    name: str
    step: int
    reward: float | None = None
    size: int | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """The curves of a training run, what happened on the way, and what it saved."""

    curves: Sequence[ViewedCurve] = ()
    marks: Sequence[CurveMark] = ()
    checkpoints: Sequence[SavedAdapter] = ()
    validation: ValidatedRows | None = None

    def points(self, key: str) -> Sequence[CurveValue]:
        """Return a curve's points; none where there is no such curve."""
        return next((curve.points for curve in self.curves if curve.key == key), ())

    def hollow_validations(self) -> list[int]:
        """Return the steps after which too few samples of the validation had a score."""
        return [point.step for point in self.points(VALIDATION_REWARD) if point.is_hollow]

    def headline(self) -> ValidationHeadline | None:
        """Return what the newest validation came to; None before there is one."""
        told: dict[str, list[tuple[int, float]]] = {}
        for last in self.points(VALIDATION_REWARD)[-1:]:
            values = zip(CURVES, (last.value, last.low, last.high, last.over, last.of), strict=True)
            told = {key: [(last.step, value)] for key, value in values if value is not None}
        return ValidationHeadline.of(told)


def viewed_curves(
    metrics: Mapping[str, Sequence[tuple[int, float]]], titles: Mapping[str, str] = TITLES
) -> list[ViewedCurve]:
    """Return curves in the order of their titles, then those without one."""
    scored, planned = (dict(metrics.get(key, ())) for key in (VALIDATION_SCORED, VALIDATION_PLANNED))
    order = [*(key for key in titles if key in metrics), *(key for key in metrics if key not in titles)]
    curves = []
    for key in order:
        if key in _BESIDE_A_VALUE:
            continue
        low, high = (dict(metrics.get(end, ())) for end in _INTERVALS.get(key, ("", "")))
        validated = key in (VALIDATION_REWARD, VALIDATION_PASS_RATE)
        points = [
            CurveValue(
                step,
                value,
                low=low.get(step),
                high=high.get(step),
                over=_whole(scored.get(step)) if validated else None,
                of=_whole(planned.get(step)) if validated else None,
            )
            for step, value in metrics[key]
        ]
        curves.append(ViewedCurve(key, titles.get(key, key), points))
    return curves


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


@dataclass(frozen=True)
class RecordedTraining:
    """What a training directory tells of its run."""

    directory: TrainingDirectory
    records: Sequence[StepRecord]
    sessions: Sequence[Mapping[str, Any]]
    problems: Sequence[str]

    @classmethod
    def read(cls, directory: TrainingDirectory) -> RecordedTraining:
        """Read a directory; what is damaged is said, not raised."""
        records, problems = _readable_history(directory.metrics)
        return cls(directory, records, tuple(_session_plans(directory.log)), problems)

    @property
    def last_step(self) -> int:
        """The newest step's number; 0 before there is one."""
        return self.records[-1].step if self.records else 0

    @property
    def total_steps(self) -> int | None:
        """How many steps there are to be, as the newest session said."""
        total = self.planned("total_steps")
        return total if isinstance(total, int) else None

    @property
    def ended_at(self) -> datetime | None:
        """When the newest step ended; None before there is one, and for what no calendar has."""
        try:
            return datetime.fromtimestamp(self.records[-1].timestamp_ms / 1000, timezone.utc)
        except (IndexError, ValueError, OverflowError, OSError, TypeError):
            return None

    def planned(self, name: str) -> Any:
        """Return what the newest session said of its plan; None where it did not."""
        return self.sessions[-1].get(name) if self.sessions else None

    def newest(self, key: str) -> float | None:
        """Return a metric of the newest step that has it."""
        return next((record.metrics[key] for record in reversed(self.records) if key in record.metrics), None)

    def curves(self) -> TrainingCurves:
        """Return the run's curves, what happened on the way, and what it saved."""
        return _curves(self.records, self.sessions, self.directory)


def _curves(
    records: Sequence[StepRecord], sessions: Sequence[Mapping[str, Any]], directory: TrainingDirectory
) -> TrainingCurves:
    metrics: dict[str, list[tuple[int, float]]] = {}
    marks, validation = [], None
    for record in records:
        for key, value in record.metrics.items():
            metrics.setdefault(key, []).append((record.step, value))
        marks += [CurveMark(record.step, "warning", warning) for warning in record.warnings]
        if record.validation_rewards:
            with suppress(ValidationError):
                validation = ValidatedRows(step=record.step, rewards=dict(record.validation_rewards))
    marks += restarts(sessions)
    saved = [
        SavedAdapter(checkpoint.directory.name, checkpoint.step, reward_at(metrics, checkpoint.step), size)
        for checkpoint in checkpoints_in(directory.checkpoints)
        if (size := _size(checkpoint.adapter_dir)) is not None
    ]
    marks += [CurveMark(adapter.step, "checkpoint", adapter.name) for adapter in saved]
    return TrainingCurves(
        viewed_curves(metrics), sorted(marks, key=lambda mark: mark.step), saved, validation=validation
    )


def restarts(sessions: Iterable[Mapping[str, Any]]) -> Iterator[CurveMark]:
    """Yield a mark for each session that resumed from an earlier one."""
    for session in sessions:
        done = session.get("steps_done")
        if isinstance(done, int) and 0 < done <= LARGEST_STEP:
            yield CurveMark(done, "restart", f"resumed after step {done}")


def marked_warnings(lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[CurveMark]:
    """Yield a mark for each line of a log that warns of a training step, once however often it was made."""
    told = set()
    for message, facts in lines:
        step = facts.get("training_step")
        if isinstance(step, int) and 0 <= step <= LARGEST_STEP and (step, message) not in told:
            told.add((step, message))
            yield CurveMark(step, "warning", message)


def _readable_history(path: Path) -> tuple[tuple[StepRecord, ...], tuple[str, ...]]:
    """Return the steps of a history up to the first that is damaged, and a sentence about that one."""
    records: list[StepRecord] = []
    try:
        for record in read_history(path):
            if not isinstance(record.metrics, dict):
                return tuple(records), (
                    f"`{path}` is damaged: a step has no metrics. The steps before are shown.",
                )
            records.append(_as_written(record))
    except OsmosisError as error:
        return tuple(records), (f"{error.message} The steps before that are shown.",)
    except OSError as error:
        return tuple(records), (f"`{path}` cannot be read ({reason_of(error)}).",)
    return tuple(records), ()


def _as_written(record: StepRecord) -> StepRecord:
    """Return a step with what can be of one: no metric but finite numbers, no warning but texts."""
    return replace(
        record,
        step=max(0, min(record.step, LARGEST_STEP)),
        metrics=_numbers(record.metrics),
        warnings=[each for each in record.warnings if isinstance(each, str)]
        if isinstance(record.warnings, list)
        else [],
        validation_rewards=_numbers(as_table(record.validation_rewards)),
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: number for key, value in values.items() if (number := as_number(value)) is not None}


def _session_plans(log: Path) -> Iterator[dict[str, Any]]:
    """Yield what each session of a run wrote of its plan."""
    try:
        with open_regular(log) as lines:
            for line in lines:
                if b" [plan] " in line[:80]:
                    yield parse_line(line).details or {}
                if lines.tell() > _MOST_LOG_BYTES:
                    return
    except OSError:
        return


def reward_at(metrics: Mapping[str, Sequence[tuple[int, float]]], step: int) -> float | None:
    """Return the validation reward of the policy after a step; None where it was not validated then."""
    return dict(metrics.get(VALIDATION_REWARD, ())).get(step)


def _size(folder: Path) -> int | None:
    try:
        return sum(file.lstat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return None

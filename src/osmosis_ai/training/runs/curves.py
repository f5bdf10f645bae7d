"""Curves of a training run, read from its directory, and a line about its newest validation.

Missing data is omitted. Reading stops at the first damaged line of the history, which is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from osmosis_ai.api.models.training_runs import ValidatedRows
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.metrics import LEAST_SCORED, describe_few_scored
from osmosis_ai.evaluation.run_log import parse_line
from osmosis_ai.files import open_regular
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.metrics import (
    LARGEST_STEP,
    TITLES,
    TRAINING_LOSS,
    TRAINING_REWARD,
    TRAINING_REWARD_HIGH,
    TRAINING_REWARD_LOW,
    VALIDATION_DROPPED,
    VALIDATION_LOSS,
    VALIDATION_PASS_RATE,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
    StepRecord,
    curves_of,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.step_warnings import has_collapsed
from osmosis_ai.ui.numbers import number_range, percent

_MOST_LOG_BYTES = 32 << 20
_INTERVALS = {
    TRAINING_REWARD: (TRAINING_REWARD_LOW, TRAINING_REWARD_HIGH),
    VALIDATION_REWARD: (VALIDATION_REWARD_LOW, VALIDATION_REWARD_HIGH),
}
# The metrics of a headline.
CURVES = (VALIDATION_REWARD, *_INTERVALS[VALIDATION_REWARD], VALIDATION_SCORED, VALIDATION_PLANNED)
# Metrics that qualify another one's value.
_QUALIFIERS = {*_INTERVALS[TRAINING_REWARD], *CURVES[1:]}
LEAST_WORDS = percent(LEAST_SCORED, digits=0)
_MOST_STEPS = 10


@dataclass(frozen=True, slots=True)
class CurveValue:
    """A metric after a step; ``over`` is its sample size, ``of`` the planned one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None
    over: int | None = None
    of: int | None = None

    @property
    def is_hollow(self) -> bool:
        """Whether too few of the planned samples have a score."""
        return self.over is not None and self.of is not None and self.over < LEAST_SCORED * self.of


@dataclass(frozen=True, slots=True)
class ViewedCurve:
    """A metric of a training run, by rising step; ``key`` is a name of ``training.runs.metrics.TITLES``."""

    key: str
    title: str
    points: Sequence[CurveValue]

    @property
    def summary(self) -> Sequence[CurveValue]:
        """The first, the last, the lowest and the highest value; the earliest of several."""
        ordered = sorted(self.points, key=lambda point: (point.value, -point.step))
        return self.points[0], self.points[-1], ordered[0], ordered[-1]


@dataclass(frozen=True, slots=True)
class CurveMark:
    step: int
    kind: Literal["checkpoint", "restart", "warning"]
    text: str


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """A saved adapter; ``deployment`` is None if it was never deployed, and on this machine."""

    name: str
    step: int
    reward: float | None = None
    size: int | None = None
    deployment: str | None = None


class ValidationHeadline(BaseModel):
    """One-line summary of a run's newest validation, in the format of an evaluation's summary.

    All data come from the run's curves, so it works for runs on any platform; one that measures less shows less.
    """

    model_config = ConfigDict(frozen=True)

    step: int
    reward: float | None = None
    low: float | None = None
    high: float | None = None
    scored: int | None = None
    planned: int | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def warnings(self) -> list[str]:
        few = None
        if self.scored is not None and self.planned is not None:
            few = describe_few_scored(self.scored, self.planned)
        return [few] if few else []

    @classmethod
    def of(cls, curves: Mapping[str, Sequence[tuple[int, float]]]) -> ValidationHeadline | None:
        """Return the headline of the newest validation; None before the first one."""
        last = [curves[key][-1] if curves.get(key) else (-1, 0.0) for key in CURVES]
        step = max(at for at, _ in last)
        if step < 0:
            return None
        # Values that this validation did not measure are absent; an older validation's number must not replace it.
        reward, low, high, scored, planned = (value if at == step else None for at, value in last)
        return cls(
            step=step, reward=reward, low=low, high=high, scored=_whole(scored), planned=_whole(planned)
        )

    @property
    def reward_words(self) -> str:
        """The reward and its interval, as in ``0.625 (0.430–0.810) after step 20``."""
        if self.reward is None:
            return f"none scored after step {self.step}"
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" ({number_range(self.low, self.high)})"
        return f"{self.reward:.3f}{interval} after step {self.step}"

    @property
    def scored_words(self) -> str | None:
        """The sample size, as in ``18 of 20 planned``; None if unknown."""
        if self.scored is None or self.planned is None:
            return None
        return f"{self.scored:,} of {self.planned:,} planned"

    @property
    def words(self) -> str:
        scored = f"; scored {self.scored_words}" if self.scored_words else ""
        return f"validation{':' if self.reward is None else ' reward'} {self.reward_words}{scored}"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield a label and a text for each line of a summary."""
        yield "Validation reward", self.reward_words
        if self.scored_words:
            yield "Validation scored", self.scored_words
        for warning in self.warnings:
            yield "Warning", f"validation: {warning}"

    def to_json(self) -> dict[str, Any]:
        return {**self.model_dump(mode="json"), "words": self.words}


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    curves: Sequence[ViewedCurve] = ()
    marks: Sequence[CurveMark] = ()
    checkpoints: Sequence[SavedAdapter] = ()
    validation: ValidatedRows | None = None
    headline: ValidationHeadline | None = None
    collapsed: bool = False

    @classmethod
    def of(
        cls,
        metrics: Mapping[str, Sequence[tuple[int, float]]],
        titles: Mapping[str, str],
        marks: Iterable[CurveMark],
        checkpoints: Sequence[SavedAdapter],
        validation: ValidatedRows | None = None,
    ) -> TrainingCurves:
        """Return the curves of metrics, with a mark for each checkpoint."""
        saved = [CurveMark(adapter.step, "checkpoint", adapter.name) for adapter in checkpoints]
        by_step = sorted([*marks, *saved], key=lambda mark: mark.step)
        curves, headline = viewed_curves(metrics, titles), ValidationHeadline.of(metrics)
        dropped = [value for _, value in metrics.get(VALIDATION_DROPPED, ())][-1:] == [1.0]
        return cls(curves, by_step, checkpoints, validation, headline, dropped or has_collapsed(metrics))

    def points(self, key: str) -> Sequence[CurveValue]:
        return next((curve.points for curve in self.curves if curve.key == key), ())

    @property
    def is_supervised(self) -> bool:
        """Whether the run learned from conversations: it has losses and no rewards."""
        losses = (*self.points(VALIDATION_LOSS), *self.points(TRAINING_LOSS))
        return bool(losses) and not self.points(TRAINING_REWARD)

    @property
    def warnings(self) -> list[CurveMark]:
        """The warnings, each where it was first given."""
        found: dict[str, CurveMark] = {}
        for mark in self.marks:
            if mark.kind == "warning":
                found.setdefault(mark.text, mark)
        return list(found.values())

    def best_checkpoint(self) -> tuple[SavedAdapter, int] | None:
        """Return the checkpoint with the highest validation pass rate, then reward, and among how many it was selected.

        In a supervised run, it is the checkpoint with the lowest validation loss.

        None without a choice: fewer than two validated checkpoints, validations of a single attempt, or no checkpoint
        that is as good as the policy at the start.
        """
        losses = {point.step: point.value for point in self.points(VALIDATION_LOSS)}
        if measured := [saved for saved in self.checkpoints if saved.step in losses]:
            best = min(measured, key=lambda saved: losses[saved.step])
            is_worse = losses[best.step] > losses.get(0, math.inf)
            return (best, len(measured)) if len(measured) > 1 and not is_worse else None
        rates = {point.step: point.value for point in self.points(VALIDATION_PASS_RATE)}
        no_measure = {
            each.step for each in self.points(VALIDATION_REWARD) if each.is_hollow or each.over == 1
        }
        rated = [
            (rates.get(saved.step, saved.reward), saved.reward, saved)
            for saved in self.checkpoints
            if saved.reward is not None and saved.step not in no_measure
        ]
        if len(rated) < 2:
            return None
        value, _, chosen = max(rated, key=lambda each: each[:2])
        at_start = {point.step: point.value for point in self.points(VALIDATION_REWARD)} | rates
        return (chosen, len(rated)) if value >= at_start.get(0, value) else None

    def hollow_validations(self) -> list[int]:
        """Return the steps after which too few samples of the validation had a score."""
        return [point.step for point in self.points(VALIDATION_REWARD) if point.is_hollow]


def after_steps(steps: Sequence[int]) -> str:
    """Format steps as ``steps 5, 10``, at most the last ten; empty without any."""
    listed = ", ".join(str(step) for step in steps[-_MOST_STEPS:])
    if len(steps) <= _MOST_STEPS:
        return f"step{'s' * (len(steps) > 1)} {listed}" if steps else ""
    return f"{len(steps)} steps, the last of them {listed}"


def viewed_curves(
    metrics: Mapping[str, Sequence[tuple[int, float]]], titles: Mapping[str, str] = TITLES
) -> list[ViewedCurve]:
    """Return curves in the order of their titles, then those without one."""
    scored, planned = (dict(metrics.get(key, ())) for key in (VALIDATION_SCORED, VALIDATION_PLANNED))
    order = [*(key for key in titles if key in metrics), *(key for key in metrics if key not in titles)]
    curves = []
    for key in order:
        if key in _QUALIFIERS or not metrics[key]:
            continue
        low, high = (dict(metrics.get(end, ())) for end in _INTERVALS.get(key, ("", "")))
        over, of = (scored, planned) if key in (VALIDATION_REWARD, VALIDATION_PASS_RATE) else ({}, {})
        points = [
            CurveValue(
                step, value, low.get(step), high.get(step), _whole(over.get(step)), _whole(of.get(step))
            )
            for step, value in metrics[key]
        ]
        curves.append(ViewedCurve(key, titles.get(key, key), points))
    return curves


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


@dataclass(frozen=True)
class RecordedTraining:
    directory: TrainingDirectory
    records: Sequence[StepRecord]
    sessions: Sequence[Mapping[str, Any]]
    problems: Sequence[str]

    @classmethod
    def read(cls, directory: TrainingDirectory) -> RecordedTraining:
        """Read a directory; damage is reported in ``problems``, not raised."""
        records, problems = [], []
        try:
            for record in read_history(directory.metrics):
                records.append(record)
        except OsmosisError as error:
            problems.append(f"{error.message} The steps before that are shown.")
        except OSError as error:
            problems.append(f"`{directory.metrics}` cannot be read ({reason_of(error)}).")
        return cls(directory, records, list(_session_plans(directory.log)), problems)

    @property
    def last_step(self) -> int:
        return self.records[-1].step if self.records else 0

    @property
    def total_steps(self) -> int | None:
        total = self.planned("total_steps")
        return total if isinstance(total, int) else None

    @property
    def ended_at(self) -> datetime | None:
        """End of the newest step; None before the first one, and for an impossible timestamp."""
        try:
            return datetime.fromtimestamp(self.records[-1].timestamp_ms / 1000, timezone.utc)
        except (IndexError, ValueError, OverflowError, OSError, TypeError):
            return None

    def planned(self, name: str) -> Any:
        return self.sessions[-1].get(name) if self.sessions else None

    def newest(self, key: str) -> float | None:
        return next((record.metrics[key] for record in reversed(self.records) if key in record.metrics), None)

    def curves(self) -> TrainingCurves:
        metrics, marks, validation = curves_of(self.records), [], None
        for record in self.records:
            marks += [CurveMark(record.step, "warning", warning) for warning in record.warnings]
            if record.validation_rewards:
                with suppress(ValidationError):
                    validation = ValidatedRows(step=record.step, rewards=dict(record.validation_rewards))
        marks += marked_warnings(_session_warnings(self.sessions))
        marks += restarts(self.sessions)
        saved = [
            SavedAdapter(
                checkpoint.directory.name, checkpoint.step, reward_at(metrics, checkpoint.step), size
            )
            for checkpoint in checkpoints_in(self.directory.checkpoints)
            if (size := _size(checkpoint.adapter_dir)) is not None
        ]
        return TrainingCurves.of(metrics, TITLES, marks, saved, validation)


def restarts(sessions: Iterable[Mapping[str, Any]]) -> Iterator[CurveMark]:
    """Yield a mark for each session that resumed from an earlier one."""
    for session in sessions:
        done = session.get("steps_done")
        if isinstance(done, int) and 0 < done <= LARGEST_STEP:
            yield CurveMark(done, "restart", f"resumed after step {done}")


def _session_warnings(sessions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for session in sessions:
        warnings = session.get("warnings")
        for text in warnings if isinstance(warnings, list) else ():
            yield str(text), {"training_step": session.get("steps_done")}


def marked_warnings(lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[CurveMark]:
    """Yield a mark for each different warning of a training step in a log."""
    found = set()
    for message, facts in lines:
        step = facts.get("training_step")
        if isinstance(step, int) and 0 <= step <= LARGEST_STEP and (step, message) not in found:
            found.add((step, message))
            yield CurveMark(step, "warning", message)


def _session_plans(log: Path) -> Iterator[dict[str, Any]]:
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
    """Return the validation reward of the policy after a step; None if it was not validated then."""
    return dict(metrics.get(VALIDATION_REWARD, ())).get(step)


def _size(folder: Path) -> int | None:
    try:
        return sum(file.lstat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return None

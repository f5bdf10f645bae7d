"""The curves of a training run as pages draw them: a metric with its interval and what it stands on is one curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osmosis_ai.api.wire.training_runs import ValidatedRows
from osmosis_ai.platform.db.tables import DbLoraModel, DbRun
from osmosis_ai.platform.runs.read.training_curves import VALIDATION, MetricCurve
from osmosis_ai.training.runs.metrics import (
    VALIDATION_PASS_RATE,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
)
from osmosis_ai.viewer.source import CurveMark, CurveValue, SavedAdapter, TrainingCurves, ViewedCurve

_BESIDE_A_VALUE = (VALIDATION_REWARD_LOW, VALIDATION_REWARD_HIGH, VALIDATION_SCORED, VALIDATION_PLANNED)
"""Metrics that say something of another one's value."""


def viewed_training(
    run: DbRun, curves: Sequence[MetricCurve], models: Sequence[DbLoraModel]
) -> TrainingCurves:
    """Return the curves of a run, its checkpoints and its newest validation."""
    by_key = {curve.key: {point.step: point.value for point in curve.points} for curve in curves}
    return TrainingCurves(
        [_viewed(curve, by_key) for curve in curves if curve.key not in _BESIDE_A_VALUE],
        [CurveMark(model.step, "checkpoint", model.name) for model in models],
        [_saved(model) for model in models],
        ValidatedRows(**run.metrics[VALIDATION]) if run.metrics and VALIDATION in run.metrics else None,
    )


def _viewed(curve: MetricCurve, by_key: Mapping[str, Mapping[int, float]]) -> ViewedCurve:
    low, high, scored, planned = (by_key.get(key, {}) for key in _BESIDE_A_VALUE)
    is_reward = curve.key == VALIDATION_REWARD
    is_validated = is_reward or curve.key == VALIDATION_PASS_RATE
    points = [
        CurveValue(
            point.step,
            point.value,
            low=low.get(point.step) if is_reward else None,
            high=high.get(point.step) if is_reward else None,
            over=_whole(scored.get(point.step)) if is_validated else None,
            of=_whole(planned.get(point.step)) if is_validated else None,
        )
        for point in curve.points
    ]
    return ViewedCurve(curve.key, curve.title, points)


def _saved(model: DbLoraModel) -> SavedAdapter:
    size = sum(int(file["size"]) for file in model.files.values())
    return SavedAdapter(model.name, model.step, model.reward, size, model.deployment_status)


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)

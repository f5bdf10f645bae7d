"""The metrics of a training run as curves that pages draw: a value with its interval and what it stands on is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osmosis_ai.training.runs.metrics import (
    TITLES,
    VALIDATION_PASS_RATE,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
)
from osmosis_ai.viewer.source import CurveValue, ViewedCurve

BESIDE_A_VALUE = (VALIDATION_REWARD_LOW, VALIDATION_REWARD_HIGH, VALIDATION_SCORED, VALIDATION_PLANNED)
"""Metrics that say something of another one's value."""


def viewed_curves(
    metrics: Mapping[str, Sequence[tuple[int, float]]], titles: Mapping[str, str] = TITLES
) -> list[ViewedCurve]:
    """Return curves in the order of their titles, then those without one.

    Args:
        metrics: (step, value) by key, by rising step.
        titles: what keys are called.
    """
    low, high, scored, planned = (dict(metrics.get(key, ())) for key in BESIDE_A_VALUE)
    order = [*(key for key in titles if key in metrics), *(key for key in metrics if key not in titles)]
    curves = []
    for key in order:
        if key in BESIDE_A_VALUE:
            continue
        reward = key == VALIDATION_REWARD
        validated = reward or key == VALIDATION_PASS_RATE
        points = [
            CurveValue(
                step,
                value,
                low=low.get(step) if reward else None,
                high=high.get(step) if reward else None,
                over=_whole(scored.get(step)) if validated else None,
                of=_whole(planned.get(step)) if validated else None,
            )
            for step, value in metrics[key]
        ]
        curves.append(ViewedCurve(key, titles.get(key, key), points))
    return curves


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)

"""Warnings about the numbers of a training run, computed from its curves alone.

A resumed run therefore warns as an uninterrupted one, and every reader of the curves gets the same warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist, fmean

from osmosis_ai.training.runs.metrics import (
    DROPPED,
    DROPPED_LENGTHS,
    GRADER_FAILURES,
    TRAINING_REWARD,
    TRAINING_REWARD_HIGH,
    TRAINING_REWARD_LOW,
)

Curves = Mapping[str, Sequence[tuple[int, float]]]

WINDOW = 5
"""Steps over which a mean is taken, and for which a warning is not repeated."""
_FIRST_COLLAPSE = 4
"""The first step at which the reward is checked for a collapse, with means of 2 steps."""
# In 200 steps of a policy that does not change, at most one run in twenty has such a drop by chance (simulated).
_CLEAR_DROP = 5.0
_LOST_REWARD, _LEAST_ENTROPY, _LEAST_LENGTH = 0.5, 0.05, 0.25
_MOST_TRUNCATED, _MOST_EQUAL, _MOST_UNSCORED, _MOST_DROPPED = 0.5, 0.9, 0.1, 0.1
# A policy with this share of the highest reward needs no alternatives.
_NEARLY_SOLVED = 0.8


def has_collapsed(curves: Curves) -> bool:
    """Return whether the policy has collapsed by the last step."""
    return any(kind in ("reward", "entropy", "length") for kind, _ in trouble(curves))


def new_trouble(curves: Curves) -> dict[str, str]:
    """Return the warnings that are new at the last step."""
    found, last = (
        dict(trouble(curves)),
        max((points[-1][0] for points in curves.values() if points), default=0),
    )
    for step in range(last - WINDOW, last) if found else ():
        before = {key: [point for point in points if point[0] <= step] for key, points in curves.items()}
        for kind, _ in trouble(before):
            found.pop(kind, None)
    return found


def trouble(curves: Curves) -> Iterator[tuple[str, str]]:
    """Yield the warnings of a run's last step, each with a sentence."""

    def values(key: str) -> list[float]:
        return [value for _, value in curves.get(key, ())]

    def ends(key: str) -> tuple[float, float]:
        found = values(key) or [0.0]
        return fmean(found[:WINDOW]), fmean(found[-WINDOW:])

    failures, unscored, samples = (
        (values(key) or [0.0])[-1] for key in (GRADER_FAILURES, "rollout/unscored", "rollout/samples")
    )
    if failures:
        yield "grader", f"the grader failed on {failures:.0f} of {samples:.0f} attempts"
    if unscored > _MOST_UNSCORED * samples:
        share = f"{unscored / samples:.0%}"
        yield "unscored", f"{unscored:.0f} of {samples:.0f} attempts ({share}) have no reward"
    dropped = curves.get(DROPPED, ())[-WINDOW:]
    if len(dropped) == WINDOW and (mean := fmean(share for _, share in dropped)) > _MOST_DROPPED:
        lengths = [value for step, value in curves.get(DROPPED_LENGTHS, ()) if step >= dropped[0][0]]
        what = f"{mean:.0%} of the attempts in the last {WINDOW} steps were dropped as too old or too slow"
        others = ends("rollout/response_lengths")[1]
        long = f"mean response: {fmean(lengths or [0]):.0f} tokens, others {others:.0f}"
        yield "dropped", f"{what} ({long}): the policy learns less from long attempts. Raise max_staleness."
    rewards = values(TRAINING_REWARD)
    if len(rewards) < _FIRST_COLLAPSE:
        return
    lowest, highest = (
        min(values("rollout/reward_min") or rewards),
        max(values("rollout/reward_max") or rewards),
    )
    window = min(WINDOW, len(rewards) // 2)
    means = [fmean(rewards[start : start + window]) for start in range(len(rewards) - window + 1)]
    steps = (step for step, _ in curves[TRAINING_REWARD])
    best, start = max(zip(means[:-window], steps, strict=False))
    reward = means[-1]
    is_clear = best - reward > _CLEAR_DROP * _noise(curves) * math.sqrt(2 / window)
    if is_clear and reward - lowest < _LOST_REWARD * (best - lowest):
        of_best = f"{best:.3g} in the {window} steps from step {start}"
        yield "reward", f"the training reward collapsed: {reward:.3g} in the last {window} steps, {of_best}."
    if len(rewards) < 2 * WINDOW:
        return
    first_reward, of_last = fmean(rewards[:WINDOW]), f"in the last {WINDOW} steps"
    is_solved = reward - lowest >= _NEARLY_SOLVED * (highest - lowest)
    was, now = ends("train/entropy_loss")
    if now < _LEAST_ENTROPY * was and not is_solved:
        fell = f"{now:.2g} nats per token {of_last}, {was:.2g} in the first {WINDOW}"
        yield "entropy", f"the policy's entropy collapsed: {fell}. The policy no longer explores."
    was, now = ends("rollout/response_lengths")
    if now < _LEAST_LENGTH * was and reward <= first_reward:
        fell = f"{now:.0f} tokens {of_last}, {was:.0f} in the first {WINDOW}"
        yield "length", f"the responses collapsed: {fell}, and the reward has not risen."
    if (cut := ends("rollout/truncated_ratio")[1]) > _MOST_TRUNCATED:
        yield "truncated", f"{cut:.0%} of the attempts {of_last} were cut off at max_response_length."
    # The loop reports groups that are all equal, and ends the run.
    if _MOST_EQUAL <= (equal := ends("rollout/zero_variance_fraction")[1]) < 1 and not is_solved:
        what = f"{equal:.0%} of the groups {of_last} had equal rewards (mean {reward:.3g})"
        yield "equal", f"{what}: the task is too hard for the policy, or the grader is too coarse."


def _noise(curves: Curves) -> float:
    """Return the standard deviation of a step's mean reward if the policy does not change.

    With fewer than 2 * WINDOW steps, a collapse would dominate the differences of successive steps. The confidence
    intervals of the steps are used instead, and without them no drop is clear.
    """
    rewards = curves[TRAINING_REWARD]
    if len(rewards) >= 2 * WINDOW:
        return math.sqrt(fmean((b - a) ** 2 for (_, a), (_, b) in pairwise(rewards)) / 2)
    # A step without an interval, such as one with equal rewards, has its lowest and highest reward.
    low, high = (
        {**dict(curves.get(outer, ())), **dict(curves.get(key, ()))}
        for outer, key in (
            ("rollout/reward_min", TRAINING_REWARD_LOW),
            ("rollout/reward_max", TRAINING_REWARD_HIGH),
        )
    )
    if not all(step in low and step in high for step, _ in rewards):
        return math.inf
    # An interval ends at the lowest or highest reward, so its wider half counts.
    halves = [max(value - low[step], high[step] - value) for step, value in rewards]
    return math.sqrt(fmean(half**2 for half in halves)) / NormalDist().inv_cdf(0.975)

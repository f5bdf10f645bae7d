"""Warnings about the numbers of a training run, computed from its curves alone.

A resumed run therefore warns as an uninterrupted one, and every reader of the curves gets the same warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from osmosis_ai.training.runs.metrics import GRADER_FAILURES, TRAINING_REWARD

Curves = Mapping[str, Sequence[tuple[int, float]]]

WINDOW = 5
"""Steps over which a mean is taken, and for which a warning is not repeated."""
# In 200 steps of a policy that does not change, at most one run in twenty has such a drop by chance (simulated).
_CLEAR_DROP = 5.0
_LOST_REWARD, _LEAST_ENTROPY, _LEAST_LENGTH = 0.5, 0.05, 0.25
_MOST_TRUNCATED, _MOST_EQUAL, _MOST_UNSCORED = 0.5, 0.9, 0.1
# A policy with this share of the highest reward needs no alternatives.
_NEARLY_SOLVED = 0.8


def collapse(curves: Curves) -> str | None:
    """Return how the policy has collapsed by the last step."""
    return next((text for kind, text in trouble(curves) if kind in ("reward", "entropy", "length")), None)


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
    rewards = values(TRAINING_REWARD)
    if len(rewards) < 2 * WINDOW:
        return
    lowest, highest = (
        min(values("rollout/reward_min") or rewards),
        max(values("rollout/reward_max") or rewards),
    )
    (first_reward, reward), of_last = ends(TRAINING_REWARD), f"in the last {WINDOW} steps"
    means = [fmean(rewards[start : start + WINDOW]) for start in range(len(rewards) - 2 * WINDOW + 1)]
    best, start = max(zip(means, (step for step, _ in curves[TRAINING_REWARD]), strict=False))
    noise = math.sqrt(fmean((b - a) ** 2 for a, b in pairwise(rewards)) / 2)
    is_clear = best - reward > _CLEAR_DROP * noise * math.sqrt(2 / WINDOW)
    if is_clear and reward - lowest < _LOST_REWARD * (best - lowest):
        of_best = f"{best:.3g} in the {WINDOW} steps from step {start}"
        yield "reward", f"the training reward collapsed: {reward:.3g} {of_last}, {of_best}."
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

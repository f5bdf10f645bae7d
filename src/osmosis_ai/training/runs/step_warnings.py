"""What deserves a warning in the numbers of a training run, as a function of its curves alone.

A resumed run therefore warns as an uninterrupted one, and every reader of the curves comes to the same conclusion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal

from osmosis_ai.training.runs.metrics import (
    ENTROPY,
    EQUAL_GROUPS,
    GRADER_FAILURES,
    RESPONSE_LENGTH,
    SAMPLES,
    TRAINING_REWARD,
    TRAINING_REWARD_MAX,
    TRAINING_REWARD_MIN,
    TRUNCATED,
    UNSCORED,
    VALIDATION_DROPPED,
)

Curves = Mapping[str, Sequence[tuple[int, float]]]
Trouble = Literal["reward", "entropy", "length", "truncated", "equal", "unscored", "grader"]

WATCHED = (
    *(TRAINING_REWARD, TRAINING_REWARD_MIN, TRAINING_REWARD_MAX, ENTROPY, RESPONSE_LENGTH),
    *(TRUNCATED, EQUAL_GROUPS, SAMPLES, UNSCORED, GRADER_FAILURES),
)
"""The metrics of a step that :func:`new_trouble` reads."""
WINDOW = 5
"""Steps over which a mean is taken, and for which a warning is not repeated."""
# In 200 steps of a policy that does not change, at most one run in twenty has such a drop by chance (simulated).
_CLEAR_DROP = 5.0
_LOST_REWARD, _LEAST_ENTROPY, _LEAST_LENGTH = 0.5, 0.05, 0.25
_MOST_TRUNCATED, _MOST_EQUAL, _MOST_UNSCORED = 0.5, 0.9, 0.1
# A policy that gets this part of the highest reward has no need for alternatives.
_NEARLY_SOLVED = 0.8


def is_collapsed(curves: Curves) -> bool:
    """Return whether the policy ended worse than it was: its last adapter should not be deployed."""
    dropped = curves.get(VALIDATION_DROPPED)
    return bool(dropped and dropped[-1][1]) or bool(collapse(curves))


def collapse(curves: Curves) -> dict[Trouble, str]:
    """Return what says, at the last step, that the policy has collapsed."""
    return {kind: text for kind, text in trouble(curves).items() if kind in ("reward", "entropy", "length")}


def new_trouble(curves: Curves) -> dict[Trouble, str]:
    """Return what began with the last step and was no trouble in the steps before it."""
    found = trouble(curves)
    if found:
        last = max(points[-1][0] for points in curves.values() if points)
        for step in range(last - WINDOW, last):
            before = {key: [point for point in points if point[0] <= step] for key, points in curves.items()}
            found = {kind: text for kind, text in found.items() if kind not in trouble(before)}
    return found


def trouble(curves: Curves) -> dict[Trouble, str]:
    """Return a sentence for each trouble that a run is in after its last step."""
    return dict(_trouble(curves))


def _trouble(curves: Curves) -> Iterator[tuple[Trouble, str]]:
    def values(key: str) -> list[float]:
        return [value for _, value in curves.get(key, ())]

    samples = values(SAMPLES)
    if failures := (values(GRADER_FAILURES) or [0.0])[-1]:
        yield "grader", f"the grader failed on {failures:.0f} of {samples[-1]:.0f} attempts"
    unscored = (values(UNSCORED) or [0.0])[-1]
    if samples and unscored > _MOST_UNSCORED * samples[-1]:
        of = f"{samples[-1]:.0f} attempts ({unscored / samples[-1]:.0%})"
        yield "unscored", f"{unscored:.0f} of {of} have no reward"
    rewards = values(TRAINING_REWARD)
    if len(rewards) < 2 * WINDOW:
        return
    lowest = min(values(TRAINING_REWARD_MIN) or rewards)
    highest = max(values(TRAINING_REWARD_MAX) or rewards)
    reward, of_last = fmean(rewards[-WINDOW:]), f"in the last {WINDOW} steps"
    means = [fmean(rewards[start : start + WINDOW]) for start in range(len(rewards) - 2 * WINDOW + 1)]
    best = max(range(len(means)), key=means.__getitem__)
    noise = math.sqrt(fmean((b - a) ** 2 for a, b in pairwise(rewards)) / 2)
    is_clear = means[best] - reward > _CLEAR_DROP * noise * math.sqrt(2 / WINDOW)
    if is_clear and reward - lowest < _LOST_REWARD * (means[best] - lowest):
        at = [step for step, _ in curves[TRAINING_REWARD]][best]
        yield (
            "reward",
            f"the training reward collapsed: {reward:.3g} {of_last}, {means[best]:.3g} in the {WINDOW} steps from step "
            f"{at} on.",
        )
    is_solved = reward - lowest >= _NEARLY_SOLVED * (highest - lowest)
    entropy = values(ENTROPY)
    was, now = _ends(entropy)
    if now < _LEAST_ENTROPY * was and not is_solved:
        yield (
            "entropy",
            f"the policy's entropy collapsed: {now:.2g} nats per token {of_last}, {was:.2g} in the first {WINDOW}. It no "
            f"longer tries alternatives, at a reward of {reward:.3g}.",
        )
    was, now = _ends(values(RESPONSE_LENGTH))
    if now < _LEAST_LENGTH * was and reward <= fmean(rewards[:WINDOW]):
        yield (
            "length",
            f"the responses collapsed: {now:.0f} tokens {of_last}, {was:.0f} in the first {WINDOW}, and the reward has "
            "not risen.",
        )
    _, share = _ends(values(TRUNCATED))
    if share > _MOST_TRUNCATED:
        yield "truncated", f"{share:.0%} of the attempts {of_last} were cut off at max_response_length."
    _, share = _ends(values(EQUAL_GROUPS))
    # The loop reports groups that are all equal, and ends the run.
    if _MOST_EQUAL <= share < 1 and not is_solved:
        yield (
            "equal",
            f"{share:.0%} of the groups {of_last} had equal rewards (mean {reward:.3g}) and taught nothing: the task is "
            "too hard for the policy, or the grader too coarse.",
        )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and of the last values; 0 without any."""
    return (fmean(values[:WINDOW]), fmean(values[-WINDOW:])) if values else (0.0, 0.0)

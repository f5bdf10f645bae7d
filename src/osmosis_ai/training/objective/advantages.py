"""Advantage of a sample over the others on the same prompt.

Axes: P prompts, G samples of each (the group). An unscored sample does not count as zero: it is excluded from its
group's mean and has no advantage. A group with equal scores carries no preference and is dropped, so that it does not
dilute the rest (DAPO, section 3.2, "dynamic sampling"). Dropped samples are always counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev

# Keeps a group with a tiny spread from being blown up.
STD_FLOOR = 1e-4
# Rewards closer than this are the same reward: the rest is rounding.
_SAME_REWARD = 1e-9


@dataclass(frozen=True)
class GroupStatistics:
    groups: int
    groups_zero_variance: int
    groups_too_few_scores: int
    samples: int
    samples_unscored: int
    samples_used: int
    reward_mean: float | None
    reward_std: float | None
    reward_min: float | None
    reward_max: float | None

    @property
    def zero_variance_fraction(self) -> float:
        """Share of the groups without a signal: equal rewards, or too few of them."""
        silent = self.groups_zero_variance + self.groups_too_few_scores
        return silent / self.groups if self.groups else 0.0


@dataclass(frozen=True)
class GroupAdvantages:
    advantages_PG: list[list[float | None]]
    statistics: GroupStatistics


def group_advantages(
    rewards_PG: Sequence[Sequence[float | None]], *, normalise: bool = True
) -> GroupAdvantages:
    """Compare each sample with its group.

    A_i = (r_i - mean(r)) / (std(r) + 1e-4)    GRPO, "DeepSeekMath" (arXiv:2402.03300), section 4.1.2
    A_i =  r_i - mean(r)                       Dr. GRPO (arXiv:2503.20783), section 3.2: dividing by
                                               the deviation favours prompts that are nearly always or
                                               nearly never solved

    Example: rewards [1, 0, None, 0] give [2/3, -1/3, None, -1/3] / (0.5774 + 1e-4), or only the numerators
    without ``normalise``.

    Args:
        rewards_PG: Reward of each sample of each group; None if missing.
        normalise: Divide by the group's sample standard deviation.
    """
    advantages_PG: list[list[float | None]] = []
    scores_P: list[list[float]] = []
    for rewards_G in rewards_PG:
        rewards = [
            None if reward is None or not math.isfinite(reward) else float(reward) for reward in rewards_G
        ]
        scores = [reward for reward in rewards if reward is not None]
        scores_P.append(scores)
        if not differ(scores):
            advantages_PG.append([None] * len(rewards))
        else:
            mean = fmean(scores)
            scale = stdev(scores) + STD_FLOOR if normalise else 1.0
            advantages_PG.append([None if reward is None else (reward - mean) / scale for reward in rewards])
    scores = [score for group in scores_P for score in group]
    samples = sum(len(rewards_G) for rewards_G in rewards_PG)
    statistics = GroupStatistics(
        groups=len(scores_P),
        groups_zero_variance=sum(len(group) > 1 and not differ(group) for group in scores_P),
        groups_too_few_scores=sum(len(group) < 2 for group in scores_P),
        samples=samples,
        samples_unscored=samples - len(scores),
        samples_used=sum(a is not None for advantages_G in advantages_PG for a in advantages_G),
        reward_mean=fmean(scores) if scores else None,
        reward_std=pstdev(scores) if scores else None,
        reward_min=min(scores, default=None),
        reward_max=max(scores, default=None),
    )
    return GroupAdvantages(advantages_PG, statistics)


def differ(scores: Sequence[float]) -> bool:
    """Return whether there are at least two scores and they are not all equal."""
    return len(scores) > 1 and max(scores) - min(scores) > _SAME_REWARD

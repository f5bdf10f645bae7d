from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.special import stdtrit

from osmosis_ai.training.runs.curves import SavedAdapter, TrainingCurves
from osmosis_ai.training.runs.step_warnings import Curves, has_collapsed, new_trouble

# The first 27 steps of the demo: the entropy falls below 5% and most groups become equal because the task is solved.
DEMO = {
    "rollout/raw_reward": [
        *(0.391, 0.336, 0.445, 0.469, 0.477, 0.516, 0.484, 0.438, 0.539, 0.57, 0.625, 0.648, 0.656, 0.75),
        *(0.852, 0.922, 0.938, 0.977, 0.938, 0.969, 0.977, 0.953, 0.953, 0.969, 0.938, 0.984, 0.938),
    ],
    "train/entropy_loss": [
        *(0.35, 0.41, 0.331, 0.278, 0.279, 0.222, 0.273, 0.28, 0.233, 0.175, 0.169, 0.158, 0.15, 0.109),
        *(0.083, 0.065, 0.025, 0.024, 0.065, 0.03, 0.038, 0.041, 0.011, 0.016, 0.016, 0.01, 0.005),
    ],
    "rollout/zero_variance_fraction": [*[0.0] * 14, 0.31, 0.56, 0.5, 0.81, 0.69, 0.75, 0.81, *[0.94] * 6],
    "rollout/response_lengths": [*range(18, 32), *[34] * 13],
}
ALWAYS = {"rollout/reward_min": 0.0, "rollout/reward_max": 1.0, "rollout/samples": 128.0}


def warned(curves: Mapping[str, Sequence[float]]) -> tuple[dict[int, list[str]], Curves]:
    """Return the warnings of each step as a run gives them, and all its curves."""
    steps = len(curves["rollout/raw_reward"])
    values = {**{key: [value] * steps for key, value in ALWAYS.items()}, **curves}
    known = {key: [(step, value) for step, value in enumerate(found, 1)] for key, found in values.items()}
    found = {}
    for step in range(1, steps + 1):
        new = new_trouble({key: points[:step] for key, points in known.items()})
        if new:
            found[step] = list(new.values())
    return found, known


def test_a_healthy_run_has_no_warnings() -> None:
    found, curves = warned(DEMO)
    assert (found, TrainingCurves.of(curves, {}, [], []).collapsed) == ({}, False)


def certain(rewards: Sequence[float], half: float) -> dict[str, list[float]]:
    """Return rewards with an interval of this half width at each step."""
    ends = {"low": -half, "high": half}
    return {
        "rollout/raw_reward": list(rewards),
        **{f"rollout/reward_{end}": [each + to for each in rewards] for end, to in ends.items()},
    }


EARLY = [0.5, 0.52, 0.48, 0.05, 0.02, 0.03, 0.02]
FLAT = [0.3, 0.28, 0.32, 0.31, 0.29] * 4


@pytest.mark.parametrize(
    ("curves", "step", "words", "is_bad"),
    [
        (
            {"rollout/raw_reward": [*DEMO["rollout/raw_reward"], *[0.1] * 8]},
            30,
            "reward collapsed: 0.444 in the last 5 steps, 0.964 in the 5 steps from step 20",
            True,
        ),
        (
            certain(EARLY, 0.07),
            5,
            "collapsed: 0.035 in the last 2 steps, 0.51 in the 2 steps from step 1",
            True,
        ),
        (
            # Equal rewards have no interval.
            {
                "rollout/raw_reward": [0.39, 0, 0, 0],
                "rollout/reward_low": [0.31],
                "rollout/reward_high": [0.47],
                "rollout/reward_min": [0, 0, 0, 0],
                "rollout/reward_max": [1, 0, 0, 0],
            },
            4,
            "collapsed: 0 in the last 2 steps, 0.195 in the 2 steps from step 1",
            True,
        ),
        (certain(EARLY, 0.3), None, "", False),
        ({"rollout/raw_reward": EARLY}, None, "", False),
        ({"rollout/raw_reward": [*FLAT, 0.2, 0.21, 0.2, 0.19, 0.2]}, None, "", False),
        (
            {"rollout/raw_reward": FLAT, "train/entropy_loss": [0.5] * 5 + [0.02] * 15},
            10,
            "entropy collapsed: 0.02 nats per token in the last 5 steps, 0.5 in the first 5",
            True,
        ),
        (
            {"rollout/raw_reward": FLAT, "rollout/response_lengths": [400] * 5 + [20] * 15},
            10,
            "responses collapsed: 20 tokens",
            True,
        ),
        (
            {"rollout/raw_reward": [0.2] * 5 + [0.9] * 15, "rollout/response_lengths": [400] * 5 + [20] * 15},
            None,
            "",
            False,
        ),
        ({"rollout/raw_reward": FLAT, "rollout/truncated_ratio": [0.6] * 20}, 10, "60% of the att", False),
        (
            {"rollout/raw_reward": FLAT, "rollout/zero_variance_fraction": [0.95] * 20},
            10,
            "95% of the groups in the last 5 steps had equal rewards (mean 0.3)",
            False,
        ),
        (
            {"rollout/raw_reward": FLAT, "rollout/unscored": [0, 12, 13, 20, 13] + [0] * 15},
            3,
            "13 of 128 attempts (10%) have no reward",
            False,
        ),
        (
            {"rollout/raw_reward": FLAT, "rollout/grader_failures": [0, 1, 2, 1, 0, 1] + [0] * 14},
            2,
            "the grader failed on 1 of 128 attempts",
            False,
        ),
        (
            {
                "rollout/raw_reward": FLAT,
                "rollout/response_lengths": [300] * 20,
                "rollout/dropped_stale": [0.0] * 4 + [0.2, 0.2, 0.2] + [0.0] * 13,
                "rollout/dropped_stale_lengths": [900] * 20,
            },
            7,
            "12% of the attempts in the last 5 steps were dropped as too old or too slow (mean response: 900 tokens, others 300)",
            False,
        ),
        ({"rollout/raw_reward": FLAT, "eval/validation/dropped": [0] * 19 + [1]}, None, "", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_trouble_is_reported_once_where_it_begins(
    curves: dict[str, list[float]], step: int | None, words: str, is_bad: bool
) -> None:
    found, known = warned(curves)
    assert list(found) == ([] if step is None else [step])
    assert all(words in sentence for sentences in found.values() for sentence in sentences)
    assert TrainingCurves.of(known, {}, [], []).collapsed is is_bad


@pytest.mark.parametrize(("at_start", "best"), [(0.35, "b"), (0.5, "b"), (0.51, None)])
def test_best_checkpoint_is_as_good_as_the_start(at_start: float, best: str | None) -> None:
    saved = [SavedAdapter("a", 5, 0.4), SavedAdapter("b", 10, 0.5)]
    rates = [(0, at_start), (5, 0.4), (10, 0.5)]
    curves = TrainingCurves.of({"eval/validation/pass_rate": rates}, {}, [], saved)
    found = curves.best_checkpoint()
    assert (found and (found[0].name, found[1])) == (best and (best, 2))
    losses = [(0, 1 - at_start), (5, 0.6), (10, 0.5)]
    supervised = TrainingCurves.of({"eval/validation/loss": losses}, {}, [], saved).best_checkpoint()
    assert (supervised and supervised[0].name) == best


def unchanged_policy(runs: int, prompts: int, rate: float, spread: float, noise: float) -> list[Curves]:
    """Return runs of a policy that does not change: prompts of different difficulty, 8 attempts each, 30 steps."""
    generator = np.random.default_rng(7)
    shape = (runs, 30, prompts)
    rates = generator.beta(rate * spread, (1 - rate) * spread, shape)[..., None]
    if noise:  # a reward with partial credit
        rewards = np.clip(rates + noise * generator.standard_normal((*shape, 8)), 0, 1)
    else:
        rewards = (generator.random((*shape, 8)) < rates).astype(float)
    of_prompts = rewards.mean(-1)
    mean, half = (
        of_prompts.mean(-1),
        stdtrit(prompts - 1, 0.975) * of_prompts.std(-1, ddof=1) / np.sqrt(prompts),
    )
    lowest, highest = rewards.min((2, 3)), rewards.max((2, 3))
    metrics = {
        "rollout/raw_reward": mean,
        "rollout/reward_low": np.maximum(mean - half, lowest),
        "rollout/reward_high": np.minimum(mean + half, highest),
        "rollout/reward_min": lowest,
        "rollout/reward_max": highest,
    }
    return [{key: list(enumerate(values[run], 1)) for key, values in metrics.items()} for run in range(runs)]


@pytest.mark.parametrize("prompts", [2, 16])
@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize(("spread", "noise"), [(1.0, 0.0), (1000.0, 0.0), (1.0, 0.1)])
def test_a_policy_that_does_not_change_rarely_collapses(
    prompts: int, rate: float, spread: float, noise: float
) -> None:
    runs = unchanged_policy(200, prompts, rate, spread, noise)
    false = sum(
        any(has_collapsed({key: points[:step] for key, points in curves.items()}) for step in range(4, 31))
        for curves in runs
    )
    assert false / len(runs) <= 0.05

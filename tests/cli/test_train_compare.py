"""`osmosis train compare`: differences between two runs, and how certain they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.cli.maze import Maze
from tests.cli.train_replies import CHECKPOINTS, DETAIL

REWARD, VALIDATION = "rollout/raw_reward", "eval/validation/reward"
STDERR, SAMPLES, SCORED = (f"eval/validation/{name}" for name in ("reward_stderr", "samples", "scored"))
ENDING = (0.30, 0.28, 0.35, 0.33, 0.40, 0.38, 0.45, 0.41, 0.50, 0.48)
GAINS = (0.16, 0.20, 0.24, 0.18, 0.22, 0.15, 0.25, 0.19, 0.21, 0.20)
GAINED = [value + gain for value, gain in zip(ENDING, GAINS, strict=True)]


def offer(
    maze: Maze,
    name: str,
    curves: Mapping[str, Sequence[float]],
    *,
    config: Mapping[str, Any] | None = None,
    rewards: Mapping[str, float | None] | None = None,
    rewards_step: int = 2,
    first_step: int = 1,
    commit: str = "4be1c0ffee4be1c0ffee",
) -> None:
    """Let the platform have a finished run with these curves, and the rewards of rows in its last validation."""
    own = {**DETAIL["training_run"], "id": f"tr_{name}", "name": name, "status": "finished"}
    detail = {**DETAIL, "training_run": own, "config": config or {}, "commit_sha": commit}
    maze.get(f"/training-runs/{name}").respond(json=detail)
    series = [
        {
            "metric_key": key,
            "title": key,
            "data_points": [
                {"step": step, "value": value, "timestamp": 0}
                for step, value in enumerate(values, first_step)
            ],
        }
        for key, values in curves.items()
    ]
    validation = {"step": rewards_step, "rewards": rewards} if rewards is not None else None
    maze.get(f"/training-runs/tr_{name}/metrics").respond(
        json={"overview": {}, "metrics": series, "validation": validation}
    )
    maze.get(f"/training-runs/tr_{name}/checkpoints").respond(json=CHECKPOINTS)


def offer_both(maze: Maze) -> None:
    offer(
        maze,
        "old",
        {REWARD: (0.9, *ENDING), VALIDATION: (0.4, 0.5), STDERR: (0.1, 0.03)},
        config={"training": {"lr": 1e-6, "total_epochs": 1}},
    )
    offer(
        maze,
        "new",
        {REWARD: (0.1, *GAINED, 1.0), VALIDATION: (0.4, 0.7), STDERR: (0.1, 0.04), "train/loss": (1.0,)},
        config={"training": {"lr": 1e-5, "total_epochs": 1}, "advanced": {"lora_rank": 32}},
        commit="beef",
    )


def compare(maze: Maze, new: str = "new") -> dict[str, Any]:
    return maze.osmosis("train", "compare", "old", new, "--json").data


def rows(count: int) -> list[str]:
    return [f"{number:032x}" for number in range(count)]


def test_no_interval(maze: Maze) -> None:
    offer(maze, "old", {REWARD: (0.2, 0.3), VALIDATION: (0.5,)})
    offer(maze, "new", {REWARD: (0.2, 0.4), VALIDATION: (0.6,)})
    data = compare(maze)
    assert data["config_differences"] == []
    found = [(metric["difference"], metric["low"], metric["method"]) for metric in data["metrics"]]
    assert found == [(pytest.approx(0.05), None, None), (pytest.approx(0.1), None, None)]
    assert [metric["reason"] for metric in data["metrics"]] == ["steps of one run are not independent", None]
    assert data["verdict"]["sentence"] == (
        "No verdict: the validation reward of new minus that of old is +0.100 "
        "(no interval: a run reports no standard error). One run per setting does not measure seed variance."
    )
    assert "The settings are the same." in maze.osmosis("train", "compare", "old", "new", "--plain").out


def test_few_scores_warning(maze: Maze) -> None:
    for name, scored in (("old", (8, 8, 8)), ("new", (4, 8, 7))):
        offer(maze, name, {VALIDATION: (0.5, 0.6, 0.7), SCORED: scored, SAMPLES: (8, 8, 8)})
    warning = "In the validation of new after steps 1, 3, less than 90% of the attempts have a score"
    assert f"does not measure seed variance. {warning}:" in compare(maze)["verdict"]["sentence"]
    plain = " ".join(maze.osmosis("train", "compare", "old", "new", "--plain").out.split())
    assert warning in plain and "validation of old" not in plain


@pytest.mark.parametrize(("crashed", "verdict"), [(0, "better"), (4, "better"), (50, "unclear")])
def test_missing_scores_are_no_improvement(maze: Maze, crashed: int, verdict: str) -> None:
    for name, lost in (("old", 0), ("new", crashed)):
        passed = [n % 50 < 30 if name == "old" else n < 90 for n in range(100)]
        rewards = {row: float(passed[n]) for n, row in enumerate(rows(100 - lost))}
        curves = {VALIDATION: (0.3, 0.5), SAMPLES: (100, 100), SCORED: (100, 100 - lost)}
        offer(maze, name, curves, rewards=rewards)
    found = compare(maze)["verdict"]
    assert found["verdict"] == verdict
    assert ("50 attempts without a score" in found["sentence"]) == (crashed == 50)


@pytest.mark.parametrize("counted", [True, False])
def test_missing_scores_count_against_verdict(maze: Maze, counted: bool) -> None:
    # A comparison of the scored rows calls "new" better. With the others at 1 "old" is.
    for name, scored in (("old", 110), ("new", 200)):
        rewards = {
            row: float(n < 62) if name == "new" else 0.0 if n < 110 else None
            for n, row in enumerate(rows(200))
        }
        counts = {SAMPLES: (200, 200), SCORED: (200, scored)} if counted else {}
        offer(maze, name, {VALIDATION: (0.3, 0.5), **counts}, rewards=rewards)
    found = compare(maze)["verdict"]
    assert (found["verdict"], "90 attempts without a score" in found["sentence"]) == ("unclear", True)


def test_untrained_policies_are_not_compared(maze: Maze) -> None:
    offer(maze, "old", {REWARD: (0.1, 0.2, 0.3), VALIDATION: (0.3, 0.9)}, first_step=0)
    offer(maze, "new", {REWARD: (0.1, 0.2), VALIDATION: (0.3,)}, first_step=0)
    data = compare(maze)
    assert data["verdict"]["sentence"].startswith(
        "No verdict: the mean training reward of new minus that of old is +0.000 over the last 2 common steps. "
        "The runs have no common validation after step 0."
    )
    reward, validation = data["metrics"]
    assert (reward["a"], reward["b"]) == (pytest.approx(0.15), pytest.approx(0.15))
    assert (validation["a"], validation["b"], validation["difference"]) == (0.9, 0.3, None)


def test_values_are_those_of_the_compared_steps(maze: Maze) -> None:
    offer(maze, "old", {VALIDATION: (0.3, 0.5, 0.9)}, first_step=0)
    offer(maze, "new", {VALIDATION: (0.3, 0.6)}, first_step=0)
    (metric,) = compare(maze)["metrics"]
    found = (metric["a"], metric["b"], metric["difference"], metric["last_step"])
    assert found == (0.5, 0.6, pytest.approx(0.1), 1)


def test_training_reward_gives_no_verdict(maze: Maze) -> None:
    offer(maze, "old", {REWARD: ENDING})
    offer(maze, "new", {REWARD: GAINED})
    assert compare(maze)["verdict"] == {
        "verdict": "unclear",
        "metric": REWARD,
        "sentence": "No verdict: the mean training reward of new minus that of old is +0.200 over the last 10 common "
        "steps. One run per setting does not measure seed variance.",
    }
    error = maze.osmosis("train", "compare", "old", "old", "--json").error
    assert error["code"] == "CONFLICT" and "the run old is compared with itself" in error["message"]


def test_paired_rows(maze: Maze) -> None:
    for name, passed in (("old", range(10)), ("new", range(22))):
        rewards = {row: float(n in passed) for n, row in enumerate(rows(40))}
        offer(
            maze, name, {VALIDATION: (0.3, 0.5), STDERR: (0.2, 0.2)}, rewards={**rewards, "other" + name: 1}
        )
    (found,) = compare(maze)["metrics"]
    assert (found["method"], found["rows"], found["last_step"]) == ("paired-rows", 40, 2)
    assert found["difference"] == pytest.approx(0.3) and found["low"] > 0.1 and found["p"] < 0.01


@pytest.mark.parametrize(("step", "rewards"), [(3, {"a": 1}), (2, {"b": 1, "a": None})])
def test_standard_errors(maze: Maze, step: int, rewards: dict[str, float | None]) -> None:
    """Validations after other steps or of other rows are compared by their standard errors."""
    curves = {VALIDATION: (0.3, 0.5), STDERR: (0.2, 0.2)}
    offer(maze, "old", curves, rewards={"a": 1})
    offer(maze, "new", curves, rewards=rewards, rewards_step=step)
    (found,) = compare(maze)["metrics"]
    assert found["method"] == "standard-errors"


def test_worse_and_no_common_reward(maze: Maze) -> None:
    offer(maze, "old", {VALIDATION: (0.7,), STDERR: (0.04,)})
    offer(maze, "new", {VALIDATION: (0.5,), STDERR: (0.03,)})
    sentence = "new is worse than old by 0.200 in the validation reward (95% interval 0.102"
    assert compare(maze)["verdict"]["sentence"].startswith(sentence)
    offer(maze, "none", {"train/loss": (1.0,)})
    verdict = compare(maze, "none")["verdict"]
    assert (verdict["verdict"], verdict["metric"]) == ("unclear", None)
    assert verdict["sentence"] == "No verdict: the runs have no reward at the same step."


@pytest.mark.parametrize("seed", [1, 2])
def test_extreme_numbers(maze: Maze, seed: int) -> None:
    for name, own, values in (
        ("old", 1, (1e308, -1e308, 0.0, 1.0, 2.0)),
        ("new", seed, (-1e308, 1e308, 1e-320, 2.0, 4.0)),
    ):
        curves = dict.fromkeys((REWARD, VALIDATION, STDERR), values)
        offer(maze, name, curves, config={"advanced": {"seed": own}}, first_step=10**30)
    assert compare(maze)["verdict"]["verdict"] == "unclear"

"""`osmosis train compare`: what differs between two runs, and how far the difference can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.cli.maze import Maze
from tests.cli.train_replies import CHECKPOINTS, DETAIL

REWARD, VALIDATION, STDERR = (
    "rollout/raw_reward",
    "eval/validation/reward",
    "eval/validation/reward_stderr",
)

ENDING = (0.30, 0.28, 0.35, 0.33, 0.40, 0.38, 0.45, 0.41, 0.50, 0.48)
GAINS = (0.16, 0.20, 0.24, 0.18, 0.22, 0.15, 0.25, 0.19, 0.21, 0.20)


def offer(
    maze: Maze,
    name: str,
    config: Mapping[str, Any],
    curves: Mapping[str, Sequence[float]],
    *,
    validation: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """Let the platform have a finished run with these curves, from step 1."""
    own = {**DETAIL["training_run"], "id": f"tr_{name}", "name": name, "status": "finished"}
    detail = {**DETAIL, "training_run": own, "config": config, **more}
    maze.get(f"/training-runs/{name}").respond(json=detail)
    series = [
        {
            "metric_key": key,
            "title": key,
            "data_points": [{"step": n, "value": v, "timestamp": 0} for n, v in enumerate(values, 1)],
        }
        for key, values in curves.items()
    ]
    maze.get(f"/training-runs/tr_{name}/metrics").respond(
        json={"overview": {}, "metrics": series, "validation": validation}
    )
    maze.get(f"/training-runs/tr_{name}/checkpoints").respond(json=CHECKPOINTS)


def offer_both(maze: Maze) -> None:
    offer(
        maze,
        "old",
        {"training": {"lr": 1e-6, "total_epochs": 1}},
        {REWARD: (0.9, *ENDING), VALIDATION: (0.4, 0.5), STDERR: (0.1, 0.03)},
    )
    offer(
        maze,
        "new",
        {"training": {"lr": 1e-5, "total_epochs": 1}, "advanced": {"lora_rank": 32}},
        {
            REWARD: (0.1, *(value + gain for value, gain in zip(ENDING, GAINS, strict=True)), 1.0),
            VALIDATION: (0.4, 0.7),
            STDERR: (0.1, 0.04),
            "train/loss": (1.0,),
        },
        commit_sha="beef",
    )


def test_where_the_data_allow_no_interval_there_is_none(maze: Maze) -> None:
    offer(maze, "old", {}, {REWARD: (0.2, 0.3), VALIDATION: (0.5,)})
    offer(maze, "new", {}, {REWARD: (0.2, 0.4), VALIDATION: (0.6,)})
    data = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]
    assert data["config_differences"] == []
    found = [(metric["difference"], metric["low"], metric["method"]) for metric in data["metrics"]]
    assert found == [(pytest.approx(0.05), None, None), (pytest.approx(0.1), None, None)]
    assert [metric["reason"] for metric in data["metrics"]] == ["steps of one run are not independent", None]
    assert data["verdict"]["sentence"] == (
        "No verdict: the validation reward of new minus that of old is +0.100 "
        "(no interval: a run reports no standard error). One run per setting does not measure seed variance."
    )
    assert "all settings\tsame\tsame" in maze.osmosis("train", "compare", "old", "new", "--plain").out


def test_a_validation_with_few_scores_is_told_in_the_first_sentence(maze: Maze) -> None:
    counted = {"eval/validation/samples": (8, 8, 8)}
    for name, scored in (("old", (8, 8, 8)), ("new", (4, 8, 7))):
        curves = {VALIDATION: (0.5, 0.6, 0.7), "eval/validation/scored": scored, **counted}
        offer(maze, name, {}, {key: list(values) for key, values in curves.items()})
    said = "In the validation of new after steps 1, 3, under 90% of the samples have a score"
    data = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]
    assert f"does not measure seed variance. {said}:" in data["verdict"]["sentence"]
    plain = maze.osmosis("train", "compare", "old", "new", "--plain").out
    assert said in plain and "validation of old" not in plain


@pytest.mark.parametrize(("crashed", "verdict"), [(0, "better"), (4, "better"), (50, "unclear")])
def test_a_run_is_not_better_because_its_failures_have_no_score(
    maze: Maze, crashed: int, verdict: str
) -> None:
    rows = [f"{n:032x}" for n in range(100)]
    for name, lost in (("old", 0), ("new", crashed)):
        passed = [n % 50 < 30 if name == "old" else n < 90 for n in range(100)]
        rewards = {row: float(passed[n]) for n, row in enumerate(rows[: 100 - lost])}
        told = {"step": 2, "rewards": rewards}
        counts = {"eval/validation/samples": (100, 100), "eval/validation/scored": (100, 100 - lost)}
        offer(maze, name, {}, {VALIDATION: (0.3, 0.5), **counts}, validation=told)
    found = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]["verdict"]
    assert found["verdict"] == verdict
    assert ("50 attempts without a score" in found["sentence"]) == (crashed == 50)


@pytest.mark.parametrize("counted", [True, False])
def test_rows_without_a_score_are_counted_against_a_training_verdict(maze: Maze, counted: bool) -> None:
    # A comparison of the scored rows calls "new" better. With the others at 1 "old" is.
    rows = [f"{n:032x}" for n in range(200)]
    rewards: dict[str, dict[str, float | None]] = {
        "old": {row: 0.0 if n < 110 else None for n, row in enumerate(rows)},
        "new": {row: float(n < 62) for n, row in enumerate(rows)},
    }
    for name, scored in (("old", 110), ("new", 200)):
        counts = {"eval/validation/samples": (200, 200), "eval/validation/scored": (200, scored)}
        curves = {VALIDATION: (0.3, 0.5), **(counts if counted else {})}
        offer(maze, name, {}, curves, validation={"step": 2, "rewards": rewards[name]})
    found = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]["verdict"]
    assert (found["verdict"], "90 attempts without a score" in found["sentence"]) == ("unclear", True)


def test_rewards_in_training_and_runs_without_common_numbers_give_no_verdict(maze: Maze) -> None:
    offer(maze, "old", {}, {REWARD: ENDING})
    offer(maze, "new", {}, {REWARD: [value + gain for value, gain in zip(ENDING, GAINS, strict=True)]})
    data = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]
    assert data["verdict"] == {
        "verdict": "unclear",
        "metric": REWARD,
        "sentence": "No verdict: the mean training reward of new minus that of old is +0.200 over the last 10 common "
        "steps. One run per setting does not measure seed variance.",
    }

    offer(maze, "old", {}, {VALIDATION: (0.5,)})
    error = maze.osmosis("train", "compare", "old", "old", "--json").error
    assert error["code"] == "CONFLICT" and "the run old is compared with itself" in error["message"]


def test_validations_of_the_same_rows_are_compared_row_by_row(maze: Maze) -> None:
    rows = [f"{n:032x}" for n in range(40)]
    for name, passed in (("old", range(10)), ("new", range(22))):
        told = {
            "step": 2,
            "rewards": {row: float(n in passed) for n, row in enumerate(rows)} | {"other" + name: 1},
        }
        offer(maze, name, {}, {VALIDATION: (0.3, 0.5), STDERR: (0.2, 0.2)}, validation=told)
    data = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]
    (found,) = data["metrics"]
    assert (found["method"], found["rows"], found["last_step"]) == ("paired-rows", 40, 2)
    assert found["difference"] == pytest.approx(0.3) and found["low"] > 0.1 and found["p"] < 0.01


def test_validations_of_other_steps_or_other_rows_are_compared_by_their_errors(maze: Maze) -> None:
    curves = {VALIDATION: (0.3, 0.5), STDERR: (0.2, 0.2)}
    offer(maze, "old", {}, curves, validation={"step": 2, "rewards": {"a": 1}})
    for name, told in (
        ("later", {"step": 3, "rewards": {"a": 1}}),
        ("new", {"step": 2, "rewards": {"b": 1, "a": None}}),
    ):
        offer(maze, name, {}, curves, validation=told)
        (found,) = maze.osmosis("train", "compare", "old", name, "--json").json["data"]["metrics"]
        assert found["method"] == "standard-errors"


def test_a_worse_run_and_runs_without_a_common_reward_are_told_so(maze: Maze) -> None:
    offer(maze, "old", {}, {VALIDATION: (0.7,), STDERR: (0.04,)})
    offer(maze, "new", {}, {VALIDATION: (0.5,), STDERR: (0.03,)})
    verdict = maze.osmosis("train", "compare", "old", "new", "--json").json["data"]["verdict"]
    assert verdict["sentence"].startswith(
        "new is worse than old by 0.200 in the validation reward (95% interval 0.102"
    )
    offer(maze, "none", {}, {"train/loss": (1.0,)})
    verdict = maze.osmosis("train", "compare", "old", "none", "--json").json["data"]["verdict"]
    assert (verdict["verdict"], verdict["metric"]) == ("unclear", None)
    assert verdict["sentence"] == "No verdict: the runs have no reward at the same step."


@pytest.mark.parametrize("seed", [1, 2])
def test_numbers_and_steps_beyond_all_measure_end_no_comparison(maze: Maze, seed: int) -> None:
    steps = [10**30 + step for step in range(5)]
    for name, own, values in (
        ("old", 1, (1e308, -1e308, 0.0, 1.0, 2.0)),
        ("new", seed, (-1e308, 1e308, 1e-320, 2.0, 4.0)),
    ):
        offer(maze, name, {"advanced": {"seed": own}}, {})
        points = [
            {"step": step, "value": value, "timestamp": 0} for step, value in zip(steps, values, strict=True)
        ]
        series = [
            {"metric_key": key, "title": key, "data_points": points} for key in (REWARD, VALIDATION, STDERR)
        ]
        maze.get(f"/training-runs/tr_{name}/metrics").respond(json={"overview": {}, "metrics": series})
    outcome = maze.osmosis("train", "compare", "old", "new", "--json")
    assert (outcome.status, outcome.json["data"]["verdict"]["verdict"]) == (0, "unclear")

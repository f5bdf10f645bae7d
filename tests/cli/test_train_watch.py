"""`osmosis train watch` and `train submit --watch`: a run shown while it goes on, and its end told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.cli.maze import Maze, replies
from tests.cli.train_replies import CHECKPOINTS, CONFIG, DETAIL, OWN, TEXT

RUN = f"/training-runs/{OWN['id']}"
STEP_METRICS = {
    "time/step_s": 1.9,
    "time/sampling_s": 1.2,
    "time/learning_s": 0.6,
    "speed/sampling_tokens_per_s": 2104.4,
}


def at(step: int | None, status: str = "running", **more: Any) -> dict[str, Any]:
    """The run after so many of its ten steps."""
    own = {**DETAIL["training_run"], "status": status, "current_step": step, "total_steps": 10, **more}
    return {**DETAIL, "training_run": {**own, "reward": None}}


def metrics(*rewards: float) -> dict[str, Any]:
    """What the platform has of a run whose steps had these rewards."""
    curves = {"rollout/raw_reward": rewards, "eval/validation/reward": (0.4, 0.75)}
    curves.update({key: (value,) for key, value in STEP_METRICS.items()})
    titles = {"rollout/raw_reward": "Training reward", "eval/validation/reward": "Validation reward"}
    series = [
        {
            "metric_key": key,
            "title": titles.get(key, key),
            "data_points": [
                {"step": step, "value": value, "timestamp": 0} for step, value in enumerate(values, 1)
            ],
        }
        for key, values in curves.items()
    ]
    summaries = [
        {"key": key, "title": titles.get(key, key), "initial": values[0], "latest": values[-1]}
        for key, values in curves.items()
        if values
    ]
    return {"status": "running", "overview": {"metric_summaries": summaries}, "metrics": series}


def test_watching_shows_reward_phases_and_speed_and_ends_with_the_checkpoints(maze: Maze) -> None:
    maze.get("/training-runs/copper").respond(json=at(None, "pending"))
    maze.get(RUN).side_effect = replies(at(0), at(4), at(4), at(10, "finished"))
    maze.get(f"{RUN}/metrics").side_effect = replies(
        metrics(), metrics(0.4, 0.6), metrics(0.4, 0.6, 0.9), metrics(0.4, 0.6, 0.9)
    )
    maze.get(f"{RUN}/checkpoints").respond(json=CHECKPOINTS)
    ended = at(10, "finished", notes="nothing was left to learn.")
    maze.get("/training-runs/copper").side_effect = replies(at(None, "pending"), ended)

    outcome = maze.osmosis("train", "watch", "copper", "--plain")

    assert outcome.status == 0, outcome.err
    assert "Waiting for the run to start" in outcome.err
    assert (
        "copper finch/9: 4/10 steps (40%) reward 0.600 · validation 0.750 · "
        "1.9 s/step (sampling 1.2 s, learning 0.6 s) · 2,104 tokens/s" in outcome.err
    )
    assert "10/10 steps" in outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "Training run finished: copper finch/9"
    assert "Notes: nothing was left to learn." in lines
    assert "Training reward\t0.400\t0.900\t–\t–\t–" in lines
    assert "Validation reward: 0.750 after step 2" in lines
    assert "Deploy with: osmosis model deploy copper-step-40" in lines
    assert "Every metric: osmosis train info copper finch/9" in lines


def test_curves_are_asked_for_once_a_step(maze: Maze) -> None:
    maze.get("/training-runs/copper").side_effect = replies(at(3), at(9, "stopped"))
    maze.get(RUN).side_effect = replies(*[at(3)] * 8, at(9, "stopped"))
    maze.get(f"{RUN}/metrics").respond(json=metrics(0.5))
    maze.get(f"{RUN}/checkpoints").respond(json=CHECKPOINTS)

    outcome = maze.osmosis("train", "watch", "copper", "--json")

    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert maze.get(f"{RUN}/metrics").call_count == 3  # step 3, step 9, the result
    resource = outcome.json["resource"]
    assert (resource["status"], resource["name"]) == ("stopped", OWN["name"])
    assert resource["metrics"]["summary"]["training_reward"] == {"initial": 0.5, "latest": 0.5}
    assert [it["checkpoint_name"] for it in resource["checkpoints"]] == ["copper-step-20", "copper-step-40"]


def test_people_see_the_curve_of_the_reward(maze: Maze) -> None:
    maze.router.get(url__regex=".*/training-runs/[^/]+$").respond(json=at(10, "finished"))
    maze.get(f"{RUN}/metrics").respond(json=metrics(0.4, 0.6, 0.9))
    maze.get(f"{RUN}/checkpoints").respond(json=CHECKPOINTS)
    drawn = maze.osmosis("train", "watch", "copper").out
    assert "0.9 ┤" in drawn and "━ training" in drawn and "× validation" in drawn


def test_a_platform_without_metrics_still_says_how_far_the_run_is(maze: Maze) -> None:
    maze.get("/training-runs/copper").side_effect = replies(at(5), at(10, "finished"))
    maze.get(RUN).respond(json=at(10, "finished"))
    maze.get(f"{RUN}/metrics").respond(404, json={"error": "no metrics here"})
    maze.get(f"{RUN}/checkpoints").respond(json=CHECKPOINTS)
    outcome = maze.osmosis("train", "watch", "copper", "--plain")
    assert outcome.status == 0
    assert "copper finch/9: 5/10 steps (50%)" in outcome.err


def test_a_platform_that_is_away_is_waited_for_and_ctrl_c_says_how_to_go_on(maze: Maze) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    away = httpx.Response(503, json={"error": "starting"})
    looks = iter([*replies(at(1)), *[away] * 6])
    maze.router.get(url__regex=".*/training-runs/[^/]+$").mock(
        side_effect=lambda request: next(looks, None) or interrupt(request)
    )
    maze.get(f"{RUN}/metrics").respond(json=metrics(0.5))
    outcome = maze.osmosis("train", "watch", "copper", "--plain")
    assert outcome.status == 130
    assert outcome.err.count("waiting for the platform to come back") == 1
    assert "The run goes on; follow it again with: osmosis train watch copper" in outcome.err


@pytest.mark.integration
def test_ctrl_c_in_a_submit_that_watches_names_the_run_as_people_know_it(maze: Maze) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    (maze.workspace.root / CONFIG).write_text(TEXT)
    made = {"id": OWN["id"], "name": "copper", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}
    maze.post("/training-runs/check").respond(404, html="<h1>404</h1>")
    maze.post("/training-runs").respond(json=made)
    maze.router.get(url__regex=".*/training-runs/[^/]+$").mock(side_effect=interrupt)
    outcome = maze.osmosis("train", "submit", CONFIG, "--watch", "--yes", "--plain")
    assert outcome.status == 130
    assert "follow it again with: osmosis train watch copper\n" in outcome.err


@pytest.mark.integration
def test_a_submit_that_watches_returns_how_the_run_ended(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT)
    made = {"id": OWN["id"], "name": "copper", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}
    maze.post("/training-runs/check").respond(404, html="<h1>404</h1>")
    maze.post("/training-runs").respond(json=made)
    maze.get(RUN).respond(json=at(10, "failed", error="The grader raised KeyError."))
    maze.get(f"{RUN}/metrics").respond(json=metrics(0.4, 0.6))
    maze.get(f"{RUN}/checkpoints").respond(json=CHECKPOINTS)
    outcome = maze.osmosis("train", "submit", CONFIG, "--watch", "--yes", "--json")
    assert (outcome.status, outcome.json["operation"]) == (1, "train.submit")
    assert outcome.json["message"].endswith("The grader raised KeyError.")
    assert outcome.json["resource"]["config"]["rollout"] == "multiply"
    assert outcome.json["resource"]["summary"]["progress"]["completed"] == 10
    both = maze.osmosis("train", "submit", CONFIG, "--watch", "--check", "--json")
    assert both.error["code"] == "VALIDATION"

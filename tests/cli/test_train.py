"""`osmosis train …` against replies written by hand: what is sent, what scripts get, what people see, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.maze import Maze, replies, sent
from tests.cli.train_replies import (
    CHECKPOINTS,
    CONFIG,
    DETAIL,
    METRICS,
    OWN,
    TEXT,
    offer,
)

FILE = "copper_finch_9_tr_8f0c1.json"


# Submit


@pytest.fixture
def maze(maze: Maze) -> Maze:
    # As the hosted service, which cannot be asked beforehand.
    maze.post("/training-runs/check").respond(404, html="<h1>404</h1>")
    return maze


@pytest.mark.integration
def test_a_submit_sends_what_is_written_and_says_how_to_go_on(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT)
    maze.post("/training-runs").respond(
        json={"id": "tr_8", "name": "copper-finch", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}
    )
    outcome = maze.osmosis("train", "submit", CONFIG, "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert sent(maze.post("/training-runs")) == {
        "experiment_config": {
            "rollout": "multiply",
            "entrypoint": "main.py",
            "model_path": "fern/base-32b",
            "dataset": "maze-walks",
        },
        "training_config": {"lr": 1e-6, "rollout_batch_size": 16},
        "sampling_config": {"rollout_temperature": 1.0},
        "checkpoints_config": {"eval_interval": 5},
        "advanced_config": {"lora_rank": 32},
    }


def test_a_config_is_refused_with_all_that_is_wrong_in_it_the_trainers_own_rules_included(maze: Maze) -> None:
    text = TEXT.replace("lora_rank = 32", "lora_rank = 0").replace("eval_interval = 5", "eval_interval = 0")
    (maze.workspace.root / CONFIG).write_text(text.replace("fern/base-32b", "osmosis/tinny"))
    error = maze.osmosis("train", "submit", CONFIG, "--check", "--json").error
    found = {issue["key"]: issue for issue in error["details"]["issues"]}
    assert set(found) == {"experiment.model_path", "advanced.lora_rank", "checkpoints.eval_interval"}
    assert found["experiment.model_path"]["suggestion"] == "osmosis/tiny"
    assert all("line" in issue for issue in found.values())


@pytest.mark.integration
def test_settings_that_the_trainer_would_refuse_are_warned_of_and_left_to_the_platform(maze: Maze) -> None:
    text = TEXT.replace("lora_rank = 32", "lora_rank = 0\nlos_type = 'grpo'\nallow_download = 1")
    (maze.workspace.root / CONFIG).write_text(text)
    warned = maze.osmosis("train", "submit", CONFIG, "--json").error["details"]["warnings"]
    for said in (
        "advanced.los_type: Unrecognized key (did you mean 'loss_type'?)",
        "advanced.lora_rank: must be at least 1, got 0",
        "advanced.allow_download: must be true or false, got 1",
    ):
        assert f"{said}; the platform is likely to refuse it." in warned
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("lora_rank = 32", "queue = 'large'"))
    warned = maze.osmosis("train", "submit", CONFIG, "--json").error["details"]["warnings"]
    assert "[advanced] `queue`: not a setting of this trainer, ignored." in warned


@pytest.mark.integration
def test_a_platform_that_would_take_a_run_is_believed_rather_than_this_release(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("lora_rank = 32", "los_type = 'grpo'"))
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31", "status": "uploaded"})
    hosted = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert (hosted.status, "the platform is likely to refuse it" in hosted.err) == (0, True)
    assert "model" in hosted.json["resource"]["unchecked"]
    maze.post("/training-runs/check").respond(json={"dry_run": True, "commit_sha": "4be1c0f" * 5 + "4be1c"})
    asked = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert (asked.status, "likely to refuse" in asked.err) == (0, False)
    assert (asked.json["operation"], asked.json["resource"]["unchecked"]) == ("train.check", [])
    assert not maze.post("/training-runs").called


def test_an_eval_config_is_no_training_config(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT + "\n[evaluation]\nn = 1\n")
    error = maze.osmosis("train", "submit", CONFIG, "--yes", "--json").error
    assert (error["code"], "configs in configs/eval/" in error["message"]) == ("VALIDATION", True)
    assert not maze.router.calls


# Info


def test_a_run_of_the_platform_is_written_into_one_file(maze: Maze, tmp_path: Path) -> None:
    offer(maze)
    report = tmp_path / "copper.html"
    data = maze.osmosis("train", "info", "copper", "--report", str(report), "--json").json["data"]
    page = report.read_text()
    assert data["report_path"] == str(report)
    assert "<h3>Training reward</h3>" in page and "fern/base-32b" in page and "<script" not in page
    assert maze.osmosis("train", "info", "copper", "--report", str(report)).status == 1


def test_the_newest_validation_says_what_it_leaves_out(maze: Maze) -> None:
    offer(maze)
    newest = {"reward": 0.5, "reward_low": 0.25, "reward_high": 0.75, "scored": 17, "samples": 20}
    curves = [
        {
            "metric_key": f"eval/validation/{name}",
            "title": name,
            "data_points": [{"step": 10, "value": value, "timestamp": 0}],
        }
        for name, value in newest.items()
    ]
    maze.get(f"/training-runs/{OWN['id']}/metrics").respond(json={**METRICS, "metrics": curves})
    lines = maze.osmosis("train", "info", "copper", "--plain").out.splitlines()
    assert "Validation reward: 0.500 (0.250 – 0.750) after step 10" in lines
    assert "Validation scored: 17 of 20 planned" in lines
    warning = "only 17 of 20 finished attempts have a score (85.0 %); the numbers leave out the rest"
    assert f"Warning: validation: {warning}" in lines
    validation = maze.osmosis("train", "info", "copper", "--json").json["data"]["validation"]
    assert (validation["reward"], validation["low"], validation["scored"]) == (0.5, 0.25, 17)
    assert validation["warnings"] == [warning]


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("kept/", f"kept/{FILE}"),
        ("numbers", "numbers.json"),
        ("deep/numbers.txt", "deep/numbers.json"),
    ],
)
def test_the_file_goes_where_it_is_asked_to(maze: Maze, tmp_path: Path, output: str, place: str) -> None:
    offer(maze)
    data = maze.osmosis("train", "info", "copper", "-o", f"{tmp_path}/{output}", "--json").json["data"]
    assert data["output_path"] == str(tmp_path / place)
    document = json.loads((tmp_path / place).read_text())
    assert document["training_run"]["rows_processed"] == 3100
    points = document["metrics"][0]["data"]
    assert points[1] == {"step": 2, "value": 0.31, "timestamp": "2026-10-02T07:03:20.250Z"}


@pytest.mark.parametrize("status", ["pending", "queued"])
def test_a_run_that_waits_has_no_metrics_and_is_not_asked_for_any(maze: Maze, status: str) -> None:
    offer(maze, status, started_at=None)
    data = maze.osmosis("train", "info", "copper", "--json").json["data"]
    assert (data["metrics_available"], data["metrics"], data["in_progress"]) == (False, None, False)
    assert "before the run has started" in data["metrics_error"]
    assert "Progress: Waiting to start..." in maze.osmosis("train", "info", "copper", "--plain").out
    assert not maze.get(f"/training-runs/{OWN['id']}/metrics").called


def test_metrics_and_checkpoints_that_cannot_be_had_are_no_failure(maze: Maze) -> None:
    offer(maze, "stopped")
    for what in ("metrics", "checkpoints"):
        maze.get(f"/training-runs/{OWN['id']}/{what}").respond(404, json={"error": "gone"})
    outcome = maze.osmosis("train", "info", "copper", "--json")
    assert outcome.status == 0
    data = outcome.json["data"]
    assert (data["metrics_error"], data["checkpoints"]) == ("gone", [])
    assert "Metrics: Not available: gone" in maze.osmosis("train", "info", "copper", "--plain").out


def test_a_detail_with_nothing_in_it_can_be_shown(maze: Maze) -> None:
    maze.get("/training-runs/x").respond(json={"training_run": {"id": "tr_1", "status": "running"}})
    maze.get("/training-runs/tr_1/metrics").respond(json={"overview": {}, "metrics": []})
    for mode in (["--json"], ["--plain"], []):
        assert maze.osmosis("train", "info", "x", *mode).status == 0


# Logs, checkpoints, stop


def test_logs_come_in_pages_and_as_they_grow(maze: Maze) -> None:
    lines = [
        {"timestamp": f"2026-10-02T08:00:0{n}Z", "level": "info", "step": "train", "message": f"step {n}"}
        for n in range(3)
    ]
    maze.get("/training-runs/copper/logs").respond(json={"logs": lines[:1], "next_cursor": "c|1"})
    page = maze.osmosis("train", "logs", "copper", "--json").json
    assert (page["items"][0]["message"], page["next_cursor"]) == ("step 0", "c|1")
    assert "osmosis train logs copper --cursor c|1" in maze.osmosis("train", "logs", "copper").out
    ended = {"training_run": {**OWN, "status": "finished"}}
    maze.get("/training-runs/copper").respond(json=DETAIL)
    maze.get(f"/training-runs/{OWN['id']}").mock(side_effect=replies(DETAIL, ended))
    maze.get(f"/training-runs/{OWN['id']}/logs").mock(
        side_effect=replies({"logs": lines[:2]}, {"logs": lines})
    )
    followed = maze.osmosis("train", "logs", "copper", "--follow", "--json").out.splitlines()
    assert [json.loads(line)["message"] for line in followed] == ["step 0", "step 1", "step 2"]
    maze.get(f"/training-runs/{OWN['id']}").mock(side_effect=replies(ended))
    maze.get(f"/training-runs/{OWN['id']}/logs").mock(side_effect=replies({"logs": lines}))
    quiet = maze.osmosis("train", "logs", "copper", "--follow", "--level", "error")
    assert quiet.out == "" and "No line of level error or above: 3 lines looked through." in quiet.err
    refused = maze.osmosis("train", "logs", "copper", "--follow", "--cursor", "c", "--json").error
    assert refused["code"] == "VALIDATION"


def test_stopping_asks_first_and_says_what_had_ended_before(maze: Maze) -> None:
    maze.post("/training-runs/copper/stop").respond(json={"id": "tr_8", "status": "stopping"})
    error = maze.osmosis("train", "stop", "copper", "--json").error
    assert error["details"]["prompt"] == 'Stop training run "copper"?'
    assert not maze.post("/training-runs/copper/stop").called
    stopped = maze.osmosis("train", "stop", "copper", "--yes", "--json").json
    assert stopped["status"] == "success"
    refusal = {"error": "the run copper has ended already.", "code": "RUN_ENDED", "status": "finished"}
    maze.post("/training-runs/copper/stop").respond(status_code=409, json=refusal)
    refused = maze.osmosis("train", "stop", "copper", "--yes", "--json").json
    assert (refused["status"], refused["message"]) == (
        "noop",
        'Training run "copper" had ended before: finished.',
    )


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

"""`osmosis train …` against replies written by hand: what is sent, what scripts get, what people see, what is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.cli.training_runs import view as tables
from tests.cli.maze import Maze, replies, sent
from tests.cli.train_replies import (
    CHECKPOINTS,
    CONFIG,
    DETAIL,
    METRICS,
    MINIMAL,
    NULLS,
    OWN,
    ROW,
    TEXT,
    offer,
)
from tests.logins import REFUSALS

DOCUMENT: dict[str, Any] = {
    "training_run": {
        "id": "tr_8f0c1d2e3a4b",
        "status": "running",
        "name": "copper finch/9",
        "base_model_name": "fern/base-32b",
        "dataset_name": "maze-walks",
        "rollout_name": "maze",
        "duration_ms": 61500,
        "started_at": "2026-10-02T07:03:10.000Z",
        "rows_processed": 3100,
        "latest_step": 12,
        "total_steps": 80,
    },
    "summary": {
        "training_reward": {"initial": 0.1, "latest": 0.31, "delta": 0.21, "min": 0.05, "max": 0.4},
        "train/loss": {"initial": 0.00002},
    },
    "metrics": [
        {
            "key": "training_reward",
            "title": "Training reward",
            "data": [
                {"step": 1, "value": 0.1, "timestamp": "2026-10-02T07:03:10.000Z"},
                {"step": 2, "value": 0.31, "timestamp": "2026-10-02T07:03:20.250Z"},
            ],
        },
        {"key": "train/loss", "title": "Loss", "data": [{"step": 1, "value": None, "timestamp": None}]},
    ],
}
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
    assert outcome.json["operation"] == "train.submit"
    assert outcome.json["message"] == "Training run submitted: copper-finch"
    assert outcome.json["next_steps_structured"] == [
        {"action": "train_info", "name": "copper-finch"},
        {"action": "train_list"},
    ]
    assert outcome.json["resource"]["config"]["model"] == "fern/base-32b"
    plain = maze.osmosis("train", "submit", CONFIG, "--yes", "--plain")
    assert plain.out.splitlines() == [
        "Training run submitted: copper-finch",
        "Status: pending",
        "Rollout: multiply",
        "Model: fern/base-32b",
        "Dataset: maze-walks",
        "View: osmosis train info copper-finch",
        "Follow: osmosis train watch copper-finch",
    ]
    assert "Training Run" in maze.osmosis("train", "submit", CONFIG, "--yes").err


@pytest.mark.integration
def test_what_is_agreed_to_is_asked_in_the_words_of_training(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT)
    error = maze.osmosis("train", "submit", CONFIG, "--json").error
    assert (error["code"], error["details"]["prompt"]) == (
        "INTERACTIVE_REQUIRED",
        "Submit this training run?",
    )
    maze.get("/datasets/maze-walks").respond(
        json={"id": "ds_31", "file_name": "maze-walks", "status": "uploaded"}
    )
    checked = maze.osmosis("train", "submit", CONFIG, "--check", "--json").json
    assert checked["operation"] == "train.check"
    assert checked["next_steps_structured"] == [{"action": "train_submit", "config": CONFIG}]
    assert not maze.post("/training-runs").called


def test_a_config_is_refused_with_all_that_is_wrong_in_it_the_trainers_own_rules_included(maze: Maze) -> None:
    text = TEXT.replace("lora_rank = 32", "lora_rank = 0").replace("eval_interval = 5", "eval_interval = 0")
    (maze.workspace.root / CONFIG).write_text(text.replace("fern/base-32b", "osmosis/tinny"))
    error = maze.osmosis("train", "submit", CONFIG, "--check", "--json").error
    found = {issue["key"]: issue for issue in error["details"]["issues"]}
    assert set(found) == {"experiment.model_path", "advanced.lora_rank", "checkpoints.eval_interval"}
    assert found["experiment.model_path"]["suggestion"] == "osmosis/tiny"
    assert all("line" in issue for issue in found.values())


@pytest.mark.integration
def test_a_built_in_model_that_is_none_is_left_to_the_platform(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("fern/base-32b", "osmosis/tinny"))
    warned = maze.osmosis("train", "submit", CONFIG, "--json").error["details"]["warnings"]
    said = "there is no built-in model `osmosis/tinny` (did you mean 'osmosis/tiny'?)"
    assert f"experiment.model_path: {said}; the platform is likely to refuse it." in warned


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


@pytest.mark.integration
def test_a_submit_without_an_answer_says_where_to_look(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT)
    maze.post("/training-runs").mock(side_effect=httpx.ReadError("gone"))
    outcome = maze.osmosis("train", "submit", CONFIG, "--yes", "--plain")
    assert (outcome.status, "look with `osmosis train list`" in outcome.err) == (1, True)
    assert maze.post("/training-runs").call_count == 1


# Lists


def test_scripts_get_every_key_of_every_run_with_a_summary(maze: Maze) -> None:
    maze.get("/training-runs").respond(
        json={"training_runs": [ROW, MINIMAL, NULLS], "total_count": 3, "next_offset": None}
    )
    full, minimal, nulls = maze.osmosis("train", "list", "--json").json["items"]
    assert full == {
        "id": OWN["id"],
        "name": OWN["name"],
        "status": "running",
        "model_id": "bm_1",
        "model_name": "fern/base-32b",
        "dataset_id": "ds_31",
        "dataset_name": "maze-walks",
        "rollout_id": "ro_2",
        "rollout_name": "maze",
        "creator_name": "Mara",
        "creator_email": "mara@fern.example",
        "created_at": "2026-10-02T07:00:00.000Z",
        "started_at": "2026-10-02T07:03:10.000Z",
        "completed_at": None,
        "platform_url": OWN["platform_url"],
        "current_step": 12,
        "total_steps": 80,
        "reward": 0.31,
        "summary": {"reward": 0.31, "progress": {"completed": 12, "total": 80, "unit": "steps"}},
    }
    assert (minimal["summary"], minimal["model_name"], "reward" in minimal) == ({}, None, False)
    assert nulls == minimal


def test_a_run_is_a_line_for_logs_and_a_row_for_people(maze: Maze) -> None:
    maze.get("/training-runs").respond(json={"training_runs": [ROW, MINIMAL]})
    assert maze.osmosis("train", "list", "--plain").out == (
        "copper finch/9\t[running]\tfern/base-32b\tmaze\t0.310\t2026-10-02T07:00:00Z\tMara\n"
        "(unnamed)\t[queued]\t–\t–\t–\t2026-10-02T07:00:00Z\t–\n"
    )
    rich = maze.osmosis("train", "list").out
    assert all(word in rich for word in ("Status", "Reward", "[running]", "copper finch/9"))


# Info


def test_a_run_of_the_platform_is_written_into_one_file(maze: Maze, tmp_path: Path) -> None:
    offer(maze)
    report = tmp_path / "copper.html"
    data = maze.osmosis("train", "info", "copper", "--report", str(report), "--json").json["data"]
    page = report.read_text()
    assert data["report_path"] == str(report)
    assert "<h3>Training reward</h3>" in page and "fern/base-32b" in page and "<script" not in page
    assert maze.osmosis("train", "info", "copper", "--report", str(report)).status == 1


def test_a_file_of_a_platforms_run_has_the_reward_that_each_adapter_was_validated_with(
    maze: Maze, tmp_path: Path
) -> None:
    offer(maze, "finished")
    points = [
        {"step": step, "value": value, "timestamp": 1790924590000} for step, value in ((10, 0.5), (20, 0.625))
    ]
    validated = {"metric_key": "eval/validation/reward", "title": "Validation reward", "data_points": points}
    metrics = {**METRICS, "metrics": [*METRICS["metrics"], validated]}
    maze.get(f"/training-runs/{OWN['id']}/metrics").respond(json=metrics)
    report = tmp_path / "copper.html"
    assert maze.osmosis("train", "info", "copper", "--report", str(report)).status == 0
    adapters = re.findall(
        r'class="name">(copper-step-\d+)</th>(?:<td[^>]*>[^<]*</td>)<td[^>]*>([^<]*)<', report.read_text()
    )
    assert adapters == [("copper-step-20", "0.625"), ("copper-step-40", "–")]


@pytest.mark.parametrize(
    ("sizes", "column"),
    [({}, None), ({"copper-step-40": 20480}, ["–", "20.0 KB"])],
    ids=["of a platform that tells none", "of ours"],
)
def test_a_file_of_a_platforms_run_has_the_sizes_of_adapters_that_it_tells(
    maze: Maze, tmp_path: Path, sizes: dict[str, int], column: list[str] | None
) -> None:
    offer(maze, "finished")
    listed = [
        {**one, "size": sizes.get(one["checkpoint_name"])} if sizes else one
        for one in CHECKPOINTS["checkpoints"]
    ]
    told = {**CHECKPOINTS, "checkpoints": listed}
    maze.get(f"/training-runs/{OWN['id']}/checkpoints").respond(json=told)
    report = tmp_path / "copper.html"
    assert maze.osmosis("train", "info", "copper", "--report", str(report)).status == 0
    _, _, table = report.read_text().partition('id="adapters"')
    headings = re.findall(r'<th scope="col"[^>]*>([^<]*)<', table.partition("</table>")[0])
    assert headings == ["Adapter", "Step", "Validation reward", *(["Size"] if column else [])]
    cells = [re.findall(r"<td[^>]*>([^<]*)<", row) for row in re.findall(r"<tr data-id.*?</tr>", table)]
    assert [each[2:] for each in cells] == ([[size] for size in column] if column else [[], []])


def test_scripts_get_a_run_in_full_and_nothing_is_written(maze: Maze) -> None:
    offer(maze)
    data = maze.osmosis("train", "info", "copper", "--json").json["data"]
    assert data["training_run"]["examples_processed_count"] == 3072
    assert data["training_run"]["notes"] == "second try"
    assert data["training_run"]["dataset_name"] == "maze-walks"
    assert data["summary"]["progress"] == {"completed": 12, "total": 80, "unit": "steps"}
    assert data["metrics"] == DOCUMENT
    assert (data["in_progress"], data["metrics_available"], data["metrics_error"]) == (True, True, None)
    assert (data["checkpoints"], data["output_path"], data["save_warning"]) == ([], None, None)
    assert data["platform_url"] == OWN["platform_url"]
    assert data["workspace_directory"] == str(maze.workspace.root)
    assert not (maze.workspace.state_dir / "metrics").exists()
    assert not maze.get(f"/training-runs/{OWN['id']}/checkpoints").called, (
        "only a run that has ended has them"
    )


def test_people_see_the_run_its_settings_and_its_metrics_and_get_a_file(maze: Maze) -> None:
    offer(maze, "failed", completed_at="2026-10-02T09:03:10Z", error="the GPU is on fire.")
    outcome = maze.osmosis("train", "info", "copper")
    for shown in (
        *("12 / 80 steps", "1m 2s", "3,072", "fern/base-32b", "second try", "the GPU is on fire."),
        *("training.lr=1e-06, sampling.rollout_top_p=1.0, odd=3", "4be1c0f", "LOG_LEVEL=INFO"),
        *("SEARCH_KEY (personal, overrides workspace)", "Training reward", "0.210", "2e-05"),
        *("copper-step-20", "ck_12345", "See logs with: osmosis train logs copper finch/9"),
        "Deploy with: osmosis model deploy copper-step-40",
    ):
        assert shown in outcome.out, shown
    assert "snapshot" not in outcome.out and "Trend" not in outcome.out
    saved = maze.workspace.state_dir / "metrics" / FILE
    assert f"Metrics: {saved}" in outcome.out
    document = json.loads(saved.read_text())
    assert document["metrics"] == DOCUMENT["metrics"]
    assert document["training_run"]["completed_at"] == "2026-10-02T09:03:10.000Z"


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


def test_logs_get_the_same_in_lines(maze: Maze) -> None:
    offer(maze)
    lines = maze.osmosis("train", "info", "copper", "--plain").out.splitlines()
    assert "Progress: 12 / 80 steps" in lines
    assert "Note: The run is under way: the metrics are a snapshot." in lines
    assert "Training reward\t0.100\t0.310\t0.210\t0.050\t0.400" in lines
    assert "Stop with: osmosis train stop copper finch/9" in lines


def test_trends_are_drawn_where_there_is_room(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(maze)
    monkeypatch.setattr(tables, "is_wide_terminal", lambda _output: True)
    rich = maze.osmosis("train", "info", "copper").out
    assert "Trend" in rich and "▁█" in rich


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("kept/", f"kept/{FILE}"),
        ("here", f"here/{FILE}"),
        ("numbers", "numbers.json"),
        ("deep/numbers.txt", "deep/numbers.json"),
        ("numbers.json", "numbers.json"),
    ],
)
def test_the_file_goes_where_it_is_asked_to(maze: Maze, tmp_path: Path, output: str, place: str) -> None:
    offer(maze)
    (tmp_path / "here").mkdir()
    data = maze.osmosis("train", "info", "copper", "-o", f"{tmp_path}/{output}", "--json").json["data"]
    assert data["output_path"] == str(tmp_path / place)
    assert json.loads((tmp_path / place).read_text()) == DOCUMENT


def test_a_file_that_cannot_be_written_is_only_a_warning(maze: Maze, tmp_path: Path) -> None:
    offer(maze)
    (tmp_path / "file").write_text("")
    outcome = maze.osmosis("train", "info", "copper", "-o", f"{tmp_path}/file/numbers.json", "--json")
    assert outcome.status == 0
    data = outcome.json["data"]
    assert data["output_path"] is None
    assert data["save_warning"] in outcome.err and "could not be saved" in data["save_warning"]


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


def test_checkpoints_are_listed_with_how_to_deploy_the_last(maze: Maze) -> None:
    maze.get("/training-runs/copper/checkpoints").respond(json=CHECKPOINTS)
    listed = maze.osmosis("train", "checkpoints", "copper", "--json").json
    assert [item["checkpoint_step"] for item in listed["items"]] == [20, 40]
    assert listed["training_run_name"] == "copper finch/9"
    assert maze.osmosis("train", "checkpoints", "copper", "--plain").out.splitlines()[:2] == [
        "copper-step-20\t20\t[uploaded]\t2026-10-02T08:00:00Z",
        "copper-step-40\t40\t[uploaded]\t2026-10-02T08:00:00Z",
    ]
    assert "osmosis model deploy copper-step-40" in maze.osmosis("train", "checkpoints", "copper").out
    maze.get("/training-runs/none/checkpoints").respond(json={})
    assert maze.osmosis("train", "checkpoints", "none").status == 0


def test_who_looks_for_the_metrics_is_led_to_them(maze: Maze) -> None:
    outcome = maze.osmosis("train", "metrics", "copper")
    assert (
        outcome.status == 2 and "No such command 'metrics': `osmosis train info RUN` shows it." in outcome.err
    )


def test_a_run_that_can_go_on_is_resumed_and_says_how_to_follow_it(maze: Maze) -> None:
    reply = {"id": "tr_8", "name": "copper", "status": "pending", "step": 40}
    maze.post("/training-runs/copper/resume").respond(json=reply)
    resumed = maze.osmosis("train", "resume", "copper", "--json").json
    assert (resumed["operation"], resumed["status"]) == ("train.resume", "success")
    assert resumed["message"] == 'Training run "copper" goes on behind step 40.'
    assert resumed["resource"] == {**reply, **maze.resource}
    assert "goes on behind step 40" in maze.osmosis("train", "resume", "copper", "--plain").out
    shown = maze.osmosis("train", "resume", "copper")
    assert "Follow with: osmosis train watch copper" in shown.out


def test_a_run_that_can_not_go_on_says_why(maze: Maze) -> None:
    refusal = {"error": "the run 'copper' has finished: there is nothing left to do.", "code": "CONFLICT"}
    maze.post("/training-runs/copper/resume").respond(status_code=409, json=refusal)
    outcome = maze.osmosis("train", "resume", "copper", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "CONFLICT")
    assert "there is nothing left to do" in outcome.error["message"]


def test_stopping_asks_first_and_says_what_had_ended_before(maze: Maze) -> None:
    maze.post("/training-runs/copper/stop").respond(json={"id": "tr_8", "status": "stopping"})
    error = maze.osmosis("train", "stop", "copper", "--json").error
    assert error["details"]["prompt"] == 'Stop training run "copper"?'
    assert not maze.post("/training-runs/copper/stop").called
    stopped = maze.osmosis("train", "stop", "copper", "--yes", "--json").json
    assert (stopped["operation"], stopped["message"]) == ("train.stop", 'Training run "copper" stopped.')
    assert stopped["resource"] == {"name": "copper", **maze.resource}
    told = maze.osmosis("train", "stop", "copper", "--yes", "--plain").out
    assert "is stopping; `osmosis train info copper` shows when it has stopped." in told
    refusal = {"error": "the run copper has ended already.", "code": "RUN_ENDED", "status": "finished"}
    maze.post("/training-runs/copper/stop").respond(status_code=409, json=refusal)
    refused = maze.osmosis("train", "stop", "copper", "--yes", "--json").json
    assert refused["message"] == 'Training run "copper" had ended before: finished.'
    maze.post("/training-runs/copper/stop").respond(json={"status": "finished"})
    ended = maze.osmosis("train", "stop", "copper", "--yes", "--json").json
    assert (ended["status"], ended["message"]) == (
        "noop",
        'Training run "copper" had ended before: finished.',
    )


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_refusals_have_their_code(maze: Maze, reply: dict[str, Any], code: str) -> None:
    maze.get("/training-runs").respond(**reply)
    assert maze.osmosis("train", "list", "--json").error["code"] == code

"""`osmosis train …`: runs of a platform against replies written by hand, and training directories of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.services import training_estimate
from osmosis_ai.training.model_support import shipped_configs
from tests.cli import train_replies
from tests.cli.maze import Maze, replies, sent
from tests.cli.train_replies import CONFIG, DETAIL, OWN, TEXT, offer
from tests.cli.trained_runs import append_step, in_training, trained_here, trajectory, validated_here

FILE = "copper_finch_9_tr_8f0c1.json"


@pytest.fixture
def maze(maze: Maze) -> Maze:
    # As the hosted service, which cannot be asked beforehand.
    maze.post("/training-runs/check").respond(404, html="<h1>404</h1>")
    return maze


@pytest.mark.integration
def test_submit_request(maze: Maze) -> None:
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


def test_submit_invalid_config(maze: Maze) -> None:
    text = TEXT.replace("lora_rank = 32", "lora_rank = 0").replace("eval_interval = 5", "eval_interval = 0")
    text = text.replace("fern/base-32b", "osmosis/tinny") + "\n[advanced.execution]\nworkers = 4\n"
    (maze.workspace.root / CONFIG).write_text(text)
    error = maze.osmosis("train", "submit", CONFIG, "--check", "--json").error
    found = {issue["key"]: issue for issue in error["details"]["issues"]}
    workers = "advanced.execution.workers"
    assert set(found) == {"experiment.model_path", "advanced.lora_rank", "checkpoints.eval_interval", workers}
    assert found["experiment.model_path"]["suggestion"] == "osmosis/tiny"
    assert found[workers]["message"] == "must be 1, got 4: only evaluations use several workers"
    assert found[workers]["line"] == text.splitlines().index("workers = 4") + 1
    assert all("line" in issue for issue in found.values())


@pytest.mark.integration
def test_submit_unknown_settings_are_warnings(maze: Maze) -> None:
    text = TEXT.replace("lora_rank = 32", "lora_rank = 0\nlos_type = 'grpo'\nallow_download = 1")
    (maze.workspace.root / CONFIG).write_text(text)
    warned = maze.osmosis("train", "submit", CONFIG, "--json").error["details"]["warnings"]
    for said in (
        "advanced.los_type: Unrecognized key (did you mean 'loss_type'?)",
        "advanced.lora_rank: must be at least 1, got 0",
        "advanced.allow_download: must be true or false, got 1",
    ):
        assert f"{said}; the platform is likely to refuse it." in warned


@pytest.mark.integration
def test_submit_check_on_both_platforms(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("lora_rank = 32", "los_type = 'grpo'"))
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31", "status": "uploaded"})
    hosted = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert (hosted.status, "the platform is likely to refuse it" in hosted.err) == (0, True)
    assert "model" in hosted.resource["unchecked"]
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("lora_rank = 32", "validation_dataset = 'held'"))
    maze.get("/datasets/held").respond(json={"id": "ds_32", "file_name": "held", "status": "processing"})
    assert "held" in maze.osmosis("train", "submit", CONFIG, "--check", "--json").error["message"]
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("lora_rank = 32", "los_type = 'grpo'"))
    maze.post("/training-runs/check").respond(json={"dry_run": True, "commit_sha": "4be1c0f" * 5 + "4be1c"})
    asked = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert (asked.status, "likely to refuse" in asked.err) == (0, False)
    assert (asked.json["operation"], asked.resource["unchecked"]) == ("train.check", ["model"])
    assert not maze.post("/training-runs").called


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Qwen/Qwen3.6-35B-A3B", 'Set [advanced].policy_engine = "vllm".'),
        ("{folder}", "model has no weights."),
        ("../model", "model_path is a relative path: ../model. Workers have a different working directory."),
        ("./mdel", "is a relative path: ./mdel. Workers have a different working directory."),
        ("own/model", "is a relative path: own/model. Workers have a different working directory."),
        ("no such/model/anywhere", "anywhere. Workers have a different working directory."),
    ],
)
def test_submit_check_refuses_a_model_before_anything_else(maze: Maze, model: str, message: str) -> None:
    folder = maze.workspace.root.parent / "model"
    for each in (folder, maze.workspace.root / "own/model"):
        each.mkdir(parents=True)
        (each / "config.json").write_text(json.dumps(shipped_configs()["Qwen/Qwen3-8B"]))
    text = TEXT.replace("fern/base-32b", model.format(folder=folder)).replace(
        "[advanced]", '[advanced]\npolicy_engine = "torch"'
    )
    (maze.workspace.root / CONFIG).write_text(text)
    error = maze.osmosis("train", "submit", CONFIG, "--check", "--json").error
    assert error["message"].endswith(message)
    assert not maze.post("/training-runs/check").called


@pytest.mark.parametrize("issues", [[{"key": "advanced.max_staleness", "message": "is bad"}], ["is bad"], []])
def test_a_refused_setting_has_its_line(maze: Maze, issues: list[Any]) -> None:
    text = TEXT.replace("[advanced]", "[advanced]\nmax_staleness = -1")
    (maze.workspace.root / CONFIG).write_text(text)
    refusal = {"error": "refused:", "code": "INVALID_CONFIG", "issues": issues}
    maze.post("/training-runs/check").respond(400, json=refusal)
    message = maze.osmosis("train", "submit", CONFIG, "--check", "--json").error["message"]
    if issues and isinstance(issues[0], dict):
        line = text.splitlines().index("max_staleness = -1") + 1
        expected = f"  - advanced.max_staleness: must be at least 0, got -1 (line {line})"
        assert message == f"Invalid training config: {CONFIG}\n{expected}"
    else:
        assert message.startswith("refused:")


def test_submit_check_describes_model_and_steps(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31", "status": "uploaded", "row_count": 200})
    maze.post("/training-runs/check").respond(json={"dry_run": True, "commit_sha": "4be1c0f" * 5 + "4be1c"})
    (maze.workspace.root / CONFIG).write_text(TEXT)
    outcome = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert (
        "'fern/base-32b' is not on this machine and was not checked. The worker must have it" in outcome.err
    )
    assert "model" not in outcome.resource and outcome.resource["unchecked"] == ["model"]
    assert "some checks were not possible" in outcome.json["message"]
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("fern/base-32b", "Qwen/Qwen3-30B-A3B:walker"))
    outcome = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert "'Qwen/Qwen3-30B-A3B' is not on this machine. The worker must have it" in outcome.err
    resource = outcome.resource
    assert resource["model"]["lora"]["target_parameters"] == [
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    ]
    steps = {"total": 12, "attempts_per_step": 128, "training_rows": 190, "held_out_rows": 10}
    assert resource["steps"] == steps
    assert "model" in resource["checked"] and not resource["this_machine"]["can_train"]
    shown = maze.osmosis("train", "submit", CONFIG, "--check", "--plain").out
    assert shown.startswith("maze.toml is valid, but this machine cannot train it.\n")
    assert "Steps: 12, each with up to 128 attempts (190 training rows, 10 held out)\nThis machine: " in shown
    assert "submit it for a worker on another machine" in shown
    tinker = 'backend = "tinker"\ntinker_server = "hosted"'
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("[advanced]", f"[advanced]\n{tinker}"))
    assert (
        "secrets.required: must list TINKER_API_KEY" in maze.osmosis("train", "submit", CONFIG, "--check").err
    )
    (maze.workspace.root / CONFIG).write_text(
        TEXT.replace("[advanced]", f'[env]\nTINKER_API_KEY = "k"\n[advanced]\n{tinker}')
    )
    outcome = maze.osmosis("train", "submit", CONFIG, "--check", "--json")
    assert outcome.resource["unchecked"] == ["model"]
    assert "The Tinker server checks 'fern/base-32b' when the run starts." in outcome.err
    (maze.workspace.root / CONFIG).write_text(TEXT.replace("fern/base-32b", "osmosis/tiny"))
    monkeypatch.setattr(training_estimate, "this_machine", lambda: ("CPU", 2**34))
    monkeypatch.setattr(training_estimate, "has_train_extra", lambda: True)
    assert maze.osmosis("train", "submit", CONFIG, "--check").out.startswith("maze.toml can be submitted.")
    for program, setting in (
        ("vllm", "vllm_replicas = 4"),
        ("wandb", 'report_to = ["wandb"]'),
        ("extra `tinker`", 'backend = "tinker"\ntinker_url = "http://127.0.0.1:9"'),
    ):
        monkeypatch.setattr(training_estimate, "which", lambda name: None)
        monkeypatch.setattr(training_estimate, "find_spec", lambda name: None)
        changed = TEXT.replace("fern/base-32b", "osmosis/tiny").replace(
            "[advanced]", f"[advanced]\n{setting}"
        )
        (maze.workspace.root / CONFIG).write_text(changed)
        shown = maze.osmosis("train", "submit", CONFIG, "--check", "--plain").out
        assert ("Sampling engine: 4 vLLM servers" in shown) == (program == "vllm")
        assert "this machine cannot train it." in shown and program in shown.split("This machine:")[1]


@pytest.mark.parametrize(
    ("output", "place"),
    [("kept/", f"kept/{FILE}"), ("numbers", "numbers.json"), ("deep/numbers.txt", "deep/numbers.json")],
)
def test_info_output(maze: Maze, tmp_path: Path, output: str, place: str) -> None:
    offer(maze)
    data = maze.osmosis("train", "info", "copper", "-o", f"{tmp_path}/{output}", "--json").data
    assert data["output_path"] == str(tmp_path / place)
    document = json.loads((tmp_path / place).read_text())
    assert document["training_run"]["rows_processed"] == 3100
    points = document["metrics"][0]["data"]
    assert points[1] == {"step": 2, "value": 0.31, "timestamp": "2026-10-02T07:03:20.250Z"}


@pytest.mark.parametrize("status", ["pending", "queued"])
def test_info_waiting_run(maze: Maze, status: str) -> None:
    offer(maze, status, started_at=None)
    data = maze.osmosis("train", "info", "copper", "--json").data
    assert (data["metrics_available"], data["metrics"], data["in_progress"]) == (False, None, False)
    assert "before it starts" in data["metrics_error"]
    shown = maze.osmosis("train", "info", "copper", "--plain").out
    assert (
        f"Training run copper finch/9: {status}" in shown and "osmosis train watch 'copper finch/9'" in shown
    )
    assert not maze.get(f"/training-runs/{OWN['id']}/metrics").called


def test_info_without_metrics(maze: Maze) -> None:
    offer(maze, "stopped")
    for what in ("metrics", "checkpoints"):
        maze.get(f"/training-runs/{OWN['id']}/{what}").respond(404, json={"error": "gone"})
    outcome = maze.osmosis("train", "info", "copper", "--json")
    assert outcome.status == 0
    data = outcome.data
    assert (data["metrics_error"], data["checkpoints"]) == ("gone", [])
    shown = maze.osmosis("train", "info", "copper", "--plain").out
    assert "Metrics  not available: gone" in shown
    assert "osmosis train show" not in shown and "print all settings" in shown


def test_info_of_a_failed_run_suggests_no_deployment(maze: Maze) -> None:
    offer(maze, "failed")
    failed = maze.osmosis("train", "info", "copper").out
    assert "model deploy" not in failed and "osmosis train show" in failed


def test_stop_finished_run_and_empty_level(maze: Maze) -> None:
    refusal = {"error": "the run copper has ended already.", "code": "RUN_ENDED", "status": "finished"}
    maze.post("/training-runs/copper/stop").respond(status_code=409, json=refusal)
    refused = maze.osmosis("train", "stop", "copper", "--yes", "--json").json
    assert refused["status"] == "noop"
    assert refused["message"] == 'Training run "copper" had ended before: finished.'
    maze.get("/training-runs/copper").respond(json=DETAIL)
    maze.get(RUN).mock(side_effect=replies({"training_run": {**OWN, "status": "finished"}}))
    lines = [{"level": "info", "step": "train", "message": f"step {n}"} for n in range(3)]
    maze.get(f"{RUN}/logs").mock(side_effect=replies({"logs": lines}))
    quiet = maze.osmosis("train", "logs", "copper", "--follow", "--level", "error")
    assert quiet.out == "" and "No line of level error or above: 3 lines looked through." in quiet.err


RUN = f"/training-runs/{OWN['id']}"


@pytest.mark.integration
def test_submit_watch(maze: Maze) -> None:
    (maze.workspace.root / CONFIG).write_text(TEXT)
    made = {"id": OWN["id"], "name": "copper", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}
    maze.post("/training-runs").respond(json=made)
    offer(maze, "failed", current_step=10, total_steps=10, error="The grader raised KeyError.")
    outcome = maze.osmosis("train", "submit", CONFIG, "--watch", "--yes", "--json")
    assert (outcome.status, outcome.json["operation"]) == (1, "train.submit")
    assert outcome.json["message"].endswith("The grader raised KeyError.")
    assert outcome.resource["config"]["rollout"] == "multiply"
    assert outcome.resource["summary"]["progress"]["completed"] == 10
    both = maze.osmosis("train", "submit", CONFIG, "--watch", "--check", "--json")
    assert both.error["code"] == "VALIDATION"


def test_info_local_directory(maze: Maze) -> None:
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    outcome = maze.osmosis("train", "info", "trained/walks", "--json")
    data = outcome.data
    assert outcome.status == 0
    assert (data["local_run"]["status"], data["local_run"]["avg_reward"]) == ("finished", 0.5)
    assert data["local_run"]["output_path"] == str(directory)
    assert data["checkpoints"] == [{"name": "step-00000003", "step": 3, "reward": 0.5, "size_bytes": 5}]
    summaries = {each["key"]: each for each in data["metrics"]["overview"]["metric_summaries"]}
    reward = summaries["rollout/raw_reward"]
    assert (reward["initial"], reward["latest"]) == (0.25, 0.75)
    shown = maze.osmosis("train", "info", "trained/walks").out
    assert "Training run walks: finished, 3 of 3 steps" in shown
    # What its newest validation stands on, as of a platform's run.
    words = "validation reward 0.500 (0.400–0.600) after step 3; scored 8 of 10 planned"
    assert data["validation"]["words"] == words
    assert "Training reward    0.250, step 1" in shown
    assert "0.500 (0.400–0.600), step 3" in shown and "step 2      it is slow" in shown
    assert "step-00000003  step 3  validation reward 0.500 (0.400–0.600)  last" in shown
    assert "only 8 of 10 finished attempts have a score (80.0%)" in data["validation"]["warnings"][0]
    assert "validation  only 8 of 10" in shown
    whole = maze.osmosis("train", "info", "trained/walks", "--plain", "--verbose").out
    assert "train info trained/walks --verbose" in shown and "train info" not in whole
    assert "Training reward\t0.250, 1\t0.750, 3\t0.250, 1\t0.750, 3" in whole
    assert "LoRA\t4,096 parameters" in whole
    assert maze.osmosis("train", "info", "trained/walks", "-o", "x").status == 1


def test_info_of_a_supervised_run_shows_losses(maze: Maze) -> None:
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    (directory / "metrics.jsonl").unlink()
    for step in range(4):
        measured = {"eval/validation/loss": 0.5 - step / 10} if step in (0, 3) else {}
        measured |= {"train/loss": 0.6 - step / 10} if step else {}
        append_step(directory, step, measured)
    shown = maze.osmosis("train", "info", "trained/walks").out
    assert "Validation loss  0.500, step 0  0.200, step 3" in shown
    assert "Training loss    0.500, step 1  0.300, step 3" in shown
    assert "step-00000003  step 3  validation loss 0.200" in shown
    assert "reward" not in shown


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "rows", "method"),
    [
        ("", 100, "sft on 100 conversations, at most 10 steps"),
        (
            "max_steps = 4\nsft_source = 'run:calm-fox'",
            100,
            "sft on 100 passing attempts of calm-fox, at most 4 steps",
        ),
        ("", None, "sft on conversations"),
    ],
)
def test_submit_check_prints_what_a_supervised_run_learns_from(
    maze: Maze, source: str, rows: int | None, method: str
) -> None:
    text = TEXT.replace("lora_rank = 32", f"method = 'sft'\n{source}").replace(
        "rollout_batch_size = 16", "rollout_batch_size = 10"
    )
    (maze.workspace.root / CONFIG).write_text(text)
    maze.get("/datasets/maze-walks").respond(json={"id": "ds_31", "status": "uploaded"})
    if rows is not None:
        maze.post("/training-runs/check").respond(
            json={"dry_run": True, "sampled_rows": rows, "commit_sha": "4be1c0f" * 5}
        )
    assert maze.osmosis("train", "submit", CONFIG, "--check", "--json").resource["method"] == method


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]"])
def test_info_invalid_manifest(maze: Maze, manifest: bytes) -> None:
    directory = trained_here(maze.workspace.root / "walks")
    (directory / "manifest.json").write_bytes(manifest)
    assert "is not a run's manifest" in maze.osmosis("train", "info", "./walks").err


def test_logs_local_directory(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    with (directory / "logs.txt").open("a") as log:
        log.write("2026-10-02T07:00:01.000Z WARNING [step] it is slow {}\n")
    outcome = maze.osmosis("train", "logs", "trained/walks", "--json")
    assert (outcome.status, len(outcome.json["items"])) == (0, 3)
    assert outcome.json["output_path"] == str(directory)
    slow = maze.osmosis("train", "logs", "./trained/walks", "--level", "warning")
    assert "it is slow" in slow.out and "training" not in slow.out
    followed = maze.osmosis("train", "logs", "trained/walks", "--follow", "--limit", "2").out
    assert followed.count("training") == 1 and "it is slow" in followed


def test_logs_leave_commands_whole(maze: Maze) -> None:
    command = "tensorboard --logdir /home/mara/" + "platform/" * 30 + "tensorboard"
    line = {"level": "info", "step": "run", "message": f"open it with `{command}`"}
    maze.get("/training-runs/copper/logs").respond(json={"logs": [line], "next_cursor": None})
    maze.patch.setenv("COLUMNS", "60")
    assert f"info  run  open it with `{command}`\n" in maze.osmosis("train", "logs", "copper").out


def test_info_shows_lists_of_settings(maze: Maze) -> None:
    offer(maze)
    config = {"advanced": {"report_to": ["trackio", "wandb"], "shard_model": True}}
    maze.get("/training-runs/copper").respond(json={**DETAIL, "config": config})
    shown = maze.osmosis("train", "info", "copper", "--verbose", "--plain").out
    assert "advanced.report_to    trackio, wandb\n" in shown and "advanced.shard_model  true\n" in shown
    assert "Attempts\t3,072" in shown


def test_logs_follow_local_directory(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = trained_here(maze.workspace.root / "walks")
    with ExitStack() as trains:
        trains.enter_context(in_training(directory))

        def train_on() -> None:
            with (directory / "logs.txt").open("a") as log:
                log.write("2026-10-02T07:00:02.000Z INFO [end] that was all {}\n")
            trains.close()

        monkeypatch.setattr("osmosis_ai.cli.runs.pause", train_on)
        outcome = maze.osmosis("train", "logs", "./walks", "--follow", "--limit", "1")
    assert outcome.status == 0 and "that was all" in outcome.out
    assert not maze.router.calls


def test_platform_run_with_the_name_of_a_directory(maze: Maze) -> None:
    trained_here(maze.workspace.root / "walks")
    maze.get("/training-runs/walks").respond(404, json={"error": "no such run"})
    assert "no such run" in maze.osmosis("train", "watch", "walks").err
    assert "no such run" in maze.osmosis("train", "compare", "walks", "walks").err


OURS = {"X-Osmosis-Capabilities": "training-validation"}


@pytest.fixture
def here(maze: Maze) -> Maze:
    validated_here(maze)
    return maze


def shown(maze: Maze, *arguments: str) -> list[tuple[int, int]]:
    outcome = maze.osmosis("train", "show", *arguments, "--json")
    assert outcome.status == 0, outcome.err
    return [(each["row"], each["attempt"]) for each in outcome.data["samples"]]


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [
        ([], [(1, 0), (2, 0), (0, 1), (0, 0)]),
        (["--step", "3", "--below"], [(2, 0), (0, 1)]),
        (["--search", "SEVEN"], [(0, 1)]),
    ],
)
def test_show_filters(here: Maze, arguments: list[str], samples: list[tuple[int, int]]) -> None:
    assert shown(here, "trained/walks", *arguments) == samples


def test_show_plain(here: Maze) -> None:
    outcome = here.osmosis("train", "show", "trained/walks", "--plain")
    assert outcome.status == 0 and "\x1b" not in outcome.out
    lines = outcome.out.splitlines()
    assert lines[0] == (
        "Validation after step 3: 4 of 4 attempts are kept, unscored ones first, then the worst."
    )
    assert "error: ValueError: no (1 terminal sequence removed)" in outcome.out
    assert "tool: eight" in lines
    assert "grader: Nearly." in lines and "grader: format: 1.000" in lines


def link(file: Path, content: bytes) -> None:
    target = file.with_name("elsewhere")
    target.write_bytes(content)
    file.symlink_to(target)


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (lambda file, content: None, "has no record of a validation"),
        (lambda file, content: os.mkfifo(file), "cannot be read"),
        (link, "cannot be read"),
        (lambda file, content: file.mkdir(), "cannot be read"),
        (lambda file, content: file.write_bytes(b"\0\xff\n"), "is damaged"),
        (lambda file, content: file.write_bytes(content[:-30]), "is damaged"),
    ],
    ids=["missing", "pipe", "link", "folder", "other content", "half"],
)
def test_show_unreadable_validation(
    here: Maze, replace: Callable[[Path, bytes], object], message: str
) -> None:
    file = here.workspace.root / "trained/walks/validation.jsonl"
    content = file.read_bytes()
    file.unlink()
    replace(file, content)
    outcome = here.osmosis("train", "show", "trained/walks")
    assert outcome.status == 1 and message in outcome.err and "Traceback" not in outcome.err


def told(row: int, reward: float | None, **known: Any) -> dict[str, Any]:
    status = "failed" if reward is None else "success"
    return {"row": row, "attempt": 0, "status": status, "reward": reward, **known}


def offers(maze: Maze, *pages: dict[str, Any]) -> Any:
    """Be a platform of ours with a run that has validated; return the route of the conversation of row 0."""
    maze.get("/training-runs/copper%20finch%2F9").respond(json=train_replies.DETAIL, headers=OURS)
    replies = [httpx.Response(200, json=page, headers=OURS) for page in pages]
    maze.get("/training-runs/tr_8f0c1d2e3a4b/validation").mock(side_effect=replies)
    text = trajectory("six").decode()
    route = maze.get("/training-runs/tr_8f0c1d2e3a4b/validation/0/0")
    return route.respond(json={"text": text, "size": len(text)}, headers=OURS)


def page(*samples: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"step": 40, "total": 9, "pass_threshold": 1.0, "samples": list(samples), **more}


def test_show_platform_run(maze: Maze) -> None:
    first = page(told(3, None, error="Timeout: no", boundary="agent"), next_cursor="40-1")
    asked = offers(maze, first, page(told(0, 0.5, notes="Almost.", parts={"format": 0.5})))
    gone = maze.get("/training-runs/tr_8f0c1d2e3a4b/validation/3/0")
    gone.respond(404, json={"error": "there is none", "code": "NOT_FOUND"}, headers=OURS)
    data = maze.osmosis("train", "show", "copper finch/9", "--json").data
    assert data["validation"] == {"step": 40, "samples": 9, "kept": 2}
    unscored, failed = data["samples"]
    assert (unscored["row"], unscored["error"]) == (3, "Timeout: no")
    assert unscored["problems"] == ["A newer validation has replaced it."]
    assert (failed["reward"], failed["passed"], failed["notes"]) == (0.5, False, "Almost.")
    assert failed["messages"][2]["content"] == "six" and asked.call_count == 1


def test_show_unsupported(maze: Maze) -> None:
    maze.get("/training-runs/tr_8").respond(json=train_replies.DETAIL)
    error = maze.osmosis("train", "show", "tr_8", "--json").error
    assert error["code"] == "PLATFORM_ERROR"
    assert "does not support the validation attempts of training runs" in error["message"]


def test_warnings_are_shown_while_watching_and_a_collapsed_run_is_not_deployed(maze: Maze) -> None:
    train_replies.offer_validated(maze)
    metrics = train_replies.VALIDATED_METRICS
    dropped = {
        "metric_key": "eval/validation/dropped",
        "title": "",
        "data_points": [{"step": 40, "value": 1, "timestamp": 0}],
    }
    changed = {**metrics, "metrics": [*metrics["metrics"], dropped]}
    maze.get(f"/training-runs/{train_replies.OWN['id']}/metrics").respond(json=changed)
    reply = maze.get("/training-runs/kestrel").return_value
    assert reply is not None
    maze.get(f"/training-runs/{train_replies.OWN['id']}").respond(json=reply.json())
    shown = maze.osmosis("train", "info", "kestrel").out
    assert "model deploy" not in shown and "osmosis train logs kestrel --level warning" in shown
    maze.post("/models/kestrel/deploy").respond(404, json={"error": "not found"})
    maze.post("/models/copper-step-20/deploy").respond(json={"id": "lo_1", "status": "active"})
    maze.get("/models/copper-step-20").respond(404, json={"error": "not found"})
    deployed = maze.osmosis("model", "deploy", "kestrel", "--json").json["message"]
    assert "(best, selected among 2 validations of a run that became worse)" in deployed
    watched = maze.osmosis("train", "watch", "kestrel", "--plain")
    assert "warning: step 31: 62% of the groups have equal rewards" in watched.err
    assert "model deploy" not in watched.out


@pytest.mark.parametrize(
    ("phases", "overlaps"),
    [
        ({"sampling": 8.0, "learning": 5.0}, True),
        ({"sampling": 8.0, "learning": 4.5}, False),
        ({"sampling": 8.0, "learning": 4.5, "checkpoint": 9.0}, False),  # that of the previous step
    ],
)
def test_phases_that_overlap(maze: Maze, phases: dict[str, float], overlaps: bool) -> None:
    train_replies.offer_validated(maze)
    times = {"step": 12.5, **phases}
    metrics = [
        {
            "metric_key": f"time/{phase}_s",
            "title": phase,
            "data_points": [{"step": 40, "value": value, "timestamp": 0}],
        }
        for phase, value in times.items()
    ]
    own = train_replies.OWN["id"]
    maze.get(f"/training-runs/{own}/metrics").respond(
        json={**train_replies.VALIDATED_METRICS, "metrics": metrics}
    )
    reply = maze.get("/training-runs/kestrel").return_value
    assert reply is not None
    maze.get(f"/training-runs/{own}").respond(json=reply.json())
    watched = maze.osmosis("train", "watch", "kestrel", "--plain")
    assert "12.5 s/step (sampling 8.0 s, learning" in watched.err
    assert ("; they overlap)" in watched.err) is overlaps
    assert ("; they overlap" in watched.out) is overlaps

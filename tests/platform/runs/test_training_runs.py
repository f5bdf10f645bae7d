"""Training runs over HTTP: submits, lists, details, curves, checkpoints, validations."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.evaluation.builders import record
from tests.lazily import needs
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import Code, add_dataset, experiment, issue, submit_body
from tests.platform.fake_worker import EVALS, GPU, TRAININGS, FakeTrainer, FakeWorker, settle, worker_app
from tests.platform.viewer.runs_world import publish_validation, validation_of
from tests.viewer.source_contract import sample_record

RUNS, submitted, refused = TRAININGS.route, TRAININGS.taken, TRAININGS.refused
TRAINING_REWARD, VALIDATION_REWARD = "rollout/raw_reward", "eval/validation/reward"
ROLLOUTS = "rollout/samples"
needs("torch")


def test_detail(api: TestClient, code: Code, member: Member, world: World) -> None:
    run = submitted(api, advanced_config={"seed": 7}, env_config={"LOG_LEVEL": "DEBUG"})
    assert set(run) == {"id", "name", "status", "created_at", "platform_url"}
    assert run["platform_url"] == f"http://127.0.0.1:8733/fern/training/{run['name']}"
    assert run["status"] == "pending"
    by_name, by_id = api.get(f"{RUNS}/{run['name']}").json(), api.get(f"{RUNS}/{run['id']}").json()
    assert by_name == by_id
    assert api.post(f"{RUNS}/check", json=by_name["request"]).status_code == 200
    assert by_name["training_run"] == {
        "id": run["id"],
        "name": run["name"],
        "status": "pending",
        "created_at": "2026-11-02T09:30:00.000Z",
        "creator_name": "Mara",
        "creator_email": member.user.email,
        "platform_url": run["platform_url"],
    }
    assert (by_name["model"], by_name["dataset"]["name"], by_name["rollout"]["name"]) == (
        {"id": "osmosis/tiny", "name": "osmosis/tiny"},
        "multiply",
        "multiply",
    )
    config = by_name["config"]
    assert set(config) == {"training", "sampling", "checkpoints", "advanced"}
    # What was written, and the defaults of what was not.
    assert config["training"]["rollout_batch_size"] == 8
    assert config["training"]["lr"] == 1e-3
    assert config["checkpoints"] == {"eval_interval": 10, "checkpoint_save_freq": 5}
    assert config["advanced"]["seed"] == 7
    assert (by_name["entrypoint"], by_name["commit_sha"]) == ("main.py", code.head)
    assert by_name["env_config"] == {"LOG_LEVEL": "DEBUG"}


def test_list(api: TestClient, world: World, member: Member) -> None:
    run = submitted(api)
    settle(world)
    detail = api.get(f"{RUNS}/{run['id']}").json()
    assert api.get(RUNS).json() == {
        "training_runs": [
            {
                "id": run["id"],
                "name": run["name"],
                "status": "pending",
                "created_at": run["created_at"],
                "creator_name": "Mara",
                "creator_email": member.user.email,
                "platform_url": run["platform_url"],
                "model": {"id": "osmosis/tiny", "model_name": "osmosis/tiny"},
                "dataset": {"id": detail["dataset"]["id"], "file_name": "multiply"},
                "rollout": {"id": detail["rollout"]["id"], "name": "multiply"},
            }
        ],
        "total_count": 1,
        "has_more": False,
        "next_offset": None,
    }


def test_all_issues_are_reported_at_once(api: TestClient) -> None:
    body = refused(
        api,
        400,
        "INVALID_CONFIG",
        experiment_config={"rollout": "../multiply", "entrypoint": "main.py", "datset": "multiply"},
        training_config={"lr": 0, "n_samples_per_prompt": 1, "total_epochs": True, "learning_rate": 1},
        sampling_config={"rollout_temperature": 0, "lr": 1e-6},
        checkpoints_config=[],
        advanced_config={
            "loss_type": "ppo",
            "lora_rnak": 8,
            "of_another_trainer": {"x": 1},
            "execution": {"workers": 2},
        },
        env_config={"lower": "a"},
        secrets={"required": ["A"], "provided": {"UNLISTED": "sk-canary"}},
        evaluation_config={"n": 1},
    )
    keys = {each["key"] for each in body["issues"]}
    assert keys == {
        "evaluation_config",
        "experiment.rollout",
        "experiment.model_path",
        "experiment.dataset",
        "experiment.datset",
        "training.lr",
        "training.n_samples_per_prompt",
        "training.total_epochs",
        "training.learning_rate",
        "sampling.rollout_temperature",
        "sampling.lr",
        "checkpoints",
        "advanced.loss_type",
        "advanced.lora_rnak",
        "advanced.execution.workers",
        "env.lower",
        "secrets.provided",
    }
    assert len(keys) == len(body["issues"]), "each key is reported once"
    assert issue(body, "evaluation_config")["message"] == "Unrecognized key; it belongs to evaluation runs"
    workers = issue(body, "advanced.execution.workers")["message"]
    assert workers == "must be 1, got 2: only evaluations use several workers"
    assert issue(body, "advanced.lora_rnak")["key_correction"] == "advanced.lora_rank"
    assert "sk-canary" not in json.dumps(body)
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=experiment(model_path="tiny"))
    assert "did you mean 'osmosis/tiny'?" in issue(body, "experiment.model_path")["message"]
    model = experiment(model_path="osmosis/tinny")
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=model, training_config={"lr": 0})
    assert {each["key"] for each in body["issues"]} == {"training.lr", "experiment.model_path"}
    said = issue(body, "experiment.model_path")["message"]
    assert said == "there is no built-in model `osmosis/tinny` (did you mean 'osmosis/tiny'?)"
    for base in ("osmosis/tiny", "Qwen/Qwen3-8B"):
        body = refused(api, 400, "INVALID_CONFIG", experiment_config=experiment(model_path=f"{base}:none"))
        said = issue(body, "experiment.model_path")["message"]
        assert said.startswith(f"this workspace has no adapter 'none' of `{base}`")
    hybrid = experiment(model_path="Qwen/Qwen3.6-35B-A3B")
    body = refused(api, 400, "INVALID_CONFIG", advanced_config={"validation_attempts": 10**9})
    said = issue(body, "advanced.validation_attempts")["message"]
    assert said == "validation may have at most 100000 rollouts"
    none = {"lora_targets": r"([\w.]+)+!"}  # as a regular expression, it would take years to match
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=hybrid, advanced_config=none)
    assert "lora_targets matches no layer" in issue(body, "experiment.model_path")["message"]
    torch = {"policy_engine": "torch"}
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=hybrid, advanced_config=torch)
    assert issue(body, "experiment.model_path")["message"].endswith('Set [advanced].policy_engine = "vllm".')


def test_validation_dataset_is_checked_like_the_training_dataset(
    api: TestClient, world: World, member: Member
) -> None:
    add_dataset(world, member, "multiply_held", status="processing")
    refused(api, 409, "DATASET_NOT_READY", advanced_config={"validation_dataset": "multiply_held"})
    body = refused(api, 404, "DATASET_NOT_FOUND", advanced_config={"validation_dataset": "multiply_hold"})
    assert "did you mean multiply_held" in body["error"]
    for advanced, key in (
        ({"validation_dataset": "multiply"}, "advanced.validation_dataset"),
        ({"validation_rows": 200}, "advanced.validation_rows"),
        ({"stop_after_drop": 0}, "advanced.stop_after_drop"),
    ):
        body = refused(api, 400, "INVALID_CONFIG", advanced_config=advanced)
        assert [each["key"] for each in body["issues"]] == [key]
    submitted(api, advanced_config={"validation_rows": 199})


def test_minimal_submit_uses_defaults_and_notes_unknown_keys(api: TestClient, world: World) -> None:
    body = {"experiment_config": experiment(), "advanced_config": {"of_another_trainer": 1}}
    run = api.post(RUNS, json=body).json()
    detail = api.get(f"{RUNS}/{run['name']}").json()
    assert detail["config"]["training"]["n_samples_per_prompt"] == 8
    assert detail["training_run"]["notes"] == (
        "[advanced] `of_another_trainer`: not a setting of this trainer, ignored."
    )
    note = detail["training_run"]["notes"]
    world.log(run["id"], note, "warning", step="warning", details={"training_step": 0})
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"].get("notes") is None
    assert note in [mark["text"] for mark in api.get(f"{RUNS}/{run['name']}/metrics").json()["marks"]]


@pytest.mark.parametrize("model", ["./model", "../model", "a/b/c"])
def test_relative_model_paths_are_refused(api: TestClient, model: str) -> None:
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=experiment(model_path=model))
    assert body["issues"] == [
        {
            "key": "experiment.model_path",
            "message": "is a relative path: use an absolute one, or a name on the Hugging Face Hub",
        }
    ]


def test_kinds_are_separate(api: TestClient) -> None:
    training, evaluation = submitted(api), api.post("/api/cli/eval-runs", json=submit_body()).json()
    assert api.get(RUNS).json()["total_count"] == 1
    assert api.get("/api/cli/eval-runs").json()["total_count"] == 1
    body = assert_flat_error(api.get(f"{RUNS}/{evaluation['name']}"), 404, "NOT_FOUND")
    assert "there is no training run" in body["error"]
    assert_flat_error(api.get(f"/api/cli/eval-runs/{training['name']}"), 404, "NOT_FOUND")


def test_metrics(api: TestClient, world: World, clock: ManualClock) -> None:
    run = submitted(api)
    trainer = FakeTrainer.claims(world)
    trainer.begins(total_steps=40)
    trainer.step(0, {VALIDATION_REWARD: 0.25})
    for step, reward in enumerate((0.5, 0.25, 0.75), start=1):
        clock.advance(10)
        values = {TRAINING_REWARD: reward, ROLLOUTS: 32, "odd": -1.0, "train/loss": math.nan}
        trainer.step(step, values)
    metrics = api.get(f"{RUNS}/{run['name']}/metrics").json()
    assert (metrics["status"], metrics["training_run_id"]) == ("running", run["id"])
    assert {key: value for key, value in metrics["overview"].items() if key != "metric_summaries"} == {
        "duration_ms": 30000.0,
        "examples_processed_count": 96,
        "latest_step": 3,
        "total_steps": 40,
    }
    assert metrics["overview"]["metric_summaries"][0] == {
        "key": TRAINING_REWARD,
        "title": "Training reward",
        "initial": 0.5,
        "latest": 0.75,
        "delta": 0.25,
        "min": 0.25,
        "max": 0.75,
    }
    # In the order of interest; what is no finite number has no point.
    assert [series["metric_key"] for series in metrics["metrics"]] == [
        TRAINING_REWARD,
        VALIDATION_REWARD,
        ROLLOUTS,
        "odd",
    ]
    start_ms = 1793611800000
    assert metrics["metrics"][0]["data_points"] == [
        {"step": 1, "value": 0.5, "timestamp": start_ms + 10_000},
        {"step": 2, "value": 0.25, "timestamp": start_ms + 20_000},
        {"step": 3, "value": 0.75, "timestamp": start_ms + 30_000},
    ]
    detail = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    assert (detail["current_step"], detail["total_steps"], detail["reward"]) == (3, 40, 0.75)
    assert detail["examples_processed_count"] == 96
    (row,) = api.get(RUNS).json()["training_runs"]
    assert (row["current_step"], row["total_steps"], row["reward"]) == (3, 40, 0.75)


def test_checkpoints(api: TestClient, world: World) -> None:
    run = submitted(api)
    trainer = FakeTrainer.claims(world)
    assert trainer.add_checkpoint(10, reward=0.5) == f"{run['name']}-step-10"
    trainer.add_checkpoint(5)
    listed = api.get(f"{RUNS}/{run['name']}/checkpoints").json()
    assert (listed["training_run_name"], listed["training_run_id"]) == (run["name"], run["id"])
    found = [(one["checkpoint_step"], one["status"], one["size"]) for one in listed["checkpoints"]]
    assert found == [(5, "uploaded", len(b"{}weights")), (10, "uploaded", len(b"{}weights"))]
    trainer.add_checkpoint(10, b"others", reward=0.75)
    stored = world.stored(f"runs/{run['id']}/checkpoints")
    trainer.add_checkpoint(10, b"others", reward=0.75)
    assert world.stored(f"runs/{run['id']}/checkpoints") == stored
    listed["checkpoints"][1]["size"] = len(b"{}others")
    assert api.get(f"{RUNS}/{run['name']}/checkpoints").json() == listed
    path = f"/api/cli/models/{run['name']}-step-10"
    assert api.get(path).json()["reward"] == 0.75
    download = {file["path"]: file["url"] for file in api.get(f"{path}/download").json()["files"]}
    assert {name: api.get(url).content for name, url in download.items()} == {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": b"others",
    }


def test_marks_on_the_curves(api: TestClient, world: World, clock: ManualClock) -> None:
    run = submitted(api)
    trainer = FakeTrainer.claims(world)
    trainer.begins(total_steps=4)
    for step in (1, 2):
        trainer.step(step, {TRAINING_REWARD: 0.1 * step})
    path = f"{RUNS}/{run['name']}"
    assert "marks" not in api.get(f"{path}/metrics").json()
    adapter = {"LoRA": "1.2k trainable parameters at rank 16"}
    for steps in (0, 1):
        world.log(run["id"], "the plan", step="plan", details={"steps_done": steps, "adapter": adapter})
    about = {"training_step": 2}
    for step in ("warning", "warning", "run"):
        world.log(run["id"], "rewards <are> the same", "warning", step=step, details=about)
    assert api.get(path).json()["adapter"] == adapter
    told = api.get(f"{path}/metrics").json()
    assert told["marks"] == [
        {"step": 1, "kind": "restart", "text": "resumed after step 1"},
        {"step": 2, "kind": "warning", "text": "rewards <are> the same"},
    ]


@pytest.fixture
def trainer(api: TestClient, world: World) -> FakeTrainer:
    submitted(api)
    return FakeTrainer.claims(world)


def validate(trainer: FakeTrainer, step: int) -> None:
    """Report a validation of three samples, the second of which has a conversation."""
    records = [
        sample_record(0, 0, 1.0),
        sample_record(1, 0, 0.5, notes="Nearly."),
        sample_record(2, 0, error="no"),
    ]
    publish_validation(trainer, validation_of(records, step), {(1, 0): b'{"steps": [%d]}' % step})


def page(api: TestClient, run: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{RUNS}/{run}/validation", params=query).json()
    return found


def test_validation_pages(api: TestClient, trainer: FakeTrainer) -> None:
    assert page(api, trainer.run.name) == {}
    validate(trainer, 4)
    first = page(api, trainer.run.name, limit=2)
    rest = page(api, trainer.run_id, limit=2, cursor=first["next_cursor"])
    assert [each["row"] for each in (*first["samples"], *rest["samples"])] == [2, 1, 0]
    assert (first["step"], first["total"], first["pass_threshold"]) == (4, 3, 1.0)
    assert (first["samples"][1]["notes"], first["samples"][0]["error"]) == ("Nearly.", "no")
    assert "next_cursor" not in rest
    validate(trainer, 8)
    for cursor, status, code in ((first["next_cursor"], 409, "CONFLICT"), ("x", 400, "VALIDATION")):
        reply = api.get(f"{RUNS}/{trainer.run_id}/validation", params={"cursor": cursor})
        assert_flat_error(reply, status, code)


def test_a_validation_conversation(api: TestClient, trainer: FakeTrainer) -> None:
    validate(trainer, 4)
    said = api.get(f"{RUNS}/{trainer.run.name}/validation/1/0").json()
    assert json.loads(said["text"]) == {"steps": [4]} and said["size"] == len(said["text"])
    missing = api.get(f"{RUNS}/{trainer.run.name}/validation/0/0").json()
    assert (missing.get("text"), missing["missing"]) == (
        None,
        "The platform has no trajectory of this attempt.",
    )
    for place in ("9999999999999999999999/0", "-1/0"):
        assert api.get(f"{RUNS}/{trainer.run.name}/validation/{place}").json()["missing"]
    assert api.get(f"{RUNS}/{trainer.run.name}/validation/x/0").status_code in (400, 404, 422)


def trajectory(answer: str, *, tools: bool = True) -> bytes:
    """A conversation in which a tool was called, and the definitions of the tools."""
    call = {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 3, "b": 4}}
    result = {"results": [{"source_call_id": "c1", "content": "12"}]}
    steps = [
        {"source": "user", "message": "Compute 3 * 4."},
        {"source": "agent", "message": "", "tool_calls": [call], "observation": result},
        {"source": "agent", "message": answer},
    ]
    offered = {"tool_definitions": [{"type": "function", "function": {"name": "multiply"}}]}
    return json.dumps({"agent": offered if tools else {}, "steps": steps}).encode()


def test_a_supervised_run_learns_from_the_passing_attempts_of_an_evaluation(
    api: TestClient, world: World
) -> None:
    evaluation = EVALS.taken(
        api, evaluation_config={"limit": 4, "n": 1, "pass_threshold": 0.5}, advanced_config=GPU
    )
    sft = {"method": "sft", "sft_source": f"run:{evaluation['name']}", **GPU}
    asked = "advanced.sft_source"
    for source, problem in (
        ("run:absent", "there is no evaluation 'absent'"),
        (sft["sft_source"], "has not finished"),
    ):
        body = refused(api, 400, "INVALID_CONFIG", advanced_config={**sft, "sft_source": source})
        assert problem in issue(body, asked)["message"]
    worker = FakeWorker.claims(world, "gpu")
    rewards = (1.0, 0.4, 0.5, 0.9)
    worker.write([record(row, 0, reward=reward) for row, reward in enumerate(rewards)])
    # The model that made the last one was offered tools that are not known.
    files = [worker.conversation(row, content=trajectory(f"#### {row}", tools=row < 3)) for row in range(4)]
    worker.sync(journal=worker.part(), files=files)
    worker.finishes(completes=False)

    told = api.post(f"{RUNS}/check", json=TRAININGS.body(advanced_config=sft)).json()
    assert (told["sampled_rows"], told["total_dataset_rows"]) == (3, 3)
    run = submitted(api, advanced_config=sft)
    claimed = FakeWorker.claims(world, "gpu")
    # The evaluation may change or disappear from now on.
    assert api.delete(f"{EVALS.route}/{evaluation['name']}").status_code == 200
    given = claimed.assignment
    assert (given.source, given.dataset_extension) == (None, "jsonl")
    rows = [json.loads(line) for line in worker_app(world).get(given.dataset.url).content.splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == ["#### 0", "#### 2"]
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert rows[0]["tools"][0]["function"]["name"] == "multiply"
    call = rows[0]["messages"][1]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("multiply", {"a": 3, "b": 4})
    log = api.get(f"{RUNS}/{run['name']}/logs").json()["logs"]
    name = evaluation["name"]
    learned = f"learns from 2 of 3 passing attempts of the evaluation {name}: the others have no usable conversation"
    assert learned in [line["message"] for line in log]


@pytest.mark.parametrize(
    ("method", "columns", "problem"),
    [
        ("sft", {"user_prompt": "Hi", "ground_truth": "4"}, "has no column 'messages'"),
        ("rl", {"messages": [{"role": "user", "content": "Hi"}]}, "has conversations but no prompts"),
    ],
)
def test_a_dataset_of_the_other_method_is_refused(
    api: TestClient, world: World, member: Member, method: str, columns: Any, problem: str
) -> None:
    add_dataset(world, member, "other", rows=[columns] * 4, preview=[columns])
    changes = {"experiment_config": experiment(dataset="other"), "advanced_config": {"method": method}}
    assert problem in issue(refused(api, 400, "INVALID_CONFIG", **changes), "experiment.dataset")["message"]

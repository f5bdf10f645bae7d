"""Training runs over HTTP, as far as that goes without a worker: submits, lists, details, curves, checkpoints."""

from __future__ import annotations

import json
import math
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from osmosis_ai.api.wire.training_runs import CheckpointList, TrainingMetrics, TrainingRunDetail
from osmosis_ai.api.wire.workers import CheckpointPart, TrainingNews, TrainingStart, TrainingStep
from osmosis_ai.platform.blobs.store import BlobError, BlobStoreSilent
from osmosis_ai.platform.db.tables import DbLoraModel, DbRun
from osmosis_ai.platform.log_lines import PLAN, WARNED, LogLine
from osmosis_ai.platform.runs.desk.training import ROLLOUTS
from osmosis_ai.platform.runs.execute.leftovers import remove_leftovers
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.submit import resuming
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.training_runs.info import DescribedTraining
from osmosis_ai.services.training_runs.report import report_training
from osmosis_ai.training.runs.metrics import TITLES, TRAINING_REWARD, VALIDATION_REWARD, StepRecord
from tests.lazily import needs
from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.evaluations import (
    Code,
    Submits,
    experiment,
    issue,
    submit_body,
    training_body,
)
from tests.platform.training_desk import DeskSink

needs("torch")

RUNS = "/api/cli/training-runs"
SUBMITS = Submits(RUNS, training_body)
submitted, refused = SUBMITS.taken, SUBMITS.refused


def claimed(services: PlatformServices, run_id: str, token: str = "worker-1") -> Lease:
    lease = Leases(services.db, services.clock).claim(run_id, token)
    assert lease is not None
    return lease


class Told:
    """What a worker says of its training run, in the words of the protocol, and the platform's rows."""

    def __init__(self, services: PlatformServices, lease: Lease) -> None:
        leases = Leases(services.db, services.clock)
        self.sink = DeskSink(lease, leases, services.blobs, services.clock)

    def begin(self, *, total_steps: int, steps_done: int = 0) -> None:
        start = TrainingStart(total_steps=total_steps, steps_done=steps_done)
        self.sink.send(TrainingNews(start=start))

    def append_steps(self, records: list[StepRecord]) -> None:
        steps = [
            TrainingStep(
                step=record.step,
                timestamp_ms=record.timestamp_ms,
                metrics={**record.metrics},
                validation_rewards={**record.validation_rewards},
            )
            for record in records
        ]
        self.sink.send(TrainingNews(steps=steps))

    def add_archive(self, step: int) -> None:
        name = f"resume/{step}-a/checkpoint.tar"
        part = CheckpointPart(
            step=step, base_model="osmosis/tiny", files={"checkpoint.tar": name}, is_resume=True
        )
        self.sink.send(TrainingNews(checkpoints=[part]), {name: BytesIO(b"archive")})

    def add_checkpoint(self, step: int, weights: bytes = b"weights", *, reward: float | None = None) -> str:
        files = {"adapter_model.safetensors": weights, "adapter_config.json": b"{}"}
        names = {name: f"checkpoints/{step}/{name}" for name in files}
        part = CheckpointPart(step=step, base_model="osmosis/tiny", files=names, reward=reward)
        blobs = {names[name]: BytesIO(content) for name, content in files.items()}
        return self.sink.send(TrainingNews(checkpoints=[part]), blobs)[step]


def store_of(services: PlatformServices, lease: Lease) -> Told:
    return Told(services, lease)


def gone_on(services: PlatformServices, run_id: str, token: str) -> Told:
    """Return what the next worker of a run says, that of the first having let it go."""
    leases = Leases(services.db, services.clock)
    leases.release(run_id, "worker-1")
    return Told(services, claimed(services, run_id, token))


def done(step: int, metrics: dict[str, float], clock: ManualClock) -> StepRecord:
    """Return a step that ended just now."""
    return StepRecord(step, round(clock.now().timestamp() * 1000), metrics)


# -- submit ------------------------------------------------------------------------------------


def test_a_submitted_run_can_be_read_by_name_and_id_at_once(
    api: TestClient, code: Code, member: Member, services: PlatformServices
) -> None:
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
    with services.db.session() as session:
        row = session.get_one(DbRun, run["id"])
    assert (row.kind, row.seed, row.selection and row.selection["limit"]) == ("training", 7, 200)


def test_a_list_row_says_what_a_detail_says_in_other_keys(api: TestClient, member: Member) -> None:
    run = submitted(api)
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
                "dataset": {
                    "id": api.get(f"{RUNS}/{run['id']}").json()["dataset"]["id"],
                    "file_name": "multiply",
                },
                "rollout": {"id": api.get(f"{RUNS}/{run['id']}").json()["rollout"]["id"], "name": "multiply"},
            }
        ],
        "total_count": 1,
        "has_more": False,
        "next_offset": None,
    }


def test_everything_that_is_wrong_with_a_submit_is_said_at_once(api: TestClient) -> None:
    body = refused(
        api,
        400,
        "INVALID_CONFIG",
        experiment_config={"rollout": "../multiply", "entrypoint": "main.py", "datset": "multiply"},
        training_config={"lr": 0, "n_samples_per_prompt": 1, "total_epochs": True, "learning_rate": 1},
        sampling_config={"rollout_temperature": 0, "lr": 1e-6},
        checkpoints_config=[],
        advanced_config={"loss_type": "ppo", "lora_rnak": 8, "of_another_trainer": {"x": 1}},
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
        "env.lower",
        "secrets.provided",
    }
    assert len(keys) == len(body["issues"]), "each key is reported once"
    assert issue(body, "evaluation_config")["message"] == "Unrecognized key; it belongs to evaluation runs"
    assert issue(body, "advanced.lora_rnak")["key_correction"] == "advanced.lora_rank"
    assert "sk-canary" not in json.dumps(body)
    model = experiment(model_path="osmosis/tinny")
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=model, training_config={"lr": 0})
    assert {each["key"] for each in body["issues"]} == {"training.lr", "experiment.model_path"}
    said = issue(body, "experiment.model_path")["message"]
    assert said == "there is no built-in model `osmosis/tinny` (did you mean 'osmosis/tiny'?)"


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        (
            {"experiment_config": experiment(model_path="osmosis/tny")},
            "experiment.model_path",
            "did you mean",
        ),
        ({"experiment_config": experiment(rollout="multiplly")}, "experiment.rollout", "did you mean"),
        ({"experiment_config": experiment(branch="nain")}, "experiment.branch", "did you mean main?"),
        (
            {"training_config": {"rollout_batch_size": 100_000, "n_samples_per_prompt": 2}},
            "training.rollout_batch_size",
            "200000 rollouts are more than the 100000",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(
    api: TestClient, changes: dict[str, Any], key: str, said: str
) -> None:
    assert said in issue(refused(api, 400, "INVALID_CONFIG", **changes), key)["message"]


def test_missing_secrets_and_datasets_are_named_as_for_evaluations(api: TestClient) -> None:
    body = refused(api, 404, "SECRETS_NOT_FOUND", secrets={"required": ["A_KEY", "B_KEY"]})
    assert body["error"] == "Secret(s) not found: A_KEY, B_KEY"
    refused(api, 404, "DATASET_NOT_FOUND", experiment_config=experiment(dataset="multiplyy"))


def test_a_minimal_submit_trains_with_defaults_and_says_what_may_not_be_meant(api: TestClient) -> None:
    body = {"experiment_config": experiment(), "advanced_config": {"of_another_trainer": 1}}
    run = api.post(RUNS, json=body).json()
    detail = api.get(f"{RUNS}/{run['name']}").json()
    assert detail["config"]["training"]["n_samples_per_prompt"] == 8
    assert detail["training_run"]["notes"] == (
        "[advanced] `of_another_trainer`: not a setting of this trainer, ignored."
    )


def test_runs_of_one_kind_are_not_there_for_the_other(api: TestClient) -> None:
    training, evaluation = submitted(api), api.post("/api/cli/eval-runs", json=submit_body()).json()
    assert api.get(RUNS).json()["total_count"] == 1
    assert api.get("/api/cli/eval-runs").json()["total_count"] == 1
    body = assert_flat_error(api.get(f"{RUNS}/{evaluation['name']}"), 404, "NOT_FOUND")
    assert "there is no training run" in body["error"]
    assert_flat_error(api.get(f"/api/cli/eval-runs/{training['name']}"), 404, "NOT_FOUND")


def test_a_member_of_another_workspace_sees_nothing(
    client: TestClient, member: Member, stranger: Member
) -> None:
    client.headers.update(member.headers)
    run = submitted(client)
    client.headers.update(stranger.headers)
    assert client.get(RUNS).json()["training_runs"] == []
    for path in ("", "/metrics", "/logs", "/checkpoints"):
        assert_flat_error(client.get(f"{RUNS}/{run['id']}{path}"), 404, "NOT_FOUND")
    assert_flat_error(client.post(f"{RUNS}/{run['id']}/stop", json={}), 404, "NOT_FOUND")


# -- what a worker writes ------------------------------------------------------------------------


def test_every_point_of_every_metric_can_be_read_and_each_in_a_line(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    run = submitted(api)
    store = store_of(services, claimed(services, run["id"]))
    store.begin(total_steps=40)
    store.append_steps([done(0, {VALIDATION_REWARD: 0.25}, clock)])
    for step, reward in enumerate((0.5, 0.25, 0.75), start=1):
        clock.advance(10)
        values = {TRAINING_REWARD: reward, ROLLOUTS: 32, "odd": -1.0, "train/loss": math.nan}
        store.append_steps([done(step, values, clock)])
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


def test_a_run_that_has_not_begun_has_no_metrics(api: TestClient) -> None:
    run = submitted(api)
    assert api.get(f"{RUNS}/{run['name']}/metrics").json() == {
        "status": "pending",
        "overview": {"metric_summaries": []},
        "metrics": [],
        "training_run_id": run["id"],
    }
    assert api.get(f"{RUNS}/{run['name']}/checkpoints").json()["checkpoints"] == []


def test_the_newest_validation_is_told_row_by_row_until_a_run_goes_on_before_it(
    api: TestClient, services: PlatformServices
) -> None:
    run = submitted(api)
    store = store_of(services, claimed(services, run["id"]))
    store.begin(total_steps=40)

    def told() -> dict[str, object] | None:
        found: dict[str, object] | None = api.get(f"{RUNS}/{run['name']}/metrics").json().get("validation")
        return found

    assert told() is None
    validated = [StepRecord(step, 1, {}, validation_rewards={"row": step / 10}) for step in (0, 5)]
    store.append_steps([*validated, StepRecord(6, 1, {TRAINING_REWARD: 0.5})])
    assert told() == {"step": 5, "rewards": {"row": 0.5}}
    store.append_steps(validated[:1])
    assert told() == {"step": 5, "rewards": {"row": 0.5}}
    store.begin(total_steps=40, steps_done=4)
    assert told() == {"step": 5, "rewards": {"row": 0.5}}, "it had begun: that is an exchange repeated late"
    gone_on(services, run["id"], "worker-2").begin(total_steps=40, steps_done=4)
    assert told() is None


def test_a_step_that_is_repeated_replaces_itself(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    run = submitted(api)
    store = store_of(services, claimed(services, run["id"]))
    store.begin(total_steps=4)
    for step in (1, 2, 3):
        values = {TRAINING_REWARD: step / 10, ROLLOUTS: 8, "gone": 1.0}
        store.append_steps([done(step, values, clock)])
    before = api.get(f"{RUNS}/{run['name']}/metrics").json()
    store.append_steps([done(3, {TRAINING_REWARD: 0.3, ROLLOUTS: 8, "gone": 1.0}, clock)])
    assert api.get(f"{RUNS}/{run['name']}/metrics").json() == before
    # Continued from the checkpoint of step 1: what came after it is computed anew.
    store = gone_on(services, run["id"], "worker-2")
    store.begin(total_steps=4, steps_done=1)
    standing = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    assert (standing["current_step"], standing["reward"], standing["examples_processed_count"]) == (1, 0.1, 8)
    store.append_steps([done(2, {TRAINING_REWARD: 0.2, ROLLOUTS: 8}, clock)])
    series = api.get(f"{RUNS}/{run['name']}/metrics").json()["metrics"]
    assert {each["metric_key"]: len(each["data_points"]) for each in series} == {
        TRAINING_REWARD: 2,
        ROLLOUTS: 2,
        "gone": 1,
    }


def test_checkpoints_are_listed_by_step_and_kept_once(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    run = submitted(api)
    store = store_of(services, claimed(services, run["id"]))
    assert store.add_checkpoint(10, reward=0.5) == f"{run['name']}-step-10"
    store.add_checkpoint(5)
    first = api.get(f"{RUNS}/{run['name']}/checkpoints").json()
    store.add_checkpoint(10, b"others", reward=0.75)
    again = api.get(f"{RUNS}/{run['name']}/checkpoints").json()
    sizes = [[one.pop("size") for one in each["checkpoints"]] for each in (first, again)]
    config, before, after = (len(content) for content in (b"{}", b"weights", b"others"))
    assert sizes == [[config + before, config + before], [config + before, config + after]]
    assert again == first
    assert (again["training_run_name"], again["training_run_id"]) == (run["name"], run["id"])
    assert [(one["checkpoint_step"], one["status"]) for one in again["checkpoints"]] == [
        (5, "uploaded"),
        (10, "uploaded"),
    ]
    found = services.lora_models.get(member.workspace.id, f"{run['name']}-step-10").model
    assert set(found.files) == {"adapter_config.json", "adapter_model.safetensors"}
    stored = found.files["adapter_model.safetensors"]
    with services.blobs.open(stored["blob_key"]) as content:
        assert content.read() == b"others"
    assert (stored["size"], found.reward) == (6, 0.75)
    # Storing it again has left nothing behind.
    assert len(list(services.blobs.keys(f"runs/{run['id']}/checkpoints/10"))) == 2


def test_a_report_has_the_size_that_the_platform_tells_of_an_adapter(
    api: TestClient, services: PlatformServices, tmp_path: Path
) -> None:
    run = submitted(api)
    store = store_of(services, claimed(services, run["id"]))
    store.add_checkpoint(5, bytes(20478))
    told = api.get(f"{RUNS}/{run['name']}/checkpoints").json()
    detail = TrainingRunDetail.model_validate(api.get(f"{RUNS}/{run['name']}").json())
    saved = tuple(CheckpointList.model_validate(told).checkpoints)
    report = ReportFile(tmp_path / "run.html")
    report_training(DescribedTraining(detail, checkpoints=saved), report)
    assert f'{run["name"]}-step-5</th><td class="number">5</td>' in report.path.read_text()
    assert '<td class="number">20.0 KB</td>' in report.path.read_text()


def test_a_report_has_the_marks_of_what_the_log_tells_of_the_curves(
    api: TestClient, services: PlatformServices, clock: ManualClock, tmp_path: Path
) -> None:
    run = submitted(api)
    store = store_of(services, claimed(services, run["id"]))
    store.begin(total_steps=4)
    store.append_steps([done(step, {TRAINING_REWARD: 0.1 * step}, clock) for step in (1, 2)])
    path = f"{RUNS}/{run['name']}"
    assert "marks" not in api.get(f"{path}/metrics").json()
    plans = [LogLine("the plan", step=PLAN, details={"steps_done": steps}) for steps in (0, 1)]
    about = {"training_step": 2}
    warned = [LogLine("rewards <are> the same", "warning", step=WARNED, details=about)] * 2
    services.logs.append(run["id"], [*plans, *warned, LogLine("another thing", step="run", details=about)])
    told = api.get(f"{path}/metrics").json()
    assert told["marks"] == [
        {"step": 1, "kind": "restart", "text": "went on after step 1"},
        {"step": 2, "kind": "warning", "text": "rewards <are> the same"},
    ]
    detail = TrainingRunDetail.model_validate(api.get(path).json())
    metrics = TrainingMetrics.model_validate(told)
    report = ReportFile(tmp_path / "run.html")
    report_training(DescribedTraining(detail, metrics=metrics), report)
    page = report.path.read_text()
    assert "step 2: rewards &lt;are&gt; the same" in page and "another thing" not in page
    assert page.count("<title>went on after step 1</title>") == 1


def test_of_an_adapter_without_files_no_size_is_told(api: TestClient, services: PlatformServices) -> None:
    run = submitted(api)
    store_of(services, claimed(services, run["id"])).add_checkpoint(5)
    with services.db.transaction() as session:
        session.execute(update(DbLoraModel).where(DbLoraModel.run_id == run["id"]).values(files={}))
    (checkpoint,) = api.get(f"{RUNS}/{run['name']}/checkpoints").json()["checkpoints"]
    assert "size" not in checkpoint


def test_a_worker_that_was_replaced_writes_nothing(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    run = submitted(api)
    late = store_of(services, claimed(services, run["id"], "worker-1"))
    late.begin(total_steps=3)
    late.append_steps([done(1, {TRAINING_REWARD: 0.1}, clock)])
    clock.advance(60)
    store = store_of(services, claimed(services, run["id"], "worker-2"))
    writes = (
        lambda: late.begin(total_steps=9),
        lambda: late.append_steps([done(2, {TRAINING_REWARD: 0.9}, clock)]),
        lambda: late.add_checkpoint(2),
    )
    for write in writes:
        with pytest.raises(LeaseLostError):
            write()
    metrics = api.get(f"{RUNS}/{run['name']}/metrics").json()
    assert metrics["overview"]["latest_step"] == 1
    assert metrics["overview"]["total_steps"] == 3
    assert api.get(f"{RUNS}/{run['name']}/checkpoints").json()["checkpoints"] == []
    store.append_steps([done(2, {TRAINING_REWARD: 0.2}, clock)])
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["reward"] == 0.2


def test_the_metrics_that_the_platform_reads_are_those_the_trainer_writes() -> None:
    assert {ROLLOUTS, TRAINING_REWARD, VALIDATION_REWARD} <= set(TITLES)


# -- resume ------------------------------------------------------------------------------------


def ended_with_checkpoint(
    api: TestClient,
    services: PlatformServices,
    outcome: Any = "failed",
    *,
    step: int | None = 7,
    **changes: Any,
) -> dict[str, Any]:
    """A run that ended, and what its worker left behind."""
    run = submitted(api, **changes)
    lease = claimed(services, run["id"])
    directory = WorkingDirectory(services.config.runs_dir, run["id"])
    directory.create()
    (directory.path / "worker.log").write_text("words")
    directory.source.mkdir()
    for number in (step - 1, step) if step is not None else ():
        (directory.training.checkpoints / f"step-{number:08d}").mkdir(parents=True)
    leases = Leases(services.db, services.clock)
    with leases.writing(lease) as (_, row):
        leases.end(row, outcome, "the disk is full" if outcome == "failed" else None)
    directory.keep_what_resumes()
    return run


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_a_run_that_ended_early_goes_on_as_the_same_run(
    api: TestClient, services: PlatformServices, outcome: str
) -> None:
    run = ended_with_checkpoint(api, services, outcome)
    assert api.get(RUNS).json()["training_runs"][0]["status"] == outcome
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["resumable"] is True
    reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
    assert reply.json() == {"id": run["id"], "name": run["name"], "status": "pending", "step": 7}
    found = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    assert found["status"] == "pending"
    assert not {"error", "completed_at", "resumable"} & found.keys()
    assert api.get(RUNS).json()["training_runs"][0]["status"] == "pending", "lists do not remember its end"
    lines = api.get(f"{RUNS}/{run['name']}/logs").json()["logs"]
    assert "resumed the run: it goes on from the checkpoint of step 7" in lines[-1]["message"]
    assert claimed(services, run["id"], "worker-2").attempt == 2


def test_only_a_run_that_ended_early_and_has_a_checkpoint_is_resumed(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    def refused(run: dict[str, Any], words: str) -> None:
        reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
        assert_flat_error(reply, 409, "CONFLICT")
        assert words in reply.json()["error"]
        assert not api.get(f"{RUNS}/{run['name']}").json()["training_run"].get("resumable")

    waiting = submitted(api)
    refused(waiting, "is pending: it goes on by itself")
    claimed(services, waiting["id"])
    refused(waiting, "is running: it goes on by itself")
    assert api.post(f"{RUNS}/{waiting['name']}/stop", json={}).status_code == 200
    refused(waiting, "is stopping: it can be resumed once it has stopped")
    refused(ended_with_checkpoint(api, services, "finished"), "has finished")
    refused(ended_with_checkpoint(api, services, step=None), "has no checkpoint")
    old = ended_with_checkpoint(api, services)
    clock.advance(31 * 86_400)
    refused(old, "more than 30 days ago")
    assert_flat_error(api.post(f"{RUNS}/nobody/resume", json={}), 404, "NOT_FOUND")


def ended_elsewhere(api: TestClient, services: PlatformServices, outcome: Any = "failed") -> dict[str, Any]:
    """A run that ended on a machine that is gone, which had sent what another goes on from."""
    run = submitted(api)
    lease = claimed(services, run["id"])
    store_of(services, lease).add_archive(5)
    leases = Leases(services.db, services.clock)
    with leases.writing(lease) as (_, row):
        leases.end(row, outcome)
    return run


def test_a_run_goes_on_from_what_was_sent_where_its_machine_is_gone(
    api: TestClient, services: PlatformServices
) -> None:
    run = ended_elsewhere(api, services)
    assert not (services.config.runs_dir / run["id"]).exists()
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["resumable"] is True
    assert api.post(f"{RUNS}/{run['name']}/resume", json={}).json()["step"] == 5
    services.resumption.forget_old()
    assert len(list(services.blobs.keys(f"runs/{run['id']}/resume"))) == 1, "it is needed now"


def test_what_was_sent_is_forgotten_when_a_run_has_finished_or_ended_a_month_ago(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    failed, finished = (ended_elsewhere(api, services, outcome) for outcome in ("failed", "finished"))

    def kept() -> list[bool]:
        return [any(services.blobs.keys(f"runs/{run['id']}/resume")) for run in (failed, finished)]

    assert kept() == [True, True]
    services.resumption.forget_old()
    assert kept() == [True, False]
    clock.advance(31 * 86_400)
    services.resumption.forget_old()
    assert kept() == [False, False]
    assert not api.get(f"{RUNS}/{failed['name']}").json()["training_run"].get("resumable")


def test_archives_that_stayed_because_the_store_was_away_go_when_it_is_back(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = ended_elsewhere(api, services, "finished")
    below = f"runs/{finished['id']}/resume"

    def away(_: str) -> None:
        raise BlobStoreSilent("the store does not answer.")

    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", away)
        with pytest.raises(BlobStoreSilent):
            services.resumption.forget_old()
    assert any(services.blobs.keys(below))
    services.resumption.forget_old()
    assert not any(services.blobs.keys(below))
    with services.db.session() as session:
        assert session.get_one(DbRun, finished["id"]).training_state is None, "it is looked for no more"


def test_an_archive_that_a_run_let_go_of_and_that_stayed_goes_when_it_is_over(
    api: TestClient, services: PlatformServices
) -> None:
    finished = ended_elsewhere(api, services, "finished")
    services.blobs.put(f"runs/{finished['id']}/resume/4-left/checkpoint.tar", BytesIO(b"of before"))
    services.resumption.forget_old()
    assert not any(services.blobs.keys(f"runs/{finished['id']}/resume"))


def test_a_run_whose_time_was_over_while_it_was_about_to_be_resumed_stays_ended(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended_elsewhere(api, services)
    resolve = resuming.resolve_scopes

    def slowly(*args: Any) -> Any:
        clock.advance(31 * 86_400)
        services.resumption.forget_old()
        return resolve(*args)

    monkeypatch.setattr(resuming, "resolve_scopes", slowly)
    assert_flat_error(api.post(f"{RUNS}/{run['name']}/resume", json={}), 409, "CONFLICT")
    with services.db.session() as session:
        assert session.get_one(DbRun, run["id"]).status == "failed"


def test_archives_of_one_run_that_do_not_go_keep_no_other_run_from_losing_its_own(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ended_elsewhere(api, services, "finished") for _ in range(2)]
    delete, asked = services.blobs.delete_below, []

    def refused_first(prefix: str) -> None:
        asked.append(prefix)
        if len(asked) == 1:
            raise BlobError("it is held.")
        delete(prefix)

    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", refused_first)
        services.resumption.forget_old()
    assert sorted(any(services.blobs.keys(f"runs/{run['id']}/resume")) for run in runs) == [False, True]
    services.resumption.forget_old()
    assert not any(any(services.blobs.keys(f"runs/{run['id']}/resume")) for run in runs)


def test_a_run_whose_own_secrets_were_forgotten_names_them(
    api: TestClient, services: PlatformServices
) -> None:
    secrets = {"required": ["HF_TOKEN"], "provided": {"HF_TOKEN": "hf_0123456789"}}
    run = ended_with_checkpoint(api, services, secrets=secrets)
    reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
    assert_flat_error(reply, 404, "SECRETS_NOT_FOUND")
    assert reply.json()["missing"] == ["HF_TOKEN"]
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["status"] == "failed"


def test_what_a_run_goes_on_from_outlives_restarts_of_the_platform_for_a_month(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    stopped, failed = (ended_with_checkpoint(api, services, outcome) for outcome in ("stopped", "failed"))
    finished = ended_with_checkpoint(api, services, "finished")
    directories = {
        run["id"]: WorkingDirectory(services.config.runs_dir, run["id"])
        for run in (stopped, failed, finished)
    }
    remove_leftovers(services.db, services.config.runs_dir, clock.now())
    kept = {id: directory.checkpoint_step() for id, directory in directories.items()}
    assert kept == {stopped["id"]: 7, failed["id"]: 7, finished["id"]: None}
    checkpoints = directories[stopped["id"]].training.checkpoints
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000007"], "the last one alone"
    assert not directories[stopped["id"]].source.exists()
    clock.advance(31 * 86_400)
    remove_leftovers(services.db, services.config.runs_dir, clock.now())
    assert not any(directory.checkpoint_step() for directory in directories.values())
    assert directories[failed["id"]].log.read_text() == "words", "why it failed is still told"


# -- stop --------------------------------------------------------------------------------------


def test_a_pending_run_stops_at_once_and_a_running_one_is_asked(
    api: TestClient, services: PlatformServices
) -> None:
    waiting, running = submitted(api), submitted(api)
    claimed(services, running["id"])
    assert api.post(f"{RUNS}/{waiting['name']}/stop", json={}).json() == {
        "id": waiting["id"],
        "status": "stopped",
    }
    assert api.post(f"{RUNS}/{running['name']}/stop", json={}).json()["status"] == "stopping"
    lines = api.get(f"{RUNS}/{running['name']}/logs").json()["logs"]
    assert "asked for the run to stop" in lines[-1]["message"]

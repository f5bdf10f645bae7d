"""Training runs executed by real worker processes: curves, checkpoints, kills, stops, adapters that are used."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.metrics import TITLES, TRAINING_REWARD, VALIDATION_REWARD
from tests.e2e.turnstile import Turnstile
from tests.platform.conftest import Member, World
from tests.platform.evaluations import ROOT, Code, executing, experiment, submit_body, wait_until
from tests.platform.fake_worker import TRAININGS
from tests.platform.runs.conftest import ended
from tests.warm_osmosis import process_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("warm_children")]

RUNS = TRAININGS.route
TRAINING_ROWS = ROOT / "data" / "multiply_train.jsonl"
STEPS = 4
# A step of 16 rollouts; everything else as in configs/training/multiply.toml.
SMALL = {
    "training_config": {
        "lr": 2e-3,
        "n_samples_per_prompt": 4,
        "rollout_batch_size": 4,
        "max_prompt_length": 512,
        "max_response_length": 128,
    },
    "checkpoints_config": {"eval_interval": 2, "checkpoint_save_freq": 3},
    "advanced_config": {"max_steps": STEPS},
}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """A few rows, so that a validation is quick."""
    return [json.loads(line) for line in TRAINING_ROWS.read_text().splitlines()[:120]]


def submit(api: TestClient, **changes: Any) -> dict[str, Any]:
    return TRAININGS.taken(api, **{**SMALL, **changes})


def messages(api: TestClient, name: str) -> list[str]:
    page = api.get(f"{RUNS}/{name}/logs", params={"limit": 200, "direction": "newer"}).json()
    return [line["message"] for line in page["logs"]]


def curves(api: TestClient, name: str) -> dict[str, list[tuple[int, float]]]:
    """Return what was computed, by metric; what was measured of the machine is left out."""
    measured = ("time/", "speed/", "train/logprob_gap")
    series = api.get(f"{RUNS}/{name}/metrics").json()["metrics"]
    return {
        each["metric_key"]: [(point["step"], point["value"]) for point in each["data_points"]]
        for each in series
        if not each["metric_key"].startswith(measured)
    }


def checkpoints(api: TestClient, name: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = api.get(f"{RUNS}/{name}/checkpoints").json()["checkpoints"]
    return listed


def test_a_deployed_checkpoint_answers_is_evaluated_and_is_trained_on(
    api: TestClient, world: World, host: Any, member: Member
) -> None:
    run = submit(api, advanced_config={"max_steps": 2})
    assert ended(api, RUNS, run["name"])["training_run"]["status"] == "finished"
    (saved,) = checkpoints(api, run["name"])
    name = saved["checkpoint_name"]
    assert api.post(f"/api/cli/models/{name}/deploy", json={}).json()["status"] == "active"
    called = api.get(f"/api/cli/models/{name}").json()["inference_model"]
    assert called == f"osmosis/tiny:{name}"

    bearer = world.token(member, "api_key")
    question = {"messages": [{"role": "user", "content": "What is 12 times 7?"}], "seed": 3, "max_tokens": 24}
    replies = [
        api.post("/v1/chat/completions", json={**question, "model": model}, headers=bearer)
        for model in (called, "osmosis/tiny")
    ]
    for reply, model in zip(replies, (called, "osmosis/tiny"), strict=True):
        assert (reply.status_code, reply.json()["model"]) == (200, model), reply.text
    assert replies[0].json()["system_fingerprint"] != replies[1].json()["system_fingerprint"]

    experiment_config = experiment(model_path=called)
    evaluated = api.post("/api/cli/eval-runs", json=submit_body(experiment_config=experiment_config)).json()
    # Neither an evaluation nor a training needs the deployment.
    assert api.post(f"/api/cli/models/{name}/undeploy", json={}).json()["status"] == "inactive"
    refused = api.post("/v1/chat/completions", json={**question, "model": called}, headers=bearer)
    assert refused.status_code == 404
    further = submit(api, experiment_config=experiment_config, advanced_config={"max_steps": 3})
    measured = ended(api, "/api/cli/eval-runs", evaluated["name"])["eval_run"]
    assert measured["status"] == "finished", measured
    detail = api.get(f"/api/cli/eval-runs/{evaluated['name']}").json()
    assert (detail["config"]["model_path"], detail["results"]["graded"]) == (called, 6)

    found = ended(api, RUNS, further["name"])["training_run"]
    assert found["status"] == "finished", (found, messages(api, further["name"]))
    # The second run begins with the policy that the first one ended with, on the same held-out rows.
    before, after = curves(api, run["name"]), curves(api, further["name"])
    assert after[VALIDATION_REWARD][0] == (0, before[VALIDATION_REWARD][-1][1])
    # A refused step would mean that the base model sampled instead of the adapter.
    assert not [said for said in messages(api, further["name"]) if "was refused" in said]
    assert after["train/loss"]
    last = checkpoints(api, further["name"])[-1]
    model = api.get(f"/api/cli/models/{last['checkpoint_name']}").json()
    assert (model["base_model"], model["training_run_name"]) == ("osmosis/tiny", further["name"])


@pytest.mark.parametrize(("kind", "adapters"), [("skyrl", 1), ("other", 0)])
def test_a_checkpoint_of_a_tinker_server_is_deployed_if_the_server_offers_its_adapter(
    api: TestClient, world: World, host: Any, member: Member, kind: str, adapters: int
) -> None:
    pytest.importorskip("tinker")
    from tests.training.standin_tinker import KEY, tinker_server

    world.put_secret(member, "TINKER_API_KEY", KEY, "workspace")
    with tinker_server(has_archives=adapters > 0) as server:
        remote = {"backend": "tinker", "tinker_server": kind, "tinker_url": server.url}
        run = submit(
            api, advanced_config={"max_steps": 2, **remote}, secrets={"required": ["TINKER_API_KEY"]}
        )
        found = ended(api, RUNS, run["name"])["training_run"]
    said = messages(api, run["name"])
    assert (found["status"], found["current_step"]) == ("finished", 2), said
    saved = [each["checkpoint_name"] for each in checkpoints(api, run["name"])]
    assert len(saved) == adapters
    for name in saved:
        assert api.post(f"/api/cli/models/{name}/deploy", json={}).json()["status"] == "active"
    left = "the Tinker server, which offers no adapter downloads, keeps the checkpoint of step 2: tinker://"
    assert any(line.startswith(left) for line in said) == (not saved)
    assert KEY not in " ".join(said)


def check_finished_run(api: TestClient, world: World, code: Code, run: dict[str, Any]) -> None:
    """Check that a finished run of ``STEPS`` steps has left a curve, a log and checkpoints."""
    found = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    environment = api.get(f"{RUNS}/{run['name']}").json()["environment"]
    assert environment.startswith("the running Python")
    assert (found["current_step"], found["total_steps"]) == (STEPS, STEPS)
    assert found["examples_processed_count"] == STEPS * 16

    curve = curves(api, run["name"])
    assert [step for step, _ in curve[TRAINING_REWARD]] == [1, 2, 3, 4]
    assert [step for step, _ in curve[VALIDATION_REWARD]] == [0, 2, 4]
    assert set(curve) <= set(TITLES)
    for key in ("train/grad_norm", "train/clip_fraction", "train/entropy_loss", "rollout/truncated_ratio"):
        assert len(curve[key]) == STEPS, key

    saved = checkpoints(api, run["name"])
    assert [one["checkpoint_step"] for one in saved] == [3, STEPS]
    third, model = (api.get(f"/api/cli/models/{one['checkpoint_name']}").json() for one in saved)
    assert (third["reward"], "validation_reward" in third) == (curve[TRAINING_REWARD][2][1], False)
    assert (model["base_model"], model["reward"]) == ("osmosis/tiny", curve[TRAINING_REWARD][-1][1])
    assert model["validation_reward"] == curve[VALIDATION_REWARD][-1][1]
    download = api.get(f"/api/cli/models/{saved[-1]['checkpoint_name']}/download").json()
    files = {file["path"]: api.get(file["url"]).content for file in download["files"]}
    assert set(files) == {"adapter_config.json", "adapter_model.safetensors", "provenance.json"}
    made_by = json.loads(files["provenance.json"])
    assert (made_by["run"], made_by["git_head"], made_by["step"]) == (run["name"], code.head, STEPS)
    assert made_by["dataset"]["name"] == "multiply"
    assert made_by["settings"]["lr"] == 2e-3

    said = messages(api, run["name"])
    assert any(line.startswith(f"{STEPS} steps of 16 attempts on ") for line in said)
    assert sum(line.startswith("step ") for line in said) == STEPS + 1
    wait_until(lambda: not list(world.services.config.runs_dir.glob("*")))


def test_a_run_that_is_killed_stopped_and_resumed_elsewhere_has_the_curve_of_an_undisturbed_one(
    api: TestClient, world: World, code: Code, turnstile: Turnstile, tmp_path: Path
) -> None:
    runs_dir = world.services.config.runs_dir

    def hold_at_step(wanted: int) -> None:
        """Hold the run after a step, or after the next one: its rollouts may be sampled ahead."""

        def checkpoint_step() -> int:
            found = runs_dir.glob("*/training/checkpoints")
            return max((one.step for folder in found for one in checkpoints_in(folder)), default=0)

        turnstile.may_pass = lambda: checkpoint_step() < wanted
        wait_until(lambda: any(step >= wanted for step, _ in _steps(api, disturbed["name"])))

    with executing(world) as host:
        undisturbed = submit(api)
        found = ended(api, RUNS, undisturbed["name"])["training_run"]
        assert found["status"] == "finished", (found, messages(api, undisturbed["name"]))
        check_finished_run(api, world, code, undisturbed)
        turnstile.hold()
        disturbed = submit(api)
        hold_at_step(1)
        [worker] = host.processes()
        os.kill(process_of(worker.pid), signal.SIGKILL)
        hold_at_step(2)
        assert api.post(f"{RUNS}/{disturbed['name']}/stop", json={}).status_code == 200
        stopped = ended(api, RUNS, disturbed["name"])["training_run"]
    assert (stopped["status"], stopped["resumable"]) == ("stopped", True)
    assert stopped["current_step"] < STEPS, "there is something left to do"
    turnstile.open()
    shutil.rmtree(runs_dir)
    elsewhere = tmp_path / "elsewhere"
    replace(world.services.config, home=elsewhere).prepare_home()
    with executing(world, home=elsewhere):
        resumed = api.post(f"{RUNS}/{disturbed['name']}/resume", json={}).json()
        assert (resumed["id"], resumed["step"]) == (disturbed["id"], stopped["current_step"])
        found = ended(api, RUNS, disturbed["name"])["training_run"]
    assert found["status"] == "finished", messages(api, disturbed["name"])
    took_over = f"resumed from the stored checkpoint of step {resumed['step']}"
    assert took_over in messages(api, disturbed["name"])
    calm, stormy = curves(api, undisturbed["name"]), curves(api, disturbed["name"])
    assert set(calm) == set(stormy)
    for key, points in calm.items():
        assert [step for step, _ in stormy[key]] == [step for step, _ in points], key
        assert [value for _, value in stormy[key]] == pytest.approx(
            [value for _, value in points], rel=1e-4, abs=1e-6
        ), key
    steps = [
        [one["checkpoint_step"] for one in checkpoints(api, run["name"])] for run in (undisturbed, disturbed)
    ]
    assert set(steps[0]) <= set(steps[1])
    assert not api.get(f"{RUNS}/{disturbed['name']}").json()["training_run"].get("resumable")


def _steps(api: TestClient, name: str) -> list[tuple[int, float]]:
    return curves(api, name).get(VALIDATION_REWARD, []) + curves(api, name).get(TRAINING_REWARD, [])

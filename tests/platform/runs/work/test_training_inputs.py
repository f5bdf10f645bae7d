"""What a trainer is given and what is kept of what it left; and what is not even submitted."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai import training
from osmosis_ai.api.wire.workers import UploadGrant
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.read.sample_counts import SampleCounts
from osmosis_ai.platform.runs.work.run_work import WorkResult
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.training.runs.loop_state import Ending
from osmosis_ai.training.runs.metrics import (
    VALIDATION_PLANNED,
    MetricsHistory,
    StepRecord,
)
from osmosis_ai.training.runs.validation_samples import ValidationSamples
from tests.lazily import needs
from tests.platform.conftest import assert_flat_error
from tests.platform.evaluations import experiment, training_body
from tests.platform.runs.work.claimed_runs import DeskLink
from tests.platform.runs.work.pretended_trainer import (
    RUNS,
    STEPS,
    Bench,
    PretendedTrainer,
    finishes,
    is_stopped,
)

needs("torch")


@pytest.fixture
def bench(api: TestClient, services: PlatformServices) -> Bench:
    return Bench(api, services)


def test_values_of_secrets_reach_the_agent_and_nothing_else(
    api: TestClient, services: PlatformServices, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "of-whoever-runs-the-platform")
    seen: list[PretendedTrainer] = []

    def looks(pretended: PretendedTrainer) -> Ending:
        seen.append(pretended)
        assert os.environ["HF_TOKEN"] == "hf-canary", "models are loaded with the run's own"
        pretended.hooks.note("the agent printed canary-7291")
        return finishes(pretended)

    ends(looks)
    given = {"AGENT_KEY": "canary-7291", "HF_TOKEN": "hf-canary"}
    bench = Bench(api, services, secrets={"required": sorted(given), "provided": given})
    assert bench.work() == WorkResult("finished"), bench.error
    (pretended,) = seen
    assert dict(pretended.spec.secret_values) == given
    assert "canary" not in repr([pretended.spec, pretended.environ, pretended.provenance, bench.prepared])
    assert "HF_TOKEN" not in pretended.environ
    assert "the agent printed [REDACTED]" in bench.log()


def validates(pretended: PretendedTrainer, step: int, said: str) -> None:
    """Leave a validation of two samples, the second of which was killed while its conversation was written."""
    records = [
        TerminalRecord(row, 0, f"valid-{step:06d}-row-{row}-0", "success", 5, reward=0.5, output=said)
        for row in range(2)
    ]
    trials = pretended.directory.trials
    for record, content in zip(records, (json.dumps({"steps": [{"message": said}]}), '{"st'), strict=True):
        (trials / record.rollout_id).mkdir(parents=True)
        (trials / record.rollout_id / "trajectory.json").write_text(content)
    pretended.directory.write_validation(ValidationSamples.of(records, step=step, pass_threshold=1.0))
    record = StepRecord(step, 1000 * step, {VALIDATION_PLANNED: 2.0})
    MetricsHistory(pretended.directory.metrics).append(record)
    pretended.hooks.step(record, STEPS)


def test_the_conversations_of_the_newest_validation_are_kept_without_secrets(
    api: TestClient, services: PlatformServices, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"AGENT_KEY": "canary-7291"}
    bench = Bench(api, services, secrets={"required": list(given), "provided": given})
    with services.db.session() as session:
        source = PlatformSource(services, session.get_one(DbRun, bench.id).workspace_id, SampleCounts())
    assert source.validation(bench.name) is None

    def validates_once(pretended: PretendedTrainer) -> Ending:
        validates(pretended, 2, "it is canary-7291")
        return is_stopped(pretended)

    ends(validates_once)
    bench.work()
    first = source.validation(bench.name)
    assert first is not None and (first.step, first.total) == (2, 2)
    assert {record.output for record in first.records} == {"it is [REDACTED]"}
    conversations = [source.validation_conversation(bench.name, row, 0, max_bytes=999) for row in (0, 1)]
    assert [each.content for each in conversations] == [b'{"steps":[{"message":"it is [REDACTED]"}]}', None]

    def kept_steps() -> set[str]:
        keys = services.blobs.keys(f"runs/{bench.id}/validation")
        return {key.split("/")[3].partition("-")[0] for key in keys}

    real = DeskLink.send

    def send(self: DeskLink, grant: UploadGrant, content: Any, size: int) -> str:
        if grant.name.startswith("validation/4-") and grant.name.endswith("-conversations"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, grant, content, size)

    def validates_again(pretended: PretendedTrainer) -> Ending:
        validates(pretended, 4, "again")
        return is_stopped(pretended)

    monkeypatch.setattr(DeskLink, "send", send)
    ends(validates_again)
    bench.work()
    assert source.validation(bench.name) == first, "the one before is whole; half a new one is none"
    assert "the conversations of the newest validation could not be stored" in bench.log()
    assert "2" in kept_steps()
    monkeypatch.setattr(DeskLink, "send", real)
    ends(is_stopped)
    bench.work()
    second = source.validation(bench.name)
    assert second is not None and second.step == 4
    assert kept_steps() == {"4"}


def test_the_trainer_is_given_the_commit_the_rows_and_the_settings(
    bench: Bench, ends: Any, services: PlatformServices
) -> None:
    seen: list[PretendedTrainer] = []

    def looks(pretended: PretendedTrainer) -> Ending:
        seen.append(pretended)
        return finishes(pretended)

    ends(looks)
    bench.work()
    spec, provenance = seen[0].spec, seen[0].provenance
    assert (spec.model_path, spec.adapter, spec.entrypoint) == ("osmosis/tiny", None, "main.py")
    assert (spec.rollout_dir / "main.py").is_file()
    assert spec.dataset.path.is_relative_to(bench.directory.path)
    assert (spec.settings.n_samples_per_prompt, spec.settings.checkpoint_save_freq) == (4, 5)
    assert (provenance["run"], provenance["git_head"]) == (
        bench.name,
        bench.prepared and bench.prepared.commit_sha,
    )


# -- submits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", ["training-runs", "eval-runs"])
def test_an_adapter_that_does_not_exist_is_refused_by_name(api: TestClient, runs: str) -> None:
    body = {"experiment_config": experiment(model_path="osmosis/tiny:no-such-step-9")}
    refused = assert_flat_error(api.post(f"/api/cli/{runs}", json=body), 400, "INVALID_CONFIG")
    assert refused["issues"][0]["key"] == "experiment.model_path"
    assert "no adapter 'no-such-step-9' of `osmosis/tiny`" in refused["issues"][0]["message"]


def test_the_learning_rate_of_an_adapter_is_that_of_its_base_model(
    bench: Bench, ends: Any, api: TestClient
) -> None:
    ends(finishes)
    bench.work()
    called = f"osmosis/tiny:{bench.name}-step-{STEPS}"
    run = api.post(RUNS, json=training_body(experiment_config=experiment(model_path=called))).json()
    detail = api.get(f"{RUNS}/{run['name']}").json()
    assert (detail["model"]["name"], detail["config"]["training"]["lr"]) == (called, 1e-3)


def test_a_platform_without_torch_refuses_to_train_and_says_what_to_install(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "find_spec", lambda _: None)
    refused = assert_flat_error(api.post(RUNS, json=training_body()), 409, "TRAINING_NOT_INSTALLED")
    assert "cannot train" in refused["error"]
    assert "[train]" in refused["error"]
    assert api.get(RUNS).json()["total_count"] == 0


@pytest.mark.e2e
def test_neither_the_platform_nor_a_worker_that_has_not_begun_to_train_imports_torch() -> None:
    program = (
        "import sys; import osmosis_ai.platform.app, osmosis_ai.platform.server, osmosis_ai.platform.runs.work.worker; "
        "print(sorted({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""A run whose policy is served by a vLLM server: started, fed with adapters, restarted, ended."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from osmosis_ai.errors import OsmosisError
from tests.e2e.platform_process import child_of
from tests.e2e.training import (
    DATASET,
    WORKSPACE,
    CheckpointDirectory,
    Trainer,
    TrainingHooks,
    file_digest,
    series,
)
from tests.e2e.training import trainer as make_trainer
from tests.training.standin_vllm import __name__ as STANDIN

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_children")]

STEPS = 3


class Watching(TrainingHooks):
    """Remembers notes; kills the server of the policy after a step when told to."""

    def __init__(self, run_dir: Path, kill_after: int | None = None) -> None:
        self._run_dir = run_dir
        self._kill_after = kill_after
        self.notes: list[str] = []
        self.server: int | None = None

    def note(self, message: str) -> None:
        self.notes.append(message)

    def checkpoint(self, saved: CheckpointDirectory) -> None:
        self.server = child_of(os.getpid(), "osmosis_ai.processes")
        if saved.step == self._kill_after:
            assert self.server is not None
            os.killpg(self.server, signal.SIGKILL)


def trainer(run_dir: Path, hooks: TrainingHooks, command: list[str], **changes: object) -> Trainer:
    settings = {
        "lr": 2e-3,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 4,
        "max_prompt_length": 384,
        "max_response_length": 128,
        "eval_interval": STEPS,
        "max_steps": STEPS,
        "policy_engine": "vllm",
        "vllm_command": command,
        "vllm_args": ["--seed", "1"],
        **changes,
    }
    environ = {**os.environ, "PYTHONPATH": str(WORKSPACE), "VLLM_API_KEY": "of another server"}
    made_by = {"commit_sha": "4be1" * 10}
    return make_trainer(run_dir, settings, hooks, validated=4, environ=environ, provenance=made_by)


def standin() -> list[str]:
    """The command of a server that stands in for vLLM's.

    PYTHONPATH is not inherited: it belongs to the trainer's environment, not to vLLM's.
    """
    code = f"import sys; sys.path.insert(0, {str(WORKSPACE)!r}); from {STANDIN} import main; main()"
    return [sys.executable, "-c", code]


async def test_a_policy_is_trained_on_a_server_that_is_started_for_it_and_ends_with_the_run(tmp_path):
    run_dir = tmp_path / "run"
    hooks = Watching(run_dir)
    summary = await trainer(run_dir, hooks, standin()).run()
    gaps = [value for _, value in series(summary.records, "train/logprob_gap_max")]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4, "every version was served with its own adapter"
    assert [value for _, value in series(summary.records, "rollout/staleness_max")] == [0] * STEPS
    assert [value for _, value in series(summary.records, "train/importance_capped")] == [0] * STEPS
    assert hooks.server is not None
    assert child_of(os.getpid(), "osmosis_ai.processes") is None, "the server was left behind"
    assert [path.name for path in (run_dir / "served_adapters").iterdir()] == []
    adapter = run_dir / "checkpoints" / f"step-{STEPS:08d}" / "adapter"
    made_by = json.loads((adapter / "provenance.json").read_text())
    assert made_by["commit_sha"] == "4be1" * 10
    assert made_by["dataset"] == {"name": "multiply_train", "sha256": file_digest(DATASET)}
    assert made_by["settings"]["policy_engine"] == "vllm"
    assert made_by["metrics"] == summary.records[-1].metrics


@pytest.mark.parametrize(
    ("replicas", "note"),
    [
        (1, r"the vLLM server ended \({}\)\. {}"),
        (2, r"vLLM server [12] ended \({}\)\. {} 1 of 2 vLLM servers .*"),
    ],
)
async def test_a_server_that_is_killed_is_started_again_and_continues_with_the_same_policy(
    tmp_path, replicas, note
):
    run_dir = tmp_path / "run"
    hooks = Watching(run_dir, kill_after=1)
    summary = await trainer(run_dir, hooks, standin(), vllm_replicas=replicas).run()
    [killed] = [note for note in hooks.notes if "signal 9" in note]
    how = r"signal 9, as when the machine has no memory left"
    assert re.fullmatch(note.format(how, r"Starting it again\."), killed)
    assert max(value for _, value in series(summary.records, "train/logprob_gap_max")) < 1e-4
    assert summary.steps_done == STEPS
    assert all(not record.unscored for record in summary.records)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/nowhere/vllm"], r"`/nowhere/vllm` cannot be started: No such file"),
        ([sys.executable, "-c", "raise SystemExit('no GPU here')"], "no GPU here"),
    ],
)
async def test_a_server_that_does_not_start_ends_the_run_with_its_last_words(command, words, tmp_path):
    hooks = Watching(tmp_path / "run")
    with pytest.raises(OsmosisError, match="ended before it was ready") as caught:
        await trainer(tmp_path / "run", hooks, command).run()
    assert words in str(caught.value)
    assert "engine-server.log" in str(caught.value)


async def test_fewer_gpus_than_servers_are_refused_before_the_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("osmosis_ai.training.runs.trainer.visible_gpus", lambda _environ: ["0", "1"])
    monkeypatch.setattr(
        "osmosis_ai.training.learner.distributed.local_device", lambda _device: torch.device("cuda")
    )
    message = r"This machine has 2 GPUs; the learner and \[advanced\]\.vllm_replicas = 2 need 3\."
    with pytest.raises(OsmosisError, match=message):
        await trainer(tmp_path / "run", TrainingHooks(), standin(), vllm_replicas=2).run()

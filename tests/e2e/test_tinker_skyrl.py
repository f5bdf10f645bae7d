"""Training on a real SkyRL server: on a CPU, with the built-in model, in an environment of Python 3.12.

The environment takes minutes to build. `OSMOSIS_SKYRL_PYTHON` names the interpreter of an existing one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.processes.service import free_port
from osmosis_ai.training.runs.metrics import read_history
from tests.lazily import lazily

pytest.importorskip("tinker")

with lazily("torch"):
    from osmosis_ai.training.engines.tinker_backend import TinkerLearner, TinkerServer
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.runs import trainer as trainer_module
    from tests.e2e.training import trainer
    from tests.training.learner_builders import sample_additions, tiny_learner
    from tests.training.loop_world import Told
    from tests.training.policy_world import MODEL_DIR

pytestmark = pytest.mark.nightly
PACKAGES = ("skyrl[tinker,jax]==0.4.0", "torch==2.9.1", "aiohttp", "psutil")
# SkyRL starts its engine with uv, and looks for uv as its own parent.
UV = """#!/bin/sh
while [ "$1" != "-m" ]; do shift; done
python "$@" &
child=$!
trap 'kill $child' TERM INT
wait $child
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    given = os.environ.get("OSMOSIS_SKYRL_PYTHON")
    if given:
        return Path(given)
    base = shutil.which("python3.12")
    if base is None:
        pytest.skip("SkyRL needs Python 3.12")
    directory = tmp_path_factory.mktemp("skyrl") / "venv"
    subprocess.run([base, "-m", "venv", str(directory)], check=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES]
    subprocess.run(pip, check=True, timeout=1800)
    return directory / "bin" / "python"


class SkyRL:
    """A server that can be killed and started again; its database and checkpoints stay."""

    def __init__(self, python: Path, directory: Path) -> None:
        self._python, self._directory = python, directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "bin").mkdir()
        uv = directory / "bin" / "uv"
        uv.write_text(UV)
        uv.chmod(0o755)

    def start(self) -> None:
        path = f"{self._directory / 'bin'}:{self._python.parent}:{os.environ['PATH']}"
        options = {
            "--base-model": "osmosis/tiny",
            "--base-model-checkpoint-path": str(MODEL_DIR),
            "--backend": "jax",
            "--backend-config": '{"max_lora_adapters": 16, "max_lora_rank": 16, "sample_max_num_sequences": 32}',
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--database-url": f"sqlite:///{self._directory / 'skyrl.db'}",
            "--checkpoints-base": str(self._directory / "checkpoints"),
        }
        arguments = [part for option in options.items() for part in option]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["uv", "run", "-m", "skyrl.tinker.api", *arguments],
                env={**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}/api/v1/get_server_capabilities", timeout=5).raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(1)
        raise AssertionError((self._directory / "server.log").read_text()[-4000:])

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture(scope="module")
def skyrl(python, tmp_path_factory) -> Iterator[SkyRL]:
    server = SkyRL(python, tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def settings_for(server: SkyRL, **changes: Any) -> dict[str, Any]:
    return {
        "backend": "tinker", "tinker_url": server.url, "lr": 3e-3, "rollout_batch_size": 4, "n_samples_per_prompt": 8,
        "max_steps": 4, "checkpoint_save_freq": 2, "eval_interval": 10, "max_prompt_length": 256,
        "max_response_length": 64, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    "objective",
    [{"loss_type": "grpo"}, {"loss_type": "dapo", "importance_cap": 1.5}, {"method": "sft"}],
    ids=str,
)
def test_a_step_on_the_server_has_the_loss_and_the_gradient_of_a_step_here(skyrl, tmp_path, objective):
    groups = sample_additions(tiny_learner().model.eval(), prompts=4, group=8, seed=5)
    samples = [sample for group in groups for sample in group]
    sequences, is_sft = [sample.sequence for sample in samples], objective.get("method") == "sft"
    # One sequence has many more sampled tokens than the others.
    long = sequences[0]
    long.mask[1:], long.versions[1:] = [1] * (len(long.mask) - 1), [0] * (len(long.mask) - 1)
    advantages = [1.0 if is_sft or sample.reward else -1.0 for sample in samples]
    # The same tokens are learned from twice; at a higher rate, Adam would enlarge the difference of rounded gradients.
    settings = TrainingSettings(**settings_for(skyrl, logprob_gap_limit=100.0, lr=1e-4, **objective))
    there = TinkerLearner(TinkerServer(settings, "osmosis/tiny", None), settings, "agreement")
    there.save_adapter(tmp_path / "adapter")
    local = settings.model_copy(update={"backend": "local", "grad_clip": 1e9})
    here = Learner("osmosis/tiny", local, "cpu", adapter=tmp_path / "adapter")

    def scores(learner: Any) -> list[float]:
        return [value for row in learner.logprobs(sequences) for value in row]

    before = scores(here)
    assert scores(there) == pytest.approx(before, abs=1e-4)
    for _ in range(2):
        learned, expected = there.step(sequences, advantages), here.step(sequences, advantages)
        assert learned.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-5)
        assert learned.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)
    after = scores(here)
    change = max(abs(new - old) for new, old in zip(after, before, strict=True))
    assert scores(there) == pytest.approx(after, abs=5e-3 * change)


async def test_a_run_survives_kills_of_the_server_and_of_itself(skyrl, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "LOSS_PAUSE_S", 1.0)

    def rewards(run_dir: Path) -> list[float]:
        records = read_history(run_dir / "metrics.jsonl")
        return [record.metrics["rollout/raw_reward"] for record in records if record.step]

    await trainer(tmp_path / "undisturbed", settings_for(skyrl)).run()
    told = Told()

    def kill(record: Any) -> None:
        if record.step == 3 and "killed" not in told.notes:
            told.notes.append("killed")
            skyrl.kill()
            skyrl.start()

    told.on_step = kill
    first = trainer(tmp_path / "killed", settings_for(skyrl, max_steps=3), told)
    assert (await first.run()).steps_done == 3
    second = trainer(tmp_path / "killed", settings_for(skyrl), told)
    assert (await second.run()).steps_done == 4
    assert rewards(tmp_path / "killed") == pytest.approx(rewards(tmp_path / "undisturbed"), abs=0.15)

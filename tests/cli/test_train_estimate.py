"""`osmosis train estimate`: what a config needs of a GPU, with nothing but what is on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.services import training_estimate
from tests.workspace.builders import make_workspace

CONFIG = "configs/training/big.toml"
MIB, GIB = 2**20, 2**30
EIGHT_B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
Estimate = Callable[..., Any]


@pytest.fixture
def estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Estimate:
    """Estimate a config for a model; return the status and the envelope, or the error."""
    workspace = make_workspace(tmp_path / "workspace")
    monkeypatch.chdir(workspace.root)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def run(model_path: str, *options: str, more: str = "", plain: bool = False) -> Any:
        (workspace.root / CONFIG).write_text(
            '[experiment]\nrollout = "multiply"\nentrypoint = "main.py"\ndataset = "multiply"\n'
            f'model_path = "{model_path}"\n{more}'
        )
        status = main(
            ["train", "estimate", CONFIG, *options, *(["--plain", "--verbose"] if plain else ["--json"])]
        )
        out, err = capsys.readouterr()
        if plain:
            return out
        return json.loads(out)["data"] if status == 0 else json.loads(err.splitlines()[-1])["error"]

    return run


@pytest.fixture(scope="module")
def big_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the configuration of a model of eight billion parameters, and no weights."""
    folder = tmp_path_factory.mktemp("big")
    (folder / "config.json").write_text(json.dumps(EIGHT_B))
    return str(folder)


def test_large_model(estimate: Estimate, big_model: str) -> None:
    found = estimate(big_model, "--gpu", "h100")
    assert found["device"] == {"name": "H100", "bytes": 81559 * MIB}
    assert found["parts_bytes"]["weights"] == pytest.approx(2 * 8.19e9, rel=0.01)
    assert found["total_bytes"] == sum(found["parts_bytes"].values())
    assert found["fits"] is (found["total_bytes"] <= 81559 * MIB)
    assert found["fits_on"]["H100"] is found["fits"] and not found["fits_on"]["A10G"]


def test_sharded_model(estimate: Estimate, big_model: str) -> None:
    short = "[training]\nmax_prompt_length = 256\nmax_response_length = 256\n"
    vllm = (
        f'{short}[advanced]\nmicro_batch_tokens = 512\npolicy_engine = "vllm"\nvllm_url = "http://gpu:8000"\n'
    )
    split = f"{vllm}shard_model = true\nlearner_processes = 4\n"
    alone, shared = (estimate(big_model, "--gpu-memory", "16GB", more=more) for more in (vllm, split))
    assert (alone["fits"], shared["fits"]) == (False, True)
    assert shared["parts_bytes"]["weights"] == alone["parts_bytes"]["weights"] / 4
    lines = estimate(big_model, "--gpu-memory", "16GB", more=split, plain=True)
    assert " on each of 4 GPUs, " in lines and "Gathered layers" in lines
    assert "  needs 15.3 GB more for the weights" in lines
    several = split.replace('"http://gpu:8000"', '["http://gpu:8000", "http://gpu:8001"]')
    lines = estimate(big_model, "--gpu-memory", "16GB", more=several, plain=True)
    assert "  2 servers, each of which needs 15.3 GB more for the weights" in lines
    assert "shard_model with several GPUs" in estimate(
        big_model, "--gpu-memory", "16GB", more=vllm, plain=True
    )


def test_known_models_and_gpus(estimate: Estimate) -> None:
    found = estimate("osmosis/tiny", more="[training]\nlr = 1e-6\n")
    assert found["fits_on"]["L4"] is True and "T4" not in found["fits_on"], "a T4 has no bfloat16"
    assert "hardly changes" in found["warnings"][0]

    error = estimate("fern/base-32b", "--gpu", "H100")
    assert error["code"] == "NOT_FOUND"
    assert error["message"] == "The configuration of 'fern/base-32b' is not on this machine."
    assert "hf download fern/base-32b config.json" in error["hint"]

    for name, known in {"a100": "A100", "A100-80GB": "A100", "rtx4090": "RTX 4090"}.items():
        assert estimate("osmosis/tiny", "--gpu", name)["device"]["name"] == known
    error = estimate("osmosis/tiny", "--gpu", "H1000")
    assert "did you mean H100" in error["hint"]
    assert "mutually exclusive" in estimate("osmosis/tiny", "--gpu", "L4", "--gpu-memory", "8GB")["message"]


def test_cached_model(estimate: Estimate, tmp_path: Path) -> None:
    import huggingface_hub.constants as constants

    snapshot = Path(constants.HF_HUB_CACHE) / "models--fern--base-8b" / "snapshots" / "abc"
    if not snapshot.is_relative_to(tmp_path):  # read when the library was imported
        pytest.MonkeyPatch().setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        snapshot = tmp_path / "hub" / "models--fern--base-8b" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(EIGHT_B))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    assert estimate("fern/base-8b", "--gpu", "H200")["parts_bytes"]["weights"] > 16e9


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80 * GIB), ("24 GiB", 24 * GIB), ("1.5g", 3 * GIB // 2), ("512MB", 512 * MIB)]
)
def test_memory_units(estimate: Estimate, text: str, size: int) -> None:
    assert estimate("osmosis/tiny", "--gpu-memory", text)["device"]["bytes"] == size


def test_the_example_of_the_documentation(estimate: Estimate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(training_estimate, "own_gpu", lambda: ("NVIDIA T4", 15360 * MIB))
    found = estimate("Qwen/Qwen3.6-35B-A3B", "--gpu", "H200")
    model, lora = found["model"], found["model"]["lora"]
    assert (model["source"], model["model_type"], model["engine"]) == ("shipped", "qwen3_5_moe", "vllm")
    assert 34.6e9 < model["parameters"] < 34.7e9
    assert set(lora["target_parameters"]) == {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
    assert "mlp.gate" in lora["left_out"] and "mlp.gate" not in lora["target_modules"]
    assert (found["fits"], found["this_machine"]["fits"]) == (True, False)
    assert found["parts_bytes"]["serving_weights"] == 0, (
        "vLLM, which can sample from it, has a GPU of its own"
    )
    monkeypatch.setattr(training_estimate, "own_gpu", lambda: None)
    problem = estimate("Qwen/Qwen3.6-35B-A3B")["this_machine"]["problem"]
    assert "linear_attention layers" in problem and "Use a GPU with vLLM" in problem
    torch = '[advanced]\npolicy_engine = "torch"\n'
    problem = estimate("Qwen/Qwen3.6-35B-A3B", more=torch)["model"]["problem"]
    assert problem.endswith('Set [advanced].policy_engine = "vllm".')


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "falcon_h1"}, "unknown architecture 'falcon_h1'."),
        (None, "has no config.json."),
        ({"model_type": "qwen3"}, "/config.json) has no hidden_size."),
        ({**EIGHT_B, "num_attention_heads": "32"}, "/config.json) has an invalid num_attention_heads."),
    ],
)
def test_folders(estimate: Estimate, tmp_path: Path, config: dict[str, Any] | None, message: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    told = estimate(str(tmp_path))["message"]
    assert message in told and str(tmp_path) in told


def test_a_relative_folder_is_estimated_with_a_warning(
    estimate: Estimate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path.cwd() / "own/model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(EIGHT_B))
    found = estimate("own/model")
    assert found["model"]["source"] == "folder"
    assert "'own/model' is a folder in the current directory." in found["warnings"][-1]


@pytest.mark.parametrize("answer", ["NVIDIA H200, 143771\n", "No devices were found\n", None])
def test_own_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n" if answer is None else f"#!/bin/sh\nprintf '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(training_estimate, "visible_gpus", lambda: ["0"])
    is_known = answer is not None and "H200" in answer
    assert training_estimate.own_gpu() == (("NVIDIA H200", 143771 * MIB) if is_known else None)

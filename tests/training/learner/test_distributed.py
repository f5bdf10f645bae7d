from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lazily import lazily

with lazily("torch"):
    import torch

    from tests.training.learner_builders import tiny_learner
    from tests.training.torchrun_member import take_steps


ROOT = Path(__file__).parents[3]
NOBODY = "-1"

pytestmark = pytest.mark.e2e


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_two_ranks(output: Path, fails_on: str = NOBODY, shard: str = "whole"):
    """Start two processes as `torchrun` would, and return what rank 0 wrote."""
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.torchrun_member", str(output), fails_on, shard],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for member in members:
            _, errors = member.communicate(timeout=120)
            assert member.returncode == 0, errors
    finally:
        for member in members:
            member.kill()
    return torch.load(output, weights_only=True)


def assert_like_one_process(found) -> None:
    expected = take_steps(tiny_learner(micro_batch_tokens=40))
    assert found["refusal"] == expected["refusal"] == "StepRefusedError"
    for one, other in zip(found["metrics"], expected["metrics"], strict=True):
        for name in ("loss", "grad_norm", "entropy", "tokens", "sequences", "kl_base", "max_abs_logprob_gap"):
            if other[name] is None:
                assert one[name] is None, name
            else:
                assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), name
    # Adam turns a gradient's rounding near zero into a step of up to lr, so single entries may differ.
    for kind in ("adapter", "merged"):
        assert found[kind].keys() == expected[kind].keys()
        for name, tensor in found[kind].items():
            assert float((tensor - expected[kind][name]).abs().mean()) < 1e-6, name
    for ours, theirs in zip(found["logprobs"], expected["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_two_processes_learn_what_one_learns(tmp_path):
    assert_like_one_process(run_two_ranks(tmp_path / "result.pt"))


def test_two_processes_that_hold_half_of_the_frozen_model_each_learn_the_same(tmp_path):
    found = run_two_ranks(tmp_path / "result.pt", shard="shard")
    assert_like_one_process(found)
    whole = sum(p.numel() for p in tiny_learner().model.parameters() if not p.requires_grad)
    assert found["weights_held"] == pytest.approx(whole / 2, rel=0.01)


@pytest.mark.nightly
def test_one_rank_that_runs_out_of_memory_makes_both_try_again(tmp_path):
    found = run_two_ranks(tmp_path / "result.pt", fails_on="1")
    assert found["metrics"][0]["micro_batch_tokens"] == 20
    assert found["metrics"][0]["learned"]

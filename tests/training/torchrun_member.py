"""One rank of a test's learner. Rank 0 takes steps, one of them refused, and writes what came of them."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import asdict

import torch

from osmosis_ai.training.learner.learner import OutOfMemoryError, StepRefusedError
from tests.training.learner_builders import batch_for, tiny_learner


def take_steps(learner) -> dict:
    """Two steps with a refused one between them, then go on from the state after the first."""
    one, two = batch_for(learner, 7, seed=0), batch_for(learner, 5, seed=1)
    first = learner.step(*one)
    state = learner.state_dict()
    try:
        learner.step(one[0], [math.nan] * len(one[0]), policy_version=1)
    except (StepRefusedError, OutOfMemoryError) as error:
        refusal = type(error).__name__
    learner.step(*two, policy_version=1)
    learner.load_state_dict(state)
    last = learner.step(*two, policy_version=1)
    merged = learner.merged_state()
    return {
        "metrics": [asdict(first), asdict(last)],
        "refusal": refusal,
        "adapter": learner.state_dict()["adapter"],
        "merged": merged,
        "logprobs": learner.logprobs(two[0]),
    }


def main(output: str, fails_on: str, shard: str, model: str) -> None:
    # Every other rank has another seed: rank 0's adapter must win.
    seed = int(os.environ["RANK"])
    learner = tiny_learner(model, micro_batch_tokens=40, seed=seed, shard_model=shard == "shard")
    if learner.world.rank == int(fails_on):
        run_out_of_memory_once(learner)
    if learner.world.rank != 0:
        learner.follow()
        return
    result = take_steps(learner) | {"weights_held": weights_held(learner)}
    learner.close()
    torch.save(result, output)


def weights_held(learner) -> int:
    """The numbers of the frozen model that this rank has in memory between two steps."""
    frozen = [p for p in learner.model.parameters() if not p.requires_grad]
    return sum(getattr(p, "_local_tensor", p).numel() for p in frozen)


def run_out_of_memory_once(learner) -> None:
    """Let this rank alone fail in its first pass."""
    passes = learner._passes
    accumulate = passes.accumulate

    def failing(step, *, micro_batch_tokens):
        passes.accumulate = accumulate
        raise torch.OutOfMemoryError("CUDA out of memory")

    passes.accumulate = failing


if __name__ == "__main__":
    main(*sys.argv[1:])

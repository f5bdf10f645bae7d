"""Takes a step in a process whose memory is limited by the kernel, and prints what came of it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from osmosis_ai.training.learner.learner import OutOfMemoryError
from osmosis_ai.training.objective.sequences import TokenSequence
from tests.training.learner_builders import batch_for, tiny_learner

LENGTH, COUNT = 400, 120


def address_space() -> int:
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main(spare_mb: str) -> None:
    learner = tiny_learner(micro_batch_tokens=LENGTH * COUNT, max_response_length=LENGTH)
    learner.step(*batch_for(learner))  # loads what the first step needs
    before = learner.state_dict()["adapter"]
    long = [
        TokenSequence(
            f"r{i}", [7] * LENGTH, [0] + [1] * (LENGTH - 1), [-1.0] * LENGTH, [-1] + [5] * (LENGTH - 1)
        )
        for i in range(COUNT)
    ]
    limit = address_space() + int(spare_mb) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        metrics = learner.step(long, [1.0, -1.0] * (COUNT // 2), policy_version=1)
    except OutOfMemoryError as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        same = all(
            bool((before[name] == after).all()) for name, after in learner.state_dict()["adapter"].items()
        )
        print(f"{error.message} unchanged: {same}")
    else:
        print(f"learned with {metrics.micro_batch_tokens}")


if __name__ == "__main__":
    main(sys.argv[1])

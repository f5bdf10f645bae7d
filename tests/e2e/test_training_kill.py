"""A training run has the same curve after its trainer or rollout server was killed.

Each is killed ``OSMOSIS_KILLS`` times, in a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.e2e.kill_plan import KILLS, seed_of_kills
from tests.e2e.training_kills import Bench, moments, training_bench

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with training_bench(tmp_path_factory.mktemp("training")) as made:
        yield made


def test_killed_trainer(bench: Bench, tmp_path: Path) -> None:
    for number, moment in enumerate(moments(seed_of_kills(), KILLS)):
        print(bench.check_trainer_kill(tmp_path / f"run-{number}", moment))


def test_killed_rollout_server(bench: Bench, tmp_path: Path) -> None:
    for number, moment in enumerate(moments(seed_of_kills(), KILLS)):
        print(bench.check_server_kill(tmp_path / f"run-{number}", moment))

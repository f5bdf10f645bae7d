"""A trainer that ends as a test says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from osmosis_ai.training.runs import trainer
from osmosis_ai.training.runs.loop import Ending
from tests.platform.runs.work.pretended_trainer import PretendedTrainer


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[PretendedTrainer], Ending]], None]:
    """Give the trainer its ending."""
    monkeypatch.setattr(trainer, "Trainer", PretendedTrainer)

    def choose(ending: Callable[[PretendedTrainer], Ending]) -> None:
        monkeypatch.setattr(PretendedTrainer, "ends", ending, raising=False)

    return choose

"""A directory of runs on this machine, filled by a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples
from osmosis_ai.viewer.local.source import LocalSource
from tests.evaluation.recorded_runs import append_records
from tests.viewer.source_contract import leave_validation


class LocalPlace:
    """A directory of runs on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.evals = root / ".osmosis" / "evals"
        self.evals.mkdir(parents=True)
        self.source = LocalSource(root, cache_dir=root / "cache")

    def start(self, name: str, *, rows: int, n: int, records: Sequence[TerminalRecord] = ()) -> None:
        directory = self.evals / name
        directory.mkdir()
        inputs = {"dataset": {"selected_source_rows": f"0-{rows - 1}"}, "n": n, "model_path": "osmosis/tiny"}
        Manifest(name, inputs, {}).write(directory / "manifest.json")
        append_records(directory / "events.jsonl", records)

    def add(self, name: str, records: Sequence[TerminalRecord]) -> None:
        append_records(self.evals / name / "events.jsonl", records)

    def validate(
        self, name: str, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
    ) -> None:
        directory = TrainingDirectory(self.evals / name)
        if not directory.manifest.exists():
            directory.checkpoints.mkdir(parents=True)
            directory.claim({"model_path": "osmosis/tiny"}, {})
            directory.metrics.touch()
        leave_validation(directory, samples, conversations)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path / "place")
    yield place
    place.source.close()

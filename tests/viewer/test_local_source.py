"""The runs of this machine behind the viewer's protocol, whatever their files hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.viewer.local.source import LocalSource
from tests.viewer.source_contract import SourceContract


class LocalPlace:
    """A directory of runs on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.evals = root / ".osmosis" / "evals"
        self.evals.mkdir(parents=True)
        self.source = LocalSource(root, cache_dir=root / "cache")

    def start(self, name: str, *, rows: int, n: int) -> None:
        directory = self.evals / name
        directory.mkdir()
        inputs = {"dataset": {"selected_source_rows": f"0-{rows - 1}"}, "n": n, "model_path": "osmosis/tiny"}
        Manifest.new(name, inputs, {}).write(directory / "manifest.json")
        (directory / "events.jsonl").touch()

    def add(self, name: str, records: Sequence[TerminalRecord]) -> None:
        with (self.evals / name / "events.jsonl").open("ab") as journal:
            journal.write(b"".join(record.to_line() for record in records))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path_factory.mktemp("runs"))
    yield place
    place.source.close()


class TestLocalSource(SourceContract):
    @pytest.fixture
    def place(self, shared: LocalPlace) -> LocalPlace:
        return shared

"""Run directories as 0.3.10 wrote them: whatever is added to records, these are read, shown and continued."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.metrics_models import Estimates
from osmosis_ai.evaluation.result_words import number_lines
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.services.eval_runs.watch import RunWatcher
from tests.evaluation.test_runner import World
from tests.standin_model import StandInModel

RUNS = Path(__file__).parent / "runs_0_3_10"


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS / "evals", tmp_path / "evals"))


def test_their_records_and_manifests_are_read_and_lack_what_nobody_knew_then(evals: Path) -> None:
    records = [entry.record for entry in replay(evals / "finished" / "events.jsonl")]
    assert [(each.row_index, each.status, each.error_type) for each in records] == [
        (1, "failed", "agent_error"),
        (0, "success", None),
        (2, "skipped", None),
        (3, "success", None),
    ]
    assert all(each.category is each.row_digest is each.lost_attempts is None for each in records)
    assert Manifest.load(evals / "finished" / "manifest.json").grader_digest is None


def test_they_are_watched_with_their_numbers(evals: Path) -> None:
    finished = RunWatcher(evals / "finished").look()
    assert (finished.status, finished.progress.completed, finished.progress.failed) == ("finished", 4, 1)
    partial = RunWatcher(evals / "partial").look()
    assert (partial.status, partial.progress.completed, partial.progress.total) == ("incomplete", 1, 4)


def test_their_latencies_say_over_which_attempts_they_are_for_nobody_wrote_over_how_many(evals: Path) -> None:
    estimates = Estimates.read(json.loads((evals / "finished" / "metrics.json").read_text())["estimates"])
    assert estimates is not None
    over = [line.over for line in number_lines(estimates) if "p90" in line.over]
    assert [each.rpartition(" · ")[2] for each in over] == [
        "over attempts that ended",
        "over attempts that called the model",
    ]


class OldWorld(World):
    """The rollout and rows that the kept runs were made of."""

    def __init__(self, root: Path, model: StandInModel) -> None:
        super().__init__(root, model)
        shutil.copy(RUNS / "main.py.txt", self.rollout_dir / "main.py")
        shutil.copy(RUNS / "rows.jsonl", self.rows)
        shutil.copytree(RUNS / "evals", root / "evals")
        for manifest in (root / "evals").glob("*/manifest.json"):
            # Limits of 20 and 5 s, which a busy machine would exceed.
            limits = {"agent_timeout_sec": 20.0, "grader_timeout_sec": 5.0}
            text = manifest.read_text()
            for name, seconds in limits.items():
                assert f'"{name}": {seconds}' in text
                text = text.replace(f'"{name}": {seconds}', f'"{name}": 600.0')
            manifest.write_text(text)


@pytest.fixture
async def old_world(tmp_path: Path) -> AsyncIterator[OldWorld]:
    async with StandInModel() as model:
        yield OldWorld(tmp_path, model)


@pytest.mark.e2e
async def test_a_partial_one_is_continued_and_its_finished_rows_are_kept(old_world: OldWorld) -> None:
    directory = RunDirectory(old_world.root / "evals" / "partial")
    before = directory.events.read_bytes()
    summary = await old_world.run(options={"name": "partial"})
    assert (summary.resumed, summary.dispatched, summary.pending) == (1, 3, 0)
    assert any("1 result has no digest" in note for note in old_world.hooks.notes)
    assert directory.events.read_bytes().startswith(before)
    records = [entry.record for entry in replay(directory.events)]
    assert [(each.row_index, each.status) for each in sorted(records, key=lambda each: each.row_index)] == [
        (0, "success"),
        (1, "failed"),
        (2, "skipped"),
        (3, "success"),
    ]
    assert [each.row_digest is None for each in records] == [True, False, False, False]
    index = [json.loads(line) for line in directory.index.read_text().splitlines()]
    assert [entry["row_index"] for entry in index] == [0, 1, 2, 3]


@pytest.mark.e2e
async def test_a_finished_one_is_exported_again_as_it_was(old_world: OldWorld) -> None:
    directory = RunDirectory(old_world.root / "evals" / "finished")
    before = json.loads(directory.metrics.read_text())["summary"]
    lines = [{**json.loads(line), "resumed": True} for line in directory.index.read_text().splitlines()]
    directory.metrics.unlink()
    directory.index.unlink()
    summary = await old_world.run(options={"name": "finished"})
    assert (summary.resumed, summary.dispatched) == (4, 0)
    assert json.loads(directory.metrics.read_text())["summary"] == before
    assert [json.loads(line) for line in directory.index.read_text().splitlines()] == lines

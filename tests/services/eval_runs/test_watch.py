from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_lock import RunLock
from osmosis_ai.services.eval_runs.info import RunWatcher
from osmosis_ai.services.runs.lifecycle import watch_run
from tests.evaluation.builders import inputs, record
from tests.evaluation.recorded_runs import append_records, journal_of
from tests.workspace.builders import make_workspace


def write(run_dir: Path, *records: TerminalRecord) -> None:
    append_records(run_dir / "events.jsonl", records)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of three rows and two attempts that has just begun."""
    workspace = make_workspace(tmp_path / "workspace")
    directory = workspace.evals_dir / "mine"
    Manifest.new("mine", inputs(rows="0-2", n=2), {}).write(directory / "manifest.json")
    return directory


def test_watching_follows_the_journal_until_the_lock_is_free(run_dir: Path) -> None:
    seen = []
    lock = RunLock(run_dir.parent, "mine")
    lock.__enter__()
    moments = iter(
        [
            lambda: write(run_dir, record(0, 0), record(0, 1, reward=0.0)),
            lambda: write(run_dir, record(1, 0, status="failed", reward=None)),
            lambda: write(run_dir, *(record(row, run) for row, run in ((1, 1), (2, 0), (2, 1)))),
            lambda: lock.__exit__(None, None, None),
        ]
    )
    watcher = RunWatcher(run_dir)
    looks = watch_run(watcher.look, pause=lambda: next(moments)(), tell=pytest.fail)
    for state in looks:
        seen.append((state.status, state.progress.completed, state.progress.failed))

    assert seen == [
        ("running", 0, 0),
        ("running", 2, 0),
        ("running", 3, 1),
        ("running", 6, 1),
        ("finished", 6, 1),
    ]
    progress = watcher.look().progress
    assert (progress.scored, progress.passed, progress.tokens) == (5, 4, 42)


def test_a_half_written_line_is_read_when_it_is_whole(run_dir: Path) -> None:
    line = journal_of([record(0, 0)])
    (run_dir / "events.jsonl").write_bytes(line[:20])
    watcher = RunWatcher(run_dir)
    assert watcher.look().progress.completed == 0
    (run_dir / "events.jsonl").write_bytes(line)
    assert watcher.look().progress.completed == 1


def test_a_run_nobody_works_on_is_incomplete(run_dir: Path) -> None:
    write(run_dir, record(0, 0))
    (run_dir / "metrics.json").write_text(
        json.dumps({"eval_run": {"status": "running"}, "summary": {"pass_threshold": 2.0}})
    )
    seen = RunWatcher(run_dir).look()
    assert (seen.status, seen.progress.completed, seen.progress.total) == ("incomplete", 1, 6)
    assert seen.progress.passed == 0  # the run's own threshold decides

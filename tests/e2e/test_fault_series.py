"""The series of faults of ``scripts/nightly_workers.py``: that it sees what should not be, and once for real."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def scripts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.fixture
def watch(tmp_path: Path) -> Any:
    """A run of two samples under way, both of which the platform has accepted."""
    from nightly.verdicts import RowOfRun, RunWatch, Verdicts

    run: Any = SimpleNamespace(id="run_1", name="a", results=tmp_path)
    watch = RunWatch(run, Verdicts())
    watch.last_kind = "worker"
    watch.update(RowOfRun("running", 1, None, {(0, 0): "one", (1, 0): "two"}))
    return watch


def test_each_kind_falls_as_often_as_asked_and_a_seed_repeats_the_order() -> None:
    from nightly.faults import OWNER_LOST, plan

    counts = {"worker": 20, "s3": 5, "two-cut": 10}
    faults = plan(counts, random.Random(7))
    assert Counter(fault.kind for fault in faults) == counts
    assert faults == plan(counts, random.Random(7)) != plan(counts, random.Random(8))
    assert any(fault.rides for fault in faults)
    for former, later in pairwise(faults):
        assert not (later.rides and {former.kind, later.kind} <= OWNER_LOST), "a run may be given up then"


def test_an_accepted_record_that_is_gone_or_was_made_again_is_a_lost_one(watch: Any) -> None:
    from nightly.verdicts import RowOfRun

    watch.update(RowOfRun("running", 2, None, {(0, 0): "one", (1, 0): "two", (2, 0): "three"}))
    assert watch._verdicts.violations == []
    watch.update(RowOfRun("running", 2, None, {(0, 0): "one", (1, 0): "another"}))
    assert watch._verdicts.of("worker").lost == 2
    assert "2 accepted records are lost or others" in watch._verdicts.violations[0]


def test_a_sample_that_stands_twice_in_a_journal_is_a_doubled_one(watch: Any, tmp_path: Path) -> None:
    lines = '{"row_index":0,"run_index":0}\n{"row_index":1,"run_index":0}\n'
    (tmp_path / "events.jsonl").write_text(lines + lines.splitlines()[0] + "\n")
    watch.compare_journal(2)
    assert (watch._verdicts.of("worker").doubled, len(watch._verdicts.violations)) == (1, 1)
    (tmp_path / "events.jsonl").write_text(lines.splitlines()[0] + "\n")
    watch.compare_journal(2)
    assert "its journal has 1 of 2 samples" in watch._verdicts.violations[-1]


def test_a_sample_without_its_conversation_is_held_against_a_run(watch: Any, tmp_path: Path) -> None:
    calm: Any = SimpleNamespace(results=tmp_path / "calm")
    said = '{"steps":[],"extra":{"osmosis":{"reward":1,"label":"6"}},"final_metrics":{}}'
    for results, names in ((tmp_path, ["row_0_run_0"]), (calm.results, ["row_0_run_0", "row_1_run_0"])):
        (results / "trajectories").mkdir(parents=True)
        for name in names:
            (results / "trajectories" / f"{name}.json").write_text(said)
    watch._compare_conversations(calm)
    (found,) = watch._verdicts.violations
    assert "1 samples have no conversation" in found and "row_1_run_0" in found


@pytest.mark.nightly
def test_one_fault_of_each_cheap_kind_in_a_short_run_changes_nothing() -> None:
    words = [
        "--seed",
        "1",
        "--faults",
        "worker=1,server=1,s3=1,half-cut=1",
        "--rows",
        "20",
        "--slack-s",
        "60",
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "nightly_workers.py"), *words],
        cwd=SCRIPTS.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VIOLATION" not in done.stdout + done.stderr
    assert "half-cut" in done.stdout.partition("slowest takeover")[2]

"""Numbers of local runs whose files change."""

from __future__ import annotations

import os
from pathlib import Path

from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import SampleQuery
from tests.viewer.conftest import LocalPlace
from tests.viewer.source_contract import sample_record


def test_metrics_of_a_part_of_the_journal(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0)])
    run = RunDirectory(local.evals / "run")
    metrics = read_local_results(run.path).metrics
    run.write_results({}, metrics, journal_bytes=run.events.stat().st_size)
    local.add("run", [sample_record(1, 0, 1.0)])

    def scored() -> int | None:
        # As a copy leaves them: all files of one moment.
        for file in filter(Path.exists, (run.metrics, run.events)):
            os.utime(file, (10, 10))
        headline = LocalSource(local.root, cache_dir=local.root / "none").run("eval", "run").summary.headline
        return headline.scored if headline is not None else None

    assert scored() == 2
    # Killed while more was being counted.
    run.write_results({"status": "running"}, metrics)
    assert scored() == 2
    # Or the copy of one whose last session was killed: nothing says that these are of the whole journal.
    run.write_results({"status": "finished"}, metrics)
    assert scored() == 2
    # Without a journal they are all there is.
    run.events.unlink()
    assert scored() == 1


def test_counts_follow_a_journal_that_was_replaced_by_one_of_its_length(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0)])
    before = local.source.samples("run", SampleQuery(), limit=5)
    journal = RunDirectory(local.evals / "run").events
    size = journal.stat().st_size
    while size != len(journal.read_bytes()) or b'"reward":0.0' not in journal.read_bytes():
        journal.unlink()
        local.add("run", [sample_record(0, 0, 0.0)])  # its checksum has one digit more or less
    after = local.source.samples("run", SampleQuery(), limit=5)
    assert (before.counts["passed"], after.counts["passed"]) == (1, 0)

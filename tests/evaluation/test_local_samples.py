from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.evaluation.journal_chain import opened
from osmosis_ai.evaluation.local_samples import read_local_samples
from osmosis_ai.evaluation.record import TerminalRecord
from tests.evaluation.comparison.builders import write_journalled_run
from tests.evaluation.recorded_runs import append_records


def test_a_run_directory_gives_its_rows_its_attempts_and_what_it_was_computed_from(tmp_path: Path) -> None:
    run = read_local_samples(
        write_journalled_run(
            tmp_path / "fox",
            [[1.0, 0.0], [None, 1.0]],
            provenance={"git_head": "c" * 40, "git_dirty": True, "dataset_name": "multiply"},
            grader_digest="9" * 64,
        )
    )
    assert (run.name, run.place, run.status, run.unfinished) == ("fox", "local", "finished", None)
    assert run.row_keys == (f"{0:032x}", f"{1:032x}")
    assert run.keyed_by == "row_digest"
    assert run.samples["row"].tolist() == [0, 0, 1, 1]
    assert run.samples["attempt"].tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(run.samples["reward"], [1.0, 0.0, np.nan, 1.0])
    assert run.scored.tolist() == [True, True, False, True]
    assert run.passed.tolist() == [True, False, False, True]
    assert run.inputs.model == "osmosis/tiny"
    assert (run.inputs.dataset_name, run.inputs.dataset_sha256) == ("multiply", "d" * 64)
    assert (run.inputs.commit, run.inputs.dirty, run.inputs.grader_digest) == ("c" * 40, True, "9" * 64)
    assert (run.inputs.n, run.inputs.seed, run.inputs.selected_rows) == (2, 0, "0-1")


def test_copies_of_a_row_are_one_row_with_the_attempts_of_all(tmp_path: Path) -> None:
    run = read_local_samples(
        write_journalled_run(tmp_path / "fox", [[1.0], [0.0], [1.0]], digests=["a" * 32, "b" * 32, "a" * 32])
    )
    assert run.row_keys == ("a" * 32, "b" * 32)
    assert run.source_rows.tolist() == [0, 1]
    assert run.samples["row"].tolist() == [0, 0, 1]
    assert run.samples["reward"].tolist() == [1.0, 1.0, 0.0]
    assert run.planned == 3


def test_a_torn_last_line_is_an_attempt_that_is_pending(tmp_path: Path) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0], [0.0]])
    journal = directory / "events.jsonl"
    journal.write_bytes(journal.read_bytes()[:-5])
    run = read_local_samples(directory)
    assert run.status == "incomplete"
    assert run.unfinished is not None and "1 of 2 attempts are pending" in run.unfinished
    assert run.samples.size == 1


def test_a_retried_attempt_counts_once_as_it_ended_last(tmp_path: Path) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0], [0.0]])
    journal = directory / "events.jsonl"
    append_records(journal, [TerminalRecord(1, 0, "again", "success", 1, reward=1.0, row_digest=f"{1:032x}")])
    run = read_local_samples(directory)
    assert run.samples["reward"].tolist() == [1.0, 1.0]
    assert np.isnan(run.samples["cost_usd"][1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((b'"reward":0.0', b'"reward":1.0'), "line 2"),
        ((b'"row_index":1', b'"row_index":7'), "not part of the run"),
        ((b'"reward":0.0', b'"reward":1e999'), "infinity"),
        ((b'"reward":0.0', b'"reward":true'), "`reward` cannot be True"),
    ],
)
def test_a_damaged_journal_is_refused_with_the_place(
    tmp_path: Path, change: tuple[bytes, bytes], said: str
) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0], [0.0]])
    journal = directory / "events.jsonl"
    before, after = change
    assert before in journal.read_bytes()
    journal.write_bytes(journal.read_bytes().replace(before, after))
    with pytest.raises(JournalCorruptionError, match=said):
        read_local_samples(directory)


def test_a_run_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]])
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 2}))
    with pytest.raises(OsmosisError, match="schema version 2; this release knows 1"):
        read_local_samples(directory)


@pytest.mark.parametrize(
    "inputs",
    [
        {"n": "four"},
        {"dataset": {}},
        {"dataset": {"selected_source_rows": "0-x"}},
        {"dataset": {"selected_source_rows": "0-99999999999"}},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, inputs: dict[str, object]) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]], inputs=inputs)
    with pytest.raises(OsmosisError, match="does not tell which rows"):
        read_local_samples(directory)


def test_a_journal_without_digests_is_refused(tmp_path: Path) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]])
    journal = directory / "events.jsonl"
    journal.write_bytes(opened(journal.read_bytes())[0])
    with pytest.raises(JournalCorruptionError, match="damaged at line 1: it has no digest"):
        read_local_samples(directory)


def test_a_result_without_a_row_digest_is_refused(tmp_path: Path) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]], digests=[None])
    with pytest.raises(JournalCorruptionError, match="damaged at line 1: no `row_digest`"):
        read_local_samples(directory)

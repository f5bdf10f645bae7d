"""The numbers of one run by the values of a column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.comparison.run_samples import CountsOnly, RunSamples, run_slices
from tests.evaluation.comparison.builders import run_of


def sliced(tmp_path: Path, rewards: list[list[float | None]], values: list[str | None]) -> RunSamples:
    """Return a run on a dataset whose rows have these values of `topic`, and their number in their metadata."""
    dataset = tmp_path / "data.jsonl"
    rows = [{"user_prompt": f"{n}", "topic": value, "metadata": {"n": n}} for n, value in enumerate(values)]
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_of(rewards, open_dataset=lambda: dataset)


def test_every_value_has_its_rows_and_their_scored_attempts(tmp_path: Path) -> None:
    rewards: list[list[float | None]] = [[1.0, 1.0], [0.0, 1.0], [0.0, None], [1.0, 0.0], [None, None]]
    run = sliced(tmp_path, rewards, ["b", "a", "b", None, "c"])
    found = run_slices(run, ["topic", "topic"])
    assert [(each.value, each.rows) for each in found] == [("a", 1), ("b", 2), ("c", 1), (None, 1)]
    rates = [each.pass_rate.value if each.pass_rate else None for each in found]
    assert rates == [0.5, 0.5, None, 0.5]
    b = found[1].pass_rate
    assert b is not None and (b.n, b.clusters) == (3, 2)
    assert found[2].data()["reward"]["reason"] == "nothing to compare"


def test_columns_come_as_asked_and_a_key_of_the_metadata_is_one(tmp_path: Path) -> None:
    run = sliced(tmp_path, [[1.0], [0.0]], ["x", "x"])
    assert [(each.column, each.value) for each in run_slices(run, ["n", "topic"])] == [
        ("n", "0"),
        ("n", "1"),
        ("topic", "x"),
    ]


def test_a_run_without_a_result_has_slices_without_numbers(tmp_path: Path) -> None:
    (found,) = run_slices(sliced(tmp_path, [[None]], ["x"]), ["topic"])
    assert (found.rows, found.reward, found.pass_rate) == (1, None, None)


def test_what_can_not_be_sliced_is_said(tmp_path: Path) -> None:
    run = sliced(tmp_path, [[1.0]] * 60, [f"{n}" for n in range(60)])
    with pytest.raises(OsmosisError, match="more than 50 values"):
        run_slices(run, ["topic"])
    with pytest.raises(OsmosisError, match="has no column 'topik'"):
        run_slices(run, ["topik"])
    counts = run_of([], summary=CountsOnly(rows=5))
    with pytest.raises(OsmosisError, match="does not tell the attempts"):
        run_slices(counts, ["topic"])
    assert run_slices(counts, []) == ()

from __future__ import annotations

import tracemalloc

import pytest

from osmosis_ai.datasets import DatasetRow, row_digest
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.row_copies import RowCopies


def row(index: int, text: str) -> DatasetRow:
    return DatasetRow(index, [{"role": "user", "content": text}], "ok", None)


def test_a_rows_cluster_is_the_first_row_that_it_is_a_copy_of() -> None:
    copies = RowCopies.of(row(index, text) for index, text in enumerate("abacab"))
    assert list(copies.clusters()) == [0, 1, 0, 3, 0, 1]
    assert copies.count == 3


def test_a_row_that_is_not_known_is_a_copy_of_none() -> None:
    copies = RowCopies(4)
    copies.note(1, row_digest(row(0, "a")))
    copies.note(3, row_digest(row(9, "a")))
    assert list(copies.clusters()) == [0, 1, 2, 1]
    assert copies.count == 1


def test_no_rows_have_no_copies() -> None:
    assert (list(RowCopies(0).clusters()), RowCopies(0).count) == ([], 0)


def test_copies_make_no_interval_narrower() -> None:
    texts = [f"row {number}" for number in range(30)]
    rewards = [float(number % 3 > 0) for number in range(30)]
    alone = MetricsAccumulator(30, 1, clusters=RowCopies.of(map(row, range(30), texts)).clusters())
    tripled = MetricsAccumulator(90, 1, clusters=RowCopies.of(map(row, range(90), texts * 3)).clusters())
    for number, reward in enumerate(rewards):
        alone.add(number, 0, "success", reward)
    for number, reward in enumerate(rewards * 3):
        tripled.add(number, 0, "success", reward)
    one, three = alone.summary().estimates, tripled.summary().estimates
    assert one.pass_rate is not None and three.pass_rate is not None
    assert three.pass_rate.clusters == 30
    assert three.pass_rate.high - three.pass_rate.low >= 0.99 * (one.pass_rate.high - one.pass_rate.low)
    assert three.counts.copies == 60
    assert any("60 of 90 rows are copies of another" in warning for warning in three.warnings)


@pytest.mark.integration
def test_what_is_remembered_of_a_row_is_a_few_bytes() -> None:
    tracemalloc.start()
    copies = RowCopies.of(row(index, f"row {index % 18_000}") for index in range(20_000))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copies.count == 2_000
    assert kept < 20_000 * 20

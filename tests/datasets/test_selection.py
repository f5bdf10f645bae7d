from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.datasets import Selection, file_digest, sample_rows, select_rows
from osmosis_ai.errors import OsmosisError


def test_without_a_limit_all_rows_are_taken_at_no_cost() -> None:
    selection = select_rows(10**12, limit=None, rows=None)
    assert selection.indices == range(10**12)
    assert len(selection) == 10**12
    assert selection.describe() == f"0-{10**12 - 1}"


@pytest.mark.parametrize("limit, taken", [(0, 10), (3, 3), (10, 10), (99, 10)])
def test_a_limit_takes_the_first_rows(limit: int, taken: int) -> None:
    assert select_rows(10, limit=limit, rows=None).indices == range(taken)


def test_rows_override_the_limit_and_come_sorted_and_once() -> None:
    selection = select_rows(30, limit=1, rows=" 7, 3,10-12,11 - 14 ,7")
    assert list(selection) == [3, 7, 10, 11, 12, 13, 14]
    assert selection.describe() == "3,7,10-14"
    assert selection.total_rows == 30


@pytest.mark.parametrize("rows", ["", "a", "1,,2", "1-", "-1", "1-2-3", "1.5", "٣", "9" * 5000])
def test_rows_that_cannot_be_read_are_refused(rows: str) -> None:
    with pytest.raises(OsmosisError, match="as in '3,7,10-20'"):
        select_rows(30, limit=None, rows=rows)


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(OsmosisError, match="'9-3' in rows '1,9-3' ends before it starts"):
        select_rows(30, limit=None, rows="1,9-3")


@pytest.mark.parametrize(
    "total, held", [(30, "the file has rows 0-29"), (1, "the file has rows 0-0"), (0, "no rows")]
)
def test_a_row_beyond_the_file_is_refused(total: int, held: str) -> None:
    with pytest.raises(OsmosisError, match=f"row 30 in rows '30' is out of range: .*{held}"):
        select_rows(total, limit=None, rows="30")


def test_a_huge_range_is_refused_before_it_is_built() -> None:
    with pytest.raises(OsmosisError, match="out of range"):
        select_rows(30, limit=None, rows="0-999999999999999999")


def test_no_rows_describe_as_nothing() -> None:
    assert select_rows(0, limit=None, rows=None).describe() == ""
    assert Selection((), 0).describe() == ""


@given(st.sets(st.integers(0, 200), min_size=1))
def test_a_description_selects_the_same_rows_again(rows: set[int]) -> None:
    text = Selection(tuple(sorted(rows)), 201).describe()
    again = select_rows(201, limit=None, rows=text)
    assert list(again) == sorted(rows)
    assert again.describe() == text


@pytest.mark.parametrize("total, drawn", [(1, 1), (4, 1), (15, 2), (200, 20), (0, 0)])
def test_a_tenth_of_the_rows_is_at_least_one(total: int, drawn: int) -> None:
    assert len(sample_rows(total, fraction=0.1, seed=0)) == drawn


def test_a_seed_draws_the_same_rows_on_every_machine() -> None:
    assert sample_rows(200, fraction=0.05, seed=0).indices == (10, 66, 77, 98, 103, 107, 122, 124, 130, 194)
    assert sample_rows(200, fraction=0.05, seed=1) != sample_rows(200, fraction=0.05, seed=0)


@given(st.integers(1, 500), st.floats(0.001, 1), st.integers())
def test_drawn_rows_are_sorted_distinct_and_in_the_file(total: int, fraction: float, seed: int) -> None:
    rows = list(sample_rows(total, fraction=fraction, seed=seed))
    assert rows == sorted(set(rows))
    assert rows[0] >= 0 and rows[-1] < total


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan"), float("inf")])
def test_a_fraction_outside_zero_to_one_is_refused(fraction: float) -> None:
    with pytest.raises(OsmosisError, match="above 0 and at most 1"):
        sample_rows(10, fraction=fraction, seed=0)


def test_a_digest_is_the_sha256_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)
    assert file_digest(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()

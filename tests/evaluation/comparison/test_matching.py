from __future__ import annotations

from osmosis_ai.evaluation.comparison.run_pairs import match_rows
from tests.evaluation.comparison.builders import run_of


def test_rows_match_by_what_they_are_and_not_by_where_they_stand() -> None:
    matched = match_rows(
        run_of([[1.0]] * 3, keys=["a", "b", "c"]), run_of([[0.0]] * 4, keys=["c", "x", "a", "y"])
    )
    assert matched.index_a.tolist() == [0, 2]
    assert matched.index_b.tolist() == [2, 0]
    assert (matched.only_a.tolist(), matched.only_b.tolist()) == ([1], [1, 3])
    assert matched.words == "2 rows are in both runs, of 3 and 4"
    assert matched.share == 2 / 3

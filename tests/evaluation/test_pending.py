from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.datasets import select_rows
from osmosis_ai.driving.attempts import attempt_seeds, call_seed
from osmosis_ai.driving.dispatcher import choose_limit
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.ledger import Ledger
from osmosis_ai.evaluation.pending import pending_attempts, selected_rows


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"user_prompt": f"say {row}", "ground_truth": str(row)}) for row in range(10)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_work_comes_by_row_then_by_attempt_and_skips_what_is_done(rows: Path) -> None:
    ledger = Ledger(3, 2)
    ledger.settle(0, 1, "success", 0)
    ledger.settle(1, 0, "success", 0)
    ledger.settle(1, 1, "failed", 0)
    selection = select_rows(10, limit=None, rows="2,5,9")
    items = [
        (item.row_index, item.row.source_row_index, item.run_index)
        for item in pending_attempts(selected_rows(rows, selection), ledger, 7)
    ]
    assert items == [(0, 2, 0), (2, 9, 0), (2, 9, 1)]


def test_a_bad_row_behind_the_last_selected_one_does_no_harm(rows: Path) -> None:
    with rows.open("a") as out:
        out.write("not json\n")
    found = list(selected_rows(rows, select_rows(11, limit=4, rows=None)))
    assert [index for index, _ in found] == [0, 1, 2, 3]


def test_a_file_that_became_shorter_is_noticed(rows: Path) -> None:
    with pytest.raises(OsmosisError, match="has no row 10 any more"):
        list(selected_rows(rows, select_rows(12, limit=None, rows=None)))


def test_every_model_call_of_a_run_has_a_seed_of_its_own_that_never_changes() -> None:
    seeds = {
        call_seed(run, row, attempt, call)
        for run in range(3)
        for row in range(5)
        for attempt in range(4)
        for call in range(3)
    }
    assert len(seeds) == 3 * 5 * 4 * 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert call_seed(7, 3, 1, 0) == 2011495658
    assert attempt_seeds(7, 3, 1)(2) == call_seed(7, 3, 1, 2)


@pytest.mark.parametrize(
    ("option", "config", "capacity", "limit"),
    [
        (None, None, None, 32),
        (None, None, 4, 4),
        (None, 16, None, 16),
        (None, 16, 4, 4),
        (8, 16, None, 8),
        (8, 16, 4, 4),
        (500, None, None, 500),
        (2, None, 100, 2),
    ],
)
def test_the_option_wins_over_the_config_and_the_server_bounds_both(
    option: int | None, config: int | None, capacity: int | None, limit: int
) -> None:
    assert choose_limit(max_in_flight=option, batch_size=config, capacity=capacity) == limit

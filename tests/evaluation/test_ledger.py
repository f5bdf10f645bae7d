from __future__ import annotations

from osmosis_ai.evaluation.ledger import Ledger


def test_everything_is_open_at_first() -> None:
    ledger = Ledger(3, 2)
    assert (len(ledger), ledger.open_count, ledger.unrecorded_count) == (6, 6, 6)
    assert list(ledger.recorded()) == []


def test_a_settled_item_is_no_longer_open_and_its_record_is_found() -> None:
    ledger = Ledger(3, 2)
    ledger.settle(1, 0, "success", 40)
    ledger.settle(0, 1, "failed", 80)
    assert not ledger.is_open(1, 0)
    assert ledger.row_is_open(1)
    assert list(ledger.recorded()) == [(0, 1, 80), (1, 0, 40)]
    assert list(ledger.recorded("failed")) == [(0, 1, 80)]
    assert (ledger.count("success"), ledger.count("failed"), ledger.count("skipped")) == (1, 1, 0)


def test_the_latest_record_of_an_item_wins() -> None:
    ledger = Ledger(1, 1)
    ledger.settle(0, 0, "failed", 0)
    ledger.settle(0, 0, "success", 99)
    assert ledger.offset(0, 0) == 99
    assert (ledger.count("failed"), ledger.count("success")) == (0, 1)


def test_reopening_asks_again_for_failed_and_skipped_items_whose_records_stand_meanwhile() -> None:
    ledger = Ledger(4, 1)
    for row, status in enumerate(("success", "failed", "skipped")):
        ledger.settle(row, 0, status, row)  # type: ignore[arg-type]
    ledger.reopen_failed()
    assert [ledger.is_open(row, 0) for row in range(4)] == [False, True, True, True]
    assert (ledger.open_count, ledger.unrecorded_count, ledger.count("failed")) == (3, 1, 1)


def test_items_outside_the_run_are_not_held() -> None:
    ledger = Ledger(2, 2)
    assert ledger.holds(1, 1)
    assert not ledger.holds(2, 0)
    assert not ledger.holds(0, 2)
    assert not ledger.holds(-1, 0)


def test_a_run_of_some_items_only_knows_no_others() -> None:
    ledger = Ledger(3, 2, only=[(1, 0), (2, 1)])
    assert (len(ledger), ledger.open_count, ledger.unrecorded_count) == (2, 2, 2)
    assert ledger.holds(2, 1) and not ledger.holds(2, 0) and not ledger.row_is_open(0)
    ledger.settle(1, 0, "failed", 7)
    ledger.reopen_failed()
    assert (ledger.open_count, list(ledger.recorded())) == (2, [(1, 0, 7)])

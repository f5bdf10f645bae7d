"""Verdicts are seldom wrong: a small part of the cells of `scripts/interval_coverage.py`."""

from __future__ import annotations

import pytest
from scripts.interval_coverage import VERDICT_CELLS, VerdictCell, verdict_share

pytestmark = pytest.mark.integration

REPLICATIONS = 150


@pytest.mark.parametrize(
    "cell", [each for each in VERDICT_CELLS if each.rows * each.attempts < 3500], ids=str
)
def test_a_verdict_is_wrong_in_one_of_twenty_at_most_and_found_as_often_as_expected(
    cell: VerdictCell,
) -> None:
    share = verdict_share(cell, REPLICATIONS)
    assert cell.as_expected(share, REPLICATIONS), f"{share:.3f}"

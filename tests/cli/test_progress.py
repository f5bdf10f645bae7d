from __future__ import annotations

from osmosis_ai.cli.output.formats import amount
from osmosis_ai.cli.output.progress import LineProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_with_each_tenth_and_when_it_was_quiet_for_half_a_minute() -> None:
    clock, said = Clock(), list[str]()
    progress = LineProgress(said.append, "Evaluating", total=400, unit="samples", clock=clock)
    for done in (1, 39, 40, 41, 79, 160):
        progress.update(done)
    assert said == ["Evaluating: 40/400 samples (10%)", "Evaluating: 160/400 samples (40%)"]
    clock.now = 29.0
    progress.update(161)
    clock.now = 31.0
    progress.update(162, note="reward 0.4")
    assert said[2:] == ["Evaluating: 162/400 samples (40%) reward 0.4"]


def test_a_line_is_one_whatever_it_names() -> None:
    said = list[str]()
    LineProgress(said.append, "Fetching a\nb", total=10, unit="rows").update(10, note="waits\nfor \x1b[2J")
    assert said == ["Fetching a b: 10/10 rows (100%) waits for \\x1b[2J"]


def test_the_last_state_is_said_even_when_it_stopped_in_between() -> None:
    said = list[str]()
    progress = LineProgress(said.append, "Reading", total=1000, unit="bytes")
    progress.update(550)
    progress.update(560)
    progress.finish()
    progress.finish()
    assert said == ["Reading: 550 B of 1000 B (55%)", "Reading: 560 B of 1000 B (56%)"]


def test_without_a_total_only_quiet_brings_a_line_until_it_is_known() -> None:
    said = list[str]()
    progress = LineProgress(said.append, "Counting", total=None, unit="rows")
    progress.update(10)
    assert said == []
    progress.update(20, total=40)
    assert said == ["Counting: 20/40 rows (50%)"]


def test_amounts_are_counts_or_sizes() -> None:
    assert amount(1200, None, "rows") == "1,200 rows"
    assert amount(1536, 3 * 1024**3, "bytes") == "1.5 KB of 3.0 GB"
    assert amount(1536, None, "bytes") == "1.5 KB"
    assert amount(3, 4, "") == "3/4"

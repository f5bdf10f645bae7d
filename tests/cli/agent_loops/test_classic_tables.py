"""What people see of a run's end and of the numbers, on a terminal that draws."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.cli.agent_loops.classic_run import ClassicRun, run_line
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.evaluation.agent_loop.results import ClassicSettings
from osmosis_ai.evaluation.record import TerminalRecord

SETTINGS = ClassicSettings(2, 3, 1.0, ["rewards:exact", "rewards:style"])


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(record: TerminalRecord) -> str:
    screen = Screen()
    OutputContext("rich", stdout=screen, stderr=screen).note(run_line(record, 4, 6, SETTINGS))
    return screen.getvalue().replace("\n", " ")


def test_weakness_6_scores_in_brackets_are_shown_as_they_are() -> None:
    scores = {"rewards:exact": 1.0, "rewards:style": 0.25}
    record = TerminalRecord(1, 2, "r", "success", 450, source_row_index=8, tokens=1200, scores=scores)
    assert on_a_terminal(record) == (
        "[4/6] row 8 run 2: OK (450 ms, 1,200 tokens) [rewards:exact=1.000, rewards:style=0.250] "
    )


def test_a_score_that_is_not_there_is_no_number_and_says_why() -> None:
    unscored = {"rewards:style": "KeyError: [red]no[/red]"}
    record = TerminalRecord(
        0, 0, "r", "success", 5, scores={"rewards:exact": 0.0, "agent": 2.0}, unscored=unscored
    )
    assert on_a_terminal(record).startswith(
        "[4/6] row 0 run 0: OK (5 ms, 0 tokens) [rewards:exact=0.000, rewards:style=unscored, agent=2.000] "
        "- rewards:style: KeyError: [red]no[/red]"
    )


def test_a_score_of_hundreds_of_digits_is_short() -> None:
    record = TerminalRecord(0, 0, "r", "success", 5, scores={"rewards:exact": 1e308, "rewards:style": -2e9})
    assert "[rewards:exact=1.000e+308, rewards:style=-2.000e+09]" in on_a_terminal(record)


def test_weakness_7_a_failed_run_shows_its_error_and_what_it_used_on_one_line() -> None:
    record = TerminalRecord(0, 0, "r", "failed", 1500, error="gave up\x1b[31m\n" + "x" * 300, tokens=7)
    shown = on_a_terminal(record)
    assert shown.startswith("[4/6] row 0 run 0: FAILED (1.5s, 7 tokens) - gave up\\x1b[31m xxx")
    assert len(shown) < 220 and shown.endswith("… ")


def test_on_a_terminal_the_lines_of_many_runs_come_together_and_before_what_is_said_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    output = OutputContext("rich", stdout=screen, stderr=screen)
    prepared: Any = SimpleNamespace(settings=SETTINGS)
    run, quiet = ClassicRun(output, prepared, quiet=False), ClassicRun(output, prepared, quiet=True)
    for number in range(2):
        record = TerminalRecord(0, number, "r", "success", 5, scores={"rewards:exact": 1.0})
        run.recorded(record)
        quiet.recorded(record)
    assert screen.getvalue() == ""
    run.note("this machine is late")
    quiet.note("this machine is late")
    lines = screen.getvalue().splitlines()
    assert [line.partition(" run ")[2][:1] for line in lines] == ["0", "1", ""]
    run.recorded(record)
    run.ended()
    assert len(screen.getvalue().splitlines()) == 4

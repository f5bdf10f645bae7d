"""What a run looks like while it is followed, on a terminal and in a log."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from rich.console import Console

from osmosis_ai.cli.output import context, terminal
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.runs import view
from osmosis_ai.cli.runs.view import RunStanding
from osmosis_ai.evaluation.run_state import ProgressSnapshot

BELOW = ("  reward  ▁▄█  0.400 → 0.900", "  2,104 tokens/s")


def moment(status: str, completed: int | None) -> RunStanding:
    return RunStanding("calm-fern-1", status, completed, 10, "steps", note="reward 0.900", below=BELOW)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def output() -> Iterator[OutputContext]:
    used = OutputContext("plain", stderr=io.StringIO())
    context.use(used)
    yield used
    context.use(None)


def test_a_log_gets_a_line_with_everything_and_a_terminal_lines_under_the_bar(output: OutputContext) -> None:
    view.show_progress([moment("pending", None), moment("running", 5)], lambda it: it, again="x")
    assert isinstance(output.stderr, io.StringIO)
    assert output.stderr.getvalue().splitlines() == [
        "Waiting for the run to start",
        "calm-fern-1: 5/10 steps (50%) reward 0.900",
    ]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=90)
    with terminal.bar(console, "calm-fern-1", total=10, unit="steps") as bar:
        bar.update(5, note="reward 0.900", below=BELOW)
    shown = screen.getvalue()
    assert "5/10 steps" in shown
    assert all(line in shown for line in BELOW)
    assert "reward 0.900" not in shown  # the lines say it


def test_what_a_run_waits_for_is_said_with_a_bar_and_without(output: OutputContext) -> None:
    waits = "it waits for another one of the pool 'gpu'."
    looks = [replace(moment("running", each), waits=waits, waits_for=waits) for each in (None, 5)]
    view.show_progress(looks, lambda it: it, again="x")
    assert isinstance(output.stderr, io.StringIO)
    assert output.stderr.getvalue().splitlines() == [
        f"The run is being prepared: {waits}",
        f"calm-fern-1: 5/10 steps (50%) {waits}",
    ]


@pytest.mark.parametrize("width", [60, 80, 130])
@pytest.mark.parametrize("below", [(), BELOW])
@pytest.mark.parametrize("completed", [None, 5])
def test_a_terminal_of_any_width_shows_the_whole_of_why_a_run_waits(
    width: int, below: tuple[str, ...], completed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    waits = (
        "its worker has not been heard of for 2 min; when its lease is over, at 09:14 UTC, it waits for another one of "
        "the machines that offer 'docker' and 2 GPUs."
    )
    screen = Screen()
    context.use(OutputContext("rich", stderr=screen))
    monkeypatch.setattr(context.current(), "_console", Console(file=screen, force_terminal=True, width=width))
    looks = [replace(moment("running", completed), waits=waits, waits_for=waits, below=below)]
    view.show_progress(looks, lambda it: it, again="x")
    context.use(None)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n")
    assert waits in " ".join(last.split())
    assert all(len(line) <= width for line in last.splitlines())


def test_a_bar_of_what_waits_does_not_tell_when_it_will_be_done() -> None:
    screen = io.StringIO()
    console, clock = Console(file=screen, force_terminal=True, width=130), iter(range(1000))
    console.get_time = lambda: float(next(clock))  # type: ignore[method-assign]
    with terminal.bar(console, "calm-fern-1", total=10, unit="samples") as bar:
        for done in (1, 3, 5):
            bar.update(done)
    assert " left" in screen.getvalue()
    screen.seek(0)
    screen.truncate()
    with terminal.bar(console, "calm-fern-1", total=10, unit="samples") as bar:
        for done in (1, 3, 5):
            bar.update(done, waits="its worker is silent.")
    assert " left" not in screen.getvalue()


def test_a_log_says_once_that_a_worker_is_silent_before_a_run_counts_anything(output: OutputContext) -> None:
    since = datetime(2026, 10, 2, 7, tzinfo=timezone.utc)
    told = ("45 s", "50 s", "2 min")
    looks = [replace(moment("running", None), waits=f"silent for {each}.", waits_for=since) for each in told]
    view.show_progress(looks, lambda it: it, again="x")
    assert isinstance(output.stderr, io.StringIO)
    assert output.stderr.getvalue() == "The run is being prepared: silent for 45 s.\n"


def test_a_run_that_counts_steps_while_it_still_waits_has_no_bar(output: OutputContext) -> None:
    view.show_progress([moment("queued", 0)], lambda it: it, again="x")
    assert isinstance(output.stderr, io.StringIO)
    assert output.stderr.getvalue() == "Waiting for the run to start\n"


def test_the_live_numbers_of_an_evaluation_are_of_samples_and_say_so() -> None:
    seen = ProgressSnapshot(
        completed=9,
        total=12,
        passed=3,
        failed=1,
        skipped=0,
        scored=8,
        reward_mean=0.375,
        tokens=0,
        cost_usd=None,
        in_flight=None,
        elapsed_s=0.0,
        finished=0,
    )
    note = "3 of 8 samples pass · reward 0.375 a sample · 1 failed"
    assert view.evaluation_note(seen) == note

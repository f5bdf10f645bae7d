"""What only a real terminal shows: questions, spinners and bars."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rubric.judge_server import candidate_of, running_judge
from tests.standin_model import Reply

pytestmark = pytest.mark.e2e

PROGRAM = """
import sys
from osmosis_ai.cli.main import main
from osmosis_ai.cli.registry import COMMANDS, CommandEntry
COMMANDS["fleet"] = CommandEntry("group", "tests.cli.fleet:app", "")
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A terminal with one program on it, and what it has shown so far."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.shown = ""
        # A read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._descriptor = descriptor

    def _takes_single_keys(self) -> bool:
        """Tell whether the program has switched the terminal; before, Ctrl-C would end it instead of answering."""
        return not termios.tcgetattr(self._descriptor)[3] & termios.ICANON

    def type(self, text: str) -> None:
        """Type what a question that shows is answered with."""
        os.write(self._descriptor, text.encode())

    def wait_for(self, expected: str, *, typing: bytes = b"") -> None:
        """Read until ``expected`` shows. Type ``typing`` as soon as the program takes single keys.

        What is typed before the program switches the terminal to single keys is thrown away by design.
        """
        deadline = time.monotonic() + 300
        while expected not in self.shown:
            assert time.monotonic() < deadline, f"never saw {expected!r} in {self.shown!r}"
            if typing and self._takes_single_keys():
                os.write(self._descriptor, typing)
                typing = b""
            ready, _, _ = select.select([self._descriptor], [], [], 0.05 if typing else 0.5)
            if ready:
                self.shown += self._decoder.decode(os.read(self._descriptor, 4096))

    def end(self) -> int:
        """Return the program's exit status."""
        return self.process.wait(timeout=300)


@contextmanager
def terminal(*arguments: str, program: Sequence[str] = (sys.executable, "-c", PROGRAM)) -> Iterator[Terminal]:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    os.close(child)
    try:
        yield Terminal(process, parent)
    finally:
        process.kill()
        process.wait()
        os.close(parent)


@pytest.mark.parametrize(
    "key, said",
    [(b"\x1b", "Cancelled."), (b"\x03", "Cancelled."), (b"\x04", "Cancelled."), (b"y", "Sunk.")],
)
def test_the_question_is_asked_and_answered_by_one_key(key: bytes, said: str) -> None:
    with terminal("fleet", "sink") as screen:
        screen.wait_for("Sink the Argo? [y/N] ")
        screen.wait_for(said, typing=key)
        assert screen.end() == 0


@pytest.mark.parametrize("mode", ["--json", "--plain"])
def test_json_and_plain_never_ask(mode: str) -> None:
    with terminal("fleet", "sink", mode) as screen:
        screen.wait_for("Use --yes to confirm in non-interactive mode.")
        assert screen.end() == 1


def test_progress_is_a_bar_with_warnings_above_and_the_result_below() -> None:
    with terminal("fleet", "sail") as screen:
        screen.wait_for("Arrived.")
        assert screen.end() == 0
    assert "Raising the anchor" in screen.shown
    assert "20/20 miles" in screen.shown
    assert screen.shown.index("Fog ahead.") < screen.shown.index("20/20 miles")


def test_a_judging_session_shows_its_rate_and_failures_at_eighty_columns(tmp_path: Path) -> None:
    records = tmp_path / "data.jsonl"
    texts = ["fine", "[status 400]", "[garbage]"]
    records.write_text("".join(json.dumps({"solution_str": text}) + "\n" for text in texts))
    loops: list[asyncio.AbstractEventLoop] = []
    others_shown = asyncio.Event()
    with running_judge() as judge:
        answer = judge.respond

        def respond(body: dict[str, Any]) -> Reply:
            loops.append(asyncio.get_running_loop())
            reply = answer(body)
            reply.wait_for = others_shown if candidate_of(body) == "fine" else None
            return reply

        judge.respond = respond
        arguments = [
            "--rubric",
            "Be good and clear.",
            "--model",
            "openai/judge",
            "--api-base",
            judge.base_url,
        ]
        places = ["--data", str(records), "--output", str(tmp_path / "out.json")]
        with terminal("eval", "rubric", *places, *arguments) as screen:
            screen.wait_for("1 unscored · 1 failed")
            loops[0].call_soon_threadsafe(others_shown.set)
            screen.wait_for("--resume")
            assert screen.end() == 1
    shown = [line for line in re.split(r"[\r\n]+", screen.shown) if "1 unscored · 1 failed" in line]
    assert any("in flight" in line and "/" in line for line in shown)
    assert "3/3 calls" in screen.shown

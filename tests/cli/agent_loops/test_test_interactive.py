"""`osmosis test --interactive` on a real terminal: every key, and the ways out."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.evaluation.agent_loop.interactive import RESULT_PROMPT, STEP_PROMPT
from tests.rubric.serving import serving
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e

CHOOSE = "Select a row to test [1-2] or 'q' to quit: "
AGENT = """
from osmosis_ai.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "stepped"
    def get_tools(self, request):
        return [{"type": "function", "function": {"name": "look-up", "description": "Look."}}]
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for turn in range(3):
            try:
                reply = await ctx.chat(messages)
            except Exception as error:
                return ctx.error(f"swallowed {error}")
            messages += [reply.message, {"role": "user", "content": f"go on {turn}"}]
        return ctx.complete(messages, reward=0.75)
"""


class Screen:
    """A terminal with one session on it."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._unread = ""
        # A read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def until(self, expected: str) -> str:
        """Read until ``expected`` shows; return what came since the last time, up to its end."""
        deadline = time.monotonic() + 120
        while expected not in self._unread:
            assert time.monotonic() < deadline, f"never saw {expected!r} in {self._unread!r}"
            ready, _, _ = select.select([self._descriptor], [], [], 1)
            if ready:
                read = self._decoder.decode(os.read(self._descriptor, 4096))
                self._unread = (self._unread + read).replace("\r\n", "\n")
        shown, found, self._unread = self._unread.partition(expected)
        return shown + found

    def type(self, keys: str, until: str) -> str:
        """Type keys and Enter; return what shows up to ``until``."""
        os.write(self._descriptor, f"{keys}\n".encode())
        return self.until(until)

    def press(self, key: bytes) -> None:
        """Press one key, without Enter."""
        os.write(self._descriptor, key)


@contextmanager
def session(model: StandInModel, *arguments: str) -> Iterator[Screen]:
    Path("stepped_agent.py").write_text(AGENT)
    rows = [{"system_prompt": "s", "user_prompt": f"question {number} [/b]"} for number in range(4)]
    Path("rows.json").write_text(json.dumps(rows))
    parent, child = pty.openpty()
    words = ["test", "-i", "-m", "stepped_agent:Agent", "-d", "rows.json", "--offset", "1", "--limit", "2"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "osmosis_ai",
            *words,
            "--base-url",
            model.base_url,
            "--model",
            "m",
            *arguments,
        ],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "COLUMNS": "100", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        # Ctrl-C reaches who has the terminal as its own.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    try:
        yield Screen(process, parent)
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def test_every_key_does_what_the_help_says_and_the_results_are_written() -> None:
    replies = iter(range(1, 100))
    with (
        serving(StandInModel(lambda _: Reply(content=f"reply [red]{next(replies)}"))) as model,
        session(model, "-o", "out.json", "--no-probe", "--row", "7") as screen,
    ):
        assert "Row 7 is out of range [1-2]." in screen.until(CHOOSE)
        assert "run the last row again" in screen.type("what?", CHOOSE)
        assert "run the last row again" in screen.type("r", CHOOSE)  # there is no last row yet

        first = screen.type("1", STEP_PROMPT)
        assert "question 1 [/b]" in first
        assert "reply [red]1" in first
        assert "look-up: Look." in screen.type("t", STEP_PROMPT)
        assert "Ctrl-D" in screen.type("?", STEP_PROMPT)
        assert "Ctrl-D" in screen.type("help", STEP_PROMPT)
        assert "reply [red]2" in screen.type("", STEP_PROMPT)
        messages = screen.type("m", STEP_PROMPT)
        assert [word in messages for word in ("question 1", "reply [red]1", "go on 0", "reply [red]2")] == [
            True
        ] * 4
        assert "reply [red]3" in screen.type("n", STEP_PROMPT)
        result = screen.type("next", RESULT_PROMPT)
        assert [word in result for word in ("Status: OK", "Reward: 0.75", "Finish reason: stop")] == [
            True
        ] * 3
        assert "go on 1" in screen.type("m", RESULT_PROMPT)

        assert "question 2" in screen.type("row 2", STEP_PROMPT)
        assert "question 2" in screen.type("r", STEP_PROMPT)  # the same row again
        assert "Status: OK" in screen.type("c", RESULT_PROMPT)
        screen.type("", CHOOSE)

        screen.type("row 1", STEP_PROMPT)
        assert "Aborted by user." in screen.type("q", CHOOSE)  # whatever the agent catches
        assert "question 1" in screen.type("r", STEP_PROMPT)
        screen.type("q", CHOOSE)
        screen.type("r 2", STEP_PROMPT)
        screen.type("c", RESULT_PROMPT)
        screen.type("", CHOOSE)
        screen.press(b"\x04")
        assert "results: " in screen.until("out.json\n")
        assert screen.process.wait(120) == 0
    results = json.loads(Path("out.json").read_text())["results"]
    facts: list[Any] = [(row["row_index"], row["success"], row["error"], row["reward"]) for row in results]
    assert facts == [(1, False, "Aborted by user", None), (2, True, None, 0.75)]


def test_ctrl_c_leaves_cleanly_at_a_prompt_and_while_the_model_thinks() -> None:
    with serving(StandInModel()) as model, session(model, "--row", "1") as screen:
        screen.until(STEP_PROMPT)
        screen.press(b"\x03")
        assert "Traceback" not in screen.until("0 of 1 rows passed.")
        assert screen.process.wait(120) == 0
    with serving(StandInModel(latency_s=300)) as model, session(model) as screen:
        while not model.calls:  # the probe, before anything was asked
            select.select([], [], [], 0.01)
        screen.press(b"\x03")
        assert "Traceback" not in screen.until("Interrupted")
        assert screen.process.wait(120) == 130
    with serving(StandInModel(latency_s=300)) as model, session(model, "--no-probe", "--row", "1") as screen:
        screen.until("question 1")
        while not model.calls:
            select.select([], [], [], 0.01)
        screen.press(b"\x03")
        assert "Traceback" not in screen.until("0 of 1 rows passed.")
        assert screen.process.wait(120) == 0

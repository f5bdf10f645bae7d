"""Attempts of a run wait here before they begin, so that a test can hold the run at any of its results.

The agent asks over a socket, which a sandbox permits, so a test kills the same processes as a user would.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

from osmosis_ai.workspace.git import run_git

_BEGINS = "        messages: list[dict[str, Any]] = [INSTRUCTIONS, *ctx.prompt]\n"
_WAITS = """\
        turn, asking = await __import__("asyncio").open_connection("127.0.0.1", {port})
        await turn.read()
        asking.close()
"""
_AT_ONCE = 8
_LEAD = 8


def held(attempts: int) -> dict[str, int]:
    """Return the config values of a run that is held: few concurrent attempts, and a long timeout."""
    return {"n": attempts, "batch_size": _AT_ONCE, "agent_workflow_timeout_s": 3600}


def commit(workspace: Path, variables: dict[str, str]) -> None:
    """Commit all changes."""
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    done = run_git([*who, "commit", "--quiet", "--all", "--message", "Wait"], cwd=workspace, env=variables)
    assert done.returncode == 0, done.stderr


def add_waits(workspace: Path, port: int) -> None:
    """Change the sample rollout of a workspace directory, so that each attempt waits for the turnstile on ``port``."""
    program = workspace / "rollouts/multiply/main.py"
    text = program.read_text()
    assert text.count(_BEGINS) == 1
    program.write_text(text.replace(_BEGINS, _WAITS.format(port=port) + _BEGINS))


class Turnstile:
    """Changes the sample rollout of a workspace directory, so that each attempt waits for its turn.

    Args:
        workspace: None if the workspace directory does not exist yet. Call :func:`add_waits` once it does.

    Attributes:
        port: The port to which attempts connect.
        may_pass: Whether an attempt may continue; called by many threads, repeatedly for each attempt.
        asked: The number of attempts that have begun.
        passed: The number of attempts that have passed.
    """

    def __init__(self, workspace: Path | None = None) -> None:
        self.may_pass: Callable[[], bool] = lambda: True
        self.asked = self.passed = 0
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        if workspace is not None:
            add_waits(workspace, self.port)
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Let no attempt pass."""
        self.may_pass = lambda: False

    def hold_after(self, records: int, results: Callable[[], int]) -> None:
        """Let attempts pass until there are a few more than ``records`` results, so that the run is active at that moment.

        The run has at most 24 more: attempts in flight, and attempts that are being recorded.
        """
        self.may_pass = lambda: results() < records + _LEAD

    def open(self) -> None:
        """Let all attempts pass."""
        self.may_pass = lambda: True

    def close(self) -> None:
        """Stop listening; waiting attempts continue."""
        self._is_closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self._hold_back, args=(asking,), daemon=True).start()

    def _hold_back(self, asking: socket.socket) -> None:
        with asking:
            while not self.may_pass() and not self._is_closed.wait(0.02):
                pass
            with self._lock:
                self.passed += 1

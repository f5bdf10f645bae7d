"""Holds runs in their middle for as long as a test needs, on a machine of any speed."""

from __future__ import annotations

import os
from pathlib import Path

from osmosis_ai.services.demo import Scratch
from osmosis_ai.workspace.git import run_git

_ASKS = "        rollout = get_rollout_context()\n"
_WAITS = """\
        nth = next(ASKED)
        while nth > allowed():
            await __import__("asyncio").sleep(0.02)
"""
_ALLOWED = """\
ASKED = __import__("itertools").count(1)


def allowed():
    try:
        return int(open({gate!r}).read())
    except FileNotFoundError:
        return float("inf")


"""


class Gate:
    """Changes the rollout of a scratch workspace, so that a rollout server makes a limited number of model calls.

    A sandbox hides its file, so only runs without one (``OSMOSIS_ISOLATION=off``) wait.

    Args:
        scratch: Its workspace is changed and committed, but not pushed.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._path = scratch.root / "gate"
        program = scratch.workspace / "rollouts/multiply/main.py"
        text = program.read_text()
        assert text.count(_ASKS) == 1
        text = text.replace(_ASKS, _WAITS + _ASKS)
        head, found, tail = text.partition("class MultiplyWorkflow")
        program.write_text(head + _ALLOWED.format(gate=str(self._path)) + found + tail)
        commit(scratch.workspace, scratch.own_variables())

    def close(self, after: int = 0) -> None:
        """Let each server make ``after`` model calls since its start."""
        new = self._path.with_suffix(".new")
        new.write_text(str(after))
        os.replace(new, self._path)

    def open(self) -> None:
        """Remove the limit."""
        self._path.unlink(missing_ok=True)


def commit(workspace: Path, variables: dict[str, str]) -> None:
    """Commit all changes."""
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    done = run_git([*who, "commit", "--quiet", "--all", "--message", "Wait"], cwd=workspace, env=variables)
    assert done.returncode == 0, done.stderr

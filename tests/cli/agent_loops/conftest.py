"""A directory with a module of the user's, which the commands import."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

_NUMBERS = itertools.count()

AGENT = """
from osmosis_ai.rollout.core.base import RolloutAgentLoop

class Calculator(RolloutAgentLoop):
    name = "calculator"

    def get_tools(self, request):
        return TOOLS

    async def run(self, ctx):
        reply = await ctx.chat(ctx.request.messages, **ctx.request.completion_params)
        return ctx.complete([*ctx.request.messages, reply.message])

TOOLS = []
agent_loop = Calculator()
"""

WriteModule = Callable[[str], str]


@pytest.fixture
def write_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """Write the agent above, and what a test adds to it, as a module here; return its `module:attribute`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSMOSIS_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    written: list[str] = []

    def write(added: str = "") -> str:
        name = f"user_agent_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(AGENT + dedent(added))
        written.append(name)
        return f"{name}:agent_loop"

    yield write
    for name in written:
        sys.modules.pop(name, None)

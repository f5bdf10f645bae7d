"""Interactive debugger of `osmosis test`: shows each reply of the model and asks how to continue.

To the agent this looks like a slow model. Leaving a run raises an exception that ``except Exception`` does not catch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.evaluation.agent_loop.inputs import DEFAULT_MAX_TURNS, row_messages
from osmosis_ai.evaluation.agent_loop.runner import (
    LocalLLMClientProtocol,
    LocalRunResult,
    LocalTestRunner,
    format_duration,
    format_tokens,
    token_usage,
)
from osmosis_ai.rollout.core.base import CompletionsResult, RolloutAgentLoop
from osmosis_ai.rollout.tools import tool_payload

ABORTED = "Aborted by user"
STEP_PROMPT = "[Enter] next, [c]ontinue, [m]essages, [t]ools, [r]ow N, [q]uit, [?] help > "
RESULT_PROMPT = "[m]essages, [r]ow N, [q]uit or [Enter] > "
HELP = """\
  Enter, n, next     continue to the next reply of the model
  c, continue        continue to the end of this run
  m, messages        show the conversation so far
  t, tools           show the tools offered to the model
  r, r N, row N, N   run the last row again, or row N
  q, quit, exit      leave this run; between runs, leave the session
  ?, help            show this
  Ctrl-D, Ctrl-C     leave the session"""
_COMMANDS = {"": "next", "n": "next", "c": "continue", "m": "messages", "t": "tools", "r": "row"}
_COMMANDS |= {"q": "quit", "exit": "quit"}


class SessionTerminal:
    """Input and output of a session: the standard streams, unless a subclass overrides them."""

    left = False  # whether the user has left the session

    async def ask(self, prompt: str) -> str | None:
        """Return the line that the user types; None at the end of input or if the user leaves."""
        try:
            return await asyncio.to_thread(input, prompt)
        except EOFError:
            self.left = True
            return None

    def say(self, text: str) -> None:
        """Show text unchanged."""
        sys.stdout.write(f"{text}\n")


@dataclass
class InteractiveStep:
    """One reply of the model."""

    turn: int
    step_type: str
    message: dict[str, Any]
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None


class RunAborted(BaseException):
    """The user leaves a run."""


class InteractiveLLMClient:
    """A model that calls ``on_step`` after each reply of a run until ``paused`` is set to False."""

    def __init__(
        self, llm_client: LocalLLMClientProtocol, on_step: Callable[[InteractiveStep], Awaitable[None]]
    ) -> None:
        self._client = llm_client
        self._on_step = on_step
        self.messages: list[dict[str, Any]] = []
        self.tools: list[Any] = []
        self.get_metrics = llm_client.get_metrics
        self.clear_tools = llm_client.clear_tools  # `tools` keeps the last ones for display
        self.reset_metrics()

    def reset_metrics(self) -> None:
        """Prepare for the next run."""
        self._client.reset_metrics()
        self.paused = True
        self.turn = 0
        self.waited_ms = 0.0

    def set_tools(self, tools: Sequence[Any]) -> None:
        self.tools = list(tools)
        self._client.set_tools(tools)

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply after the user continues."""
        result = await self._client.chat_completions(messages, **kwargs)
        message = dict(result.message)
        self.turn += 1
        self.messages = [*messages, message]
        if self.paused:
            started = time.perf_counter()
            step = InteractiveStep(
                self.turn, "llm_response", message, result.tool_calls, result.finish_reason
            )
            try:
                await self._on_step(step)
            finally:
                self.waited_ms += (time.perf_counter() - started) * 1000.0
        return result


@dataclass
class InteractiveRunner:
    """A session in which the user chooses rows and steps through them."""

    agent_loop: RolloutAgentLoop
    llm_client: LocalLLMClientProtocol
    debug: bool = False
    debug_dir: str | Path | None = None
    terminal: SessionTerminal = field(default_factory=SessionTerminal)
    results: list[LocalRunResult] = field(default_factory=list, init=False)
    _last_row: int | None = field(default=None, init=False)
    _next_row: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._client = InteractiveLLMClient(self.llm_client, self._pause)
        self._runner = LocalTestRunner(self.agent_loop, self._client, self.debug, self.debug_dir)

    async def run_session(
        self,
        row_at: Callable[[int], Mapping[str, Any]],
        rows: range,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        initial_row: int | None = None,
    ) -> list[LocalRunResult]:
        """Let the user choose rows until they leave."""
        self._next_row = initial_row
        prompt = f"Select a row to test [{rows[0]}-{rows[-1]}] or 'q' to quit: "
        try:
            while not self.terminal.left:
                if self._next_row is None and await self._ask(prompt, "quit") == "quit":
                    break
                index, self._next_row = self._next_row, None
                if index is None or index not in rows:
                    self.terminal.say(f"Row {index} is out of range [{rows[0]}-{rows[-1]}].")
                else:
                    await self._run_row(row_at(index), index, max_turns, completion_params)
        except asyncio.CancelledError:
            if not self.terminal.left:
                raise
        return self.results

    async def _run_row(
        self, row: Mapping[str, Any], row_index: int, max_turns: int, params: dict[str, Any] | None
    ) -> None:
        self._last_row = row_index
        self._client.messages = row_messages(row)
        self.terminal.say(f"\nRow {row_index}")
        self._show_messages(self._client.messages)
        try:
            result = await self._runner.run_single(row, row_index, max_turns, params)
        except (RunAborted, asyncio.CancelledError) as error:
            usage = token_usage(self._client.get_metrics())
            self.results.append(LocalRunResult(row_index, False, error=ABORTED, token_usage=usage))
            self.terminal.say(f"{ABORTED}.")
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        result.duration_ms = max(0.0, result.duration_ms - self._client.waited_ms)
        self.results.append(result)
        self._show_result(result)
        if await self._ask(RESULT_PROMPT, "next", "quit") == "quit":
            self.terminal.left = True

    async def _pause(self, step: InteractiveStep) -> None:
        """Show a reply and ask how to continue."""
        self.terminal.say(f"[assistant, turn {step.turn}, finish reason {step.finish_reason}]")
        self._show_message(step.message)
        command = await self._ask(STEP_PROMPT, "next", "continue", "quit")
        if command in ("quit", "row"):
            raise RunAborted
        self._client.paused = command == "next"

    async def _ask(self, prompt: str, *decisions: str) -> str:
        """Show details until the user enters one of the ``decisions`` or chooses the next row."""
        while True:
            line = await self.terminal.ask(prompt)
            if line is None:
                return "quit"
            word, _, row = line.strip().lower().partition(" ")
            if word.isdecimal():
                word, row = "row", word
            command = _COMMANDS.get(word, word)
            if command == "row" and (row.strip().isdecimal() or (not row and self._last_row is not None)):
                self._next_row = int(row) if row else self._last_row
                return command
            if command in decisions:
                return command
            if command == "messages":
                self._show_messages(self._client.messages)
            elif command == "tools":
                self._show_tools()
            else:
                self.terminal.say(HELP)

    def _show_tools(self) -> None:
        for tool in self._client.tools:
            function = tool_payload(tool)["function"]
            self.terminal.say(f"  {function.get('name')}: {function.get('description', '')}")
            self.terminal.say(f"    {json.dumps(function.get('parameters') or {}, ensure_ascii=False)}")
        if not self._client.tools:
            self.terminal.say("  no tools")

    def _show_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages:
            self.terminal.say(f"[{message.get('role', 'unknown')}]")
            self._show_message(message)

    def _show_message(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        if content:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            self.terminal.say(textwrap.indent(text, "  "))
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            self.terminal.say(f"  -> {function.get('name')}({function.get('arguments')})")

    def _show_result(self, result: LocalRunResult) -> None:
        lines = [f"Status: {'OK' if result.success else 'FAILED'}"]
        if not result.success:
            lines.append(f"Error: {result.raised or result.error}")
        if result.result is not None:
            lines.append(f"Reward: {'-' if result.result.reward is None else result.result.reward}")
            lines.append(f"Finish reason: {result.result.finish_reason}")
        lines.append(f"Duration: {format_duration(result.duration_ms)}")
        lines.append(f"Tokens: {format_tokens(result.total_tokens)}")
        self.terminal.say("\nResult:\n" + textwrap.indent("\n".join(lines), "  "))

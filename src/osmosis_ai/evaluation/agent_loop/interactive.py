"""Stepping through an agent loop: after each reply of the model the session stops, shows it, and asks what next.

A session is a conversation between two sides that know little of each other: what is asked and shown goes
through a :class:`SessionTerminal`; the agent sees a model that sometimes takes its time. Leaving a run raises
through the agent's own code as an exception that no ``except Exception`` catches.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from osmosis_ai.evaluation.agent_loop.report import format_duration, format_tokens
from osmosis_ai.evaluation.agent_loop.row_tests import LocalTestRunner
from osmosis_ai.evaluation.agent_loop.runner import (
    DEFAULT_MAX_TURNS,
    LocalLLMClientProtocol,
    LocalRunResult,
)

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.agent import CompletionsResult, RolloutAgentLoop
    from osmosis_ai.rollout.loop.schemas import RolloutMetrics

ABORTED = "Aborted by user"
STEP_PROMPT = "[Enter] next, [c]ontinue, [m]essages, [t]ools, [r]ow N, [q]uit, [?] help > "
RESULT_PROMPT = "[m]essages, [r]ow N, [q]uit or [Enter] > "
HELP = """\
  Enter, n, next     go on to the next reply of the model
  c, continue        go on to the end of this run
  m, messages        show the conversation so far
  t, tools           show the tools that the model is offered
  r, r N, row N      run this row again, or row N
  q, quit, exit      leave this run; where rows are chosen, leave the session
  ?, help            show this
  Ctrl-D, Ctrl-C     leave the session"""
CHOOSING_HELP = """\
  N, row N           run row N
  r, row             run the last row again
  q, quit, exit      leave the session
  ?, help            show this
  Ctrl-D, Ctrl-C     leave the session"""

_NEXT, _CONTINUE, _MESSAGES, _TOOLS = ("", "n", "next"), ("c", "continue"), ("m", "messages"), ("t", "tools")
_ROW, _QUIT, _HELP = ("r", "row"), ("q", "quit", "exit"), ("?", "help")


class SessionTerminal(Protocol):
    """Where a session asks and shows."""

    left: bool

    async def ask(self, prompt: str) -> str | None:
        """Return the line that the user types; None at the end of input, or when the user wants out."""
        ...

    def say(self, text: str) -> None:
        """Show text as it is."""
        ...


class _StandardStreams:
    left = False

    async def ask(self, prompt: str) -> str | None:
        try:
            return await asyncio.to_thread(input, prompt)
        except EOFError:
            return None

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")


@dataclass
class InteractiveStep:
    """One step of a run."""

    turn: int
    step_type: str
    message: dict[str, Any]
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None


class RunAborted(BaseException):
    """The user leaves a run."""


class SessionLeft(RunAborted):
    """The user leaves the session."""


class InteractiveLLMClient:
    """A model that stops after each reply."""

    def __init__(
        self,
        llm_client: LocalLLMClientProtocol,
        on_step: Callable[[InteractiveStep], Awaitable[None]] | None = None,
    ) -> None:
        self._client = llm_client
        self.on_step = on_step
        self.paused = True
        self.waited_ms = 0.0
        self.steps: list[InteractiveStep] = []
        self.messages: list[dict[str, Any]] = []
        self.tools: list[Any] = []

    def set_tools(self, tools: Sequence[Any]) -> None:
        """Offer these tools with every call from now on."""
        self.tools = list(tools)
        self._client.set_tools(tools)

    def clear_tools(self) -> None:
        """Offer no tools any more; :attr:`tools` stays what it was, to be looked at."""
        self._client.clear_tools()

    def reset_metrics(self) -> None:
        """Count from zero."""
        self._client.reset_metrics()

    def get_metrics(self) -> RolloutMetrics:
        """Return what the calls since the last reset came to."""
        return self._client.get_metrics()

    async def close(self) -> None:
        """Close the model."""
        close = getattr(self._client, "close", None)
        if close is not None:
            await close()

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply, once the session has seen it."""
        result = await self._client.chat_completions(messages, **kwargs)
        step = InteractiveStep(
            turn=len(self.steps) + 1,
            step_type="llm_response",
            message=dict(result.message),
            tool_calls=list(result.tool_calls),
            finish_reason=result.finish_reason,
        )
        self.steps.append(step)
        self.messages = [*messages, step.message]
        if self.paused and self.on_step is not None:
            asked = time.perf_counter()
            try:
                await self.on_step(step)
            finally:
                self.waited_ms += (time.perf_counter() - asked) * 1000.0
        return result


class InteractiveRunner:
    """A session in which one row after the other is chosen and stepped through."""

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: LocalLLMClientProtocol,
        debug: bool = False,
        debug_dir: str | Path | None = None,
        terminal: SessionTerminal | None = None,
    ) -> None:
        self.agent_loop = agent_loop
        self.llm_client = llm_client
        self.terminal = terminal or _StandardStreams()
        self.debug = debug
        self.debug_dir = debug_dir
        self.results: list[LocalRunResult] = []
        self._chosen: int | None = None
        self._last: int | None = None

    async def run_session(
        self,
        row_at: Callable[[int], Mapping[str, Any]],
        rows: range,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        initial_row: int | None = None,
    ) -> list[LocalRunResult]:
        """Let the user choose rows until they leave."""
        self._chosen = initial_row
        try:
            while True:
                if self._chosen is None:
                    await self._choose(rows)
                index, self._chosen = self._chosen, None
                if index is None:
                    continue
                if index not in rows:
                    self.terminal.say(f"Row {index} is out of range [{rows[0]}-{rows[-1]}].")
                    continue
                self._last = index
                result = await self.run_row(row_at(index), index, max_turns, completion_params)
                if result.error == ABORTED:
                    self.terminal.say(f"{ABORTED}.")
        except SessionLeft:
            return self.results
        except asyncio.CancelledError:
            if not self.terminal.left:
                raise
            return self.results

    async def run_row(
        self,
        row: Mapping[str, Any],
        row_index: int,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
    ) -> LocalRunResult:
        """Step through one row."""
        client = InteractiveLLMClient(self.llm_client)
        client.on_step = lambda step: self._pause(client, step, row_index)
        runner = LocalTestRunner(self.agent_loop, client, self.debug, self.debug_dir)
        self._show_row(row, row_index)
        try:
            result = await runner.run_single(row, row_index, max_turns, completion_params)
        except (RunAborted, asyncio.CancelledError) as left:
            self.results.append(_aborted(row_index, client.get_metrics()))
            if type(left) is not RunAborted:
                raise
            return self.results[-1]
        result.duration_ms = max(0.0, result.duration_ms - client.waited_ms)
        self.results.append(result)
        self._show_outcome(result)
        await self._inspect(client, row_index)
        return result

    async def _choose(self, rows: range) -> None:
        word, number = await self._ask(f"Select a row to test [{rows[0]}-{rows[-1]}] or 'q' to quit: ")
        if word in _QUIT:
            raise SessionLeft
        if word.isdecimal():
            self._chosen = int(word)
        elif word in _ROW and (number is not None or self._last is not None):
            self._chosen = self._last if number is None else number
        else:
            self.terminal.say(CHOOSING_HELP)

    async def _pause(self, client: InteractiveLLMClient, step: InteractiveStep, row_index: int) -> None:
        self._show_step(step)
        while True:
            word, number = await self._ask(STEP_PROMPT)
            if word in _NEXT:
                return
            if word in _CONTINUE:
                client.paused = False
                return
            if word in _QUIT:
                raise RunAborted
            if word in _ROW:
                self._chosen = row_index if number is None else number
                raise RunAborted
            self._show_what_is_asked_for(word, client)

    async def _inspect(self, client: InteractiveLLMClient, row_index: int) -> None:
        """Let the user look at a finished run."""
        while True:
            word, number = await self._ask(RESULT_PROMPT)
            if word in _NEXT:
                return
            if word in _QUIT:
                raise SessionLeft
            if word in _ROW:
                self._chosen = row_index if number is None else number
                return
            self._show_what_is_asked_for(word, client)

    async def _ask(self, prompt: str) -> tuple[str, int | None]:
        """Return the word and the number that the user types."""
        line = await self.terminal.ask(prompt)
        if line is None:
            raise SessionLeft
        word, _, number = line.strip().partition(" ")
        if not number.strip():
            return word.lower(), None
        return (word.lower(), int(number)) if number.strip().isdecimal() else ("?", None)

    def _show_what_is_asked_for(self, word: str, client: InteractiveLLMClient) -> None:
        if word in _MESSAGES:
            self._show_messages(client.messages)
        elif word in _TOOLS:
            self._show_tools(client.tools)
        else:
            self.terminal.say(HELP)

    def _show_row(self, row: Mapping[str, Any], row_index: int) -> None:
        from osmosis_ai.evaluation.agent_loop.dataset import row_messages

        self.terminal.say(f"\nRow {row_index}")
        self._show_messages(row_messages(row))

    def _show_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages:
            self.terminal.say(f"[{message.get('role', 'unknown')}]")
            self._show_message(message)

    def _show_message(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        if content:
            shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            self.terminal.say(_indented(shown))
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            self.terminal.say(f"  -> {function.get('name')}({function.get('arguments')})")

    def _show_tools(self, tools: Sequence[Any]) -> None:
        from osmosis_ai.rollout.loop.tool_schemas import tool_payload

        if not tools:
            self.terminal.say("  no tools")
        for tool in tools:
            function = tool_payload(tool)["function"]
            self.terminal.say(f"  {function.get('name')}: {function.get('description', '')}")
            self.terminal.say(f"    {json.dumps(function.get('parameters') or {}, ensure_ascii=False)}")

    def _show_step(self, step: InteractiveStep) -> None:
        self.terminal.say(f"[assistant, turn {step.turn}, finish reason {step.finish_reason}]")
        self._show_message(step.message)

    def _show_outcome(self, result: LocalRunResult) -> None:
        ended = result.result
        lines = [f"Status: {'OK' if result.success else 'FAILED'}"]
        if not result.success:
            lines.append(f"Error: {result.raised or result.error}")
        if ended is not None:
            lines.append(f"Reward: {'-' if ended.reward is None else ended.reward}")
            lines.append(f"Finish reason: {ended.finish_reason}")
        lines.append(f"Duration: {format_duration(result.duration_ms)}")
        lines.append(f"Tokens: {format_tokens(result.total_tokens)}")
        self.terminal.say("\nResult:\n" + _indented("\n".join(lines)))


def _aborted(row_index: int, metrics: RolloutMetrics) -> LocalRunResult:
    from osmosis_ai.evaluation.agent_loop.runner import token_usage

    return LocalRunResult(row_index, success=False, error=ABORTED, token_usage=token_usage(metrics))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())

"""Run one rollout of a served agent and report exactly one outcome, whatever the agent does.

Cancelling the task ends the agent but not the report, which is then offered for a shorter time. An interrupted
rollout is reported as failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...backend.local.in_process import text_of
from ..agent import RolloutAgentLoop, RolloutResult
from ..context import AgentLoopContext
from ..outcome import CANCELLED
from .completion import COMPLETION_WINDOW_S, SHUTDOWN_WINDOW_S, Outcome, outcome_of, report

if TYPE_CHECKING:
    from ..client import OsmosisLLMClient
    from ..schemas import OpenAIFunctionToolSchema, RolloutRequest
    from .state import AppState

logger = logging.getLogger(__name__)

ENDING_S = 5.0
"""Seconds that a cancelled agent has to end."""

OpenClient = Callable[..., "OsmosisLLMClient"]


class ServedRollout:
    """Runs an agent on one request and reports the outcome.

    Args:
        agent: The agent loop.
        request: The controller's request.
        tools: The agent's tools for this request.
        open_client: Creates the controller client.
        debug_dir: Directory for the agent's events, if any.
    """

    def __init__(
        self,
        agent: RolloutAgentLoop,
        request: RolloutRequest,
        tools: list[OpenAIFunctionToolSchema],
        *,
        open_client: OpenClient,
        debug_dir: str | Path | None = None,
    ) -> None:
        self._agent = agent
        self._request = request
        self._tools = tools
        self._open_client = open_client
        self._debug_dir = debug_dir
        # The latency includes the wait for a slot.
        self._admitted_at = time.monotonic()

    async def run(self, state: AppState) -> None:
        """Wait for a slot, run and report. Raises only when cancelled, after the report."""
        request = self._request
        opened = self._open_client(
            server_url=request.server_url, rollout_id=request.rollout_id, api_key=request.api_key
        )
        async with opened as client:
            context = AgentLoopContext(
                request=request,
                tools=self._tools,
                llm=client,
                _start_time=self._admitted_at,
                _debug_dir=self._debug_dir,
            )
            try:
                async with state.semaphore:
                    outcome = await self._run_agent(context, state)
            except asyncio.CancelledError:
                # Cancellation without closing means that the event loop is ending, so no report can be sent.
                if not state.closing:
                    raise
                outcome = _failure(context, "the agent's server was shut down before the rollout had ended")
                outcome = replace(outcome, finish_reason=CANCELLED)
            await self._report(client, outcome, state)

    async def _run_agent(self, context: AgentLoopContext, state: AppState) -> Outcome:
        agent = asyncio.ensure_future(_until_a_result(self._agent, context))
        try:
            await asyncio.wait({agent})
        except asyncio.CancelledError:
            if not agent.done():
                agent.cancel()
                await asyncio.wait({agent}, timeout=ENDING_S)
                raise
            # If the event loop ends, it cancels agent and rollout together, once. Nothing may continue after that.
            if agent.cancelled() or not state.closing:
                raise
        if agent.cancelled():
            return _failure(context, "the agent cancelled itself")
        error = agent.exception()
        if error is None:
            outcome = outcome_of(self._request.rollout_id, agent.result())
            return outcome if outcome.metrics else replace(outcome, metrics=context.error("").metrics)
        logger.error("rollout %s: the agent failed", self._request.rollout_id, exc_info=error)
        return _failure(context, text_of(error) or type(error).__name__)

    async def _report(self, client: OsmosisLLMClient, outcome: Outcome, state: AppState) -> None:
        rollout_id = self._request.rollout_id
        if not state.closing:
            try:
                await report(client, rollout_id, outcome, window_s=COMPLETION_WINDOW_S)
                return
            except asyncio.CancelledError:
                if not state.closing:
                    raise
        await report(client, rollout_id, outcome, window_s=SHUTDOWN_WINDOW_S, closing=True)


async def _until_a_result(agent: RolloutAgentLoop, context: AgentLoopContext) -> RolloutResult:
    """Return the agent's result.

    Raises:
        TypeError: It has the wrong type.
        RuntimeError: The agent tried to exit the process, which serves other rollouts too.
    """
    running: Any = agent.run(context)  # type: ignore[arg-type]  # one public name for both contexts
    try:
        result = await running
    except SystemExit as error:
        raise RuntimeError(f"the agent called sys.exit({error.code!r})") from error
    if not isinstance(result, RolloutResult):
        raise TypeError(f"the agent's run returned {type(result).__name__}, no RolloutResult")
    return result


def _failure(context: AgentLoopContext, message: str) -> Outcome:
    return Outcome.failure(message, context.error(message).metrics)

"""Context of an agent loop's ``run``: the request, its tools, its model and the ways to end.

Its public name is :class:`osmosis_ai.rollout.RolloutContext`, created with ``request=``, ``tools=`` and ``llm=``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .agent import CompletionsResult, LLMClientProtocol, RolloutResult
from .event_log import append_event

if TYPE_CHECKING:
    from ..types.sample import MessageDict
    from .schemas import OpenAIFunctionToolSchema, RolloutMetrics, RolloutRequest


@dataclass
class AgentLoopContext:
    """One rollout of an agent loop.

    Attributes:
        request: Initial messages, sampling parameters, limits and metadata.
        tools: The return value of ``get_tools``.
        llm: The model client.
    """

    request: RolloutRequest
    tools: list[OpenAIFunctionToolSchema]
    llm: LLMClientProtocol
    _start_time: float = field(default=0.0, repr=False)
    _tool_latency_ms: float = field(default=0.0, repr=False)
    _num_tool_calls: int = field(default=0, repr=False)
    _debug_dir: str | Path | None = field(default=None, repr=False)

    async def chat(self, messages: list[MessageDict], **kwargs: Any) -> CompletionsResult:
        """Ask the model. ``temperature``, ``max_tokens``, ``stop``, ``seed``, ``tools``, … are passed on unchanged."""
        return await self.llm.chat_completions(messages, **kwargs)

    def complete(
        self, final_messages: list[MessageDict], finish_reason: str = "stop", reward: float | None = None
    ) -> RolloutResult:
        """Return the result of a successful rollout.

        Args:
            final_messages: The whole conversation.
            finish_reason: Why it ended.
            reward: The agent's own reward, if any.
        """
        return RolloutResult(
            "COMPLETED", final_messages, finish_reason, metrics=self._build_metrics(), reward=reward
        )

    def error(self, error_message: str, final_messages: list[MessageDict] | None = None) -> RolloutResult:
        """Return the result of a failed rollout.

        Args:
            error_message: The error, shown with the rollout.
            final_messages: The conversation so far.
        """
        return RolloutResult(
            "ERROR",
            final_messages or [],
            "error",
            error_message=error_message,
            metrics=self._build_metrics(),
        )

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Count one tool call and its latency in milliseconds."""
        self._num_tool_calls += 1
        self._tool_latency_ms += latency_ms

    @property
    def debug_enabled(self) -> bool:
        """Whether :meth:`log_event` writes anything."""
        return self._debug_dir is not None

    def log_event(self, event_type: str, **data: Any) -> None:
        """Append an event to this rollout's debug file. Does nothing if debugging is off."""
        if self._debug_dir is not None:
            append_event(self._debug_dir, self.request.rollout_id, event_type, data)

    def _build_metrics(self) -> RolloutMetrics:
        metrics = self.llm.get_metrics()
        elapsed_ms = (time.monotonic() - self._start_time) * 1000.0 if self._start_time else 0.0
        return metrics.model_copy(
            update={
                "total_latency_ms": elapsed_ms,
                "tool_latency_ms": self._tool_latency_ms,
                "num_tool_calls": self._num_tool_calls,
            }
        )

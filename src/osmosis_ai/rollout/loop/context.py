"""What a loop's ``run`` is given: the request, its tools, its model, and how to end.

Users know it as :class:`osmosis_ai.rollout.RolloutContext`, made with ``request=``, ``tools=`` and ``llm=``.
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
        request: the messages to begin with, sampling parameters, limits and metadata.
        tools: what ``get_tools`` returned.
        llm: the model.
    """

    request: RolloutRequest
    tools: list[OpenAIFunctionToolSchema]
    llm: LLMClientProtocol
    _start_time: float = field(default=0.0, repr=False)
    _tool_latency_ms: float = field(default=0.0, repr=False)
    _num_tool_calls: int = field(default=0, repr=False)
    _debug_dir: str | Path | None = field(default=None, repr=False)

    async def chat(self, messages: list[MessageDict], **kwargs: Any) -> CompletionsResult:
        """Ask the model; ``temperature``, ``max_tokens``, ``stop``, ``seed``, ``tools``, … reach it as they are given."""
        return await self.llm.chat_completions(messages, **kwargs)

    def complete(
        self, final_messages: list[MessageDict], finish_reason: str = "stop", reward: float | None = None
    ) -> RolloutResult:
        """Return the result of a rollout that went well.

        Args:
            final_messages: the whole conversation.
            finish_reason: why it ended.
            reward: the agent's own judgement of it, if it has one.
        """
        return RolloutResult(
            "COMPLETED", final_messages, finish_reason, metrics=self._build_metrics(), reward=reward
        )

    def error(self, error_message: str, final_messages: list[MessageDict] | None = None) -> RolloutResult:
        """Return the result of a rollout that failed.

        Args:
            error_message: what went wrong; it is shown wherever the rollout is.
            final_messages: the conversation up to then.
        """
        return RolloutResult(
            "ERROR",
            final_messages or [],
            "error",
            error_message=error_message,
            metrics=self._build_metrics(),
        )

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Count one tool call, and how long it took in milliseconds."""
        self._num_tool_calls += 1
        self._tool_latency_ms += latency_ms

    @property
    def debug_enabled(self) -> bool:
        """Whether :meth:`log_event` writes anything."""
        return self._debug_dir is not None

    def log_event(self, event_type: str, **data: Any) -> None:
        """Append an event to this rollout's debug file; does nothing when debugging is off."""
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

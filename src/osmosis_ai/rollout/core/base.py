"""The base classes of agent loops: its base class, context and results."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..context import RolloutContext as RolloutContext

if TYPE_CHECKING:
    from ..types import MessageDict
    from .schemas import OpenAIFunctionToolSchema, RolloutMetrics, RolloutRequest


logger = logging.getLogger(__name__)

_SAFE_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class CompletionsResult:
    """One reply of the model. Token ids and log-probabilities are empty if the endpoint does not report them."""

    message: MessageDict
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = "stop"

    @property
    def has_tool_calls(self) -> bool:
        """Whether the reply has tool calls."""
        return bool(self.message.get("tool_calls"))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The reply's tool calls."""
        return self.message.get("tool_calls") or []

    @property
    def content(self) -> str | None:
        """The reply's text, if any."""
        content: str | None = self.message.get("content")
        return content


@runtime_checkable
class LLMClientProtocol(Protocol):
    """Interface of a loop's model client; tests may provide their own."""

    async def chat_completions(self, messages: list[MessageDict], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply to ``messages``."""

    def get_metrics(self) -> RolloutMetrics:
        """Return the metrics of the calls so far."""


@dataclass
class RolloutResult:
    """Result of a loop, created by ``ctx.complete(...)`` or ``ctx.error(...)``.

    Attributes:
        status: ``COMPLETED`` or ``ERROR``.
        final_messages: The whole conversation, oldest message first.
        finish_reason: ``stop``, ``max_turns``, ``error`` or the agent's own word.
        error_message: The error, for ``ERROR``.
        metrics: Latencies in milliseconds, and counts.
        reward: The agent's own reward; None leaves it to graders.
    """

    status: str
    final_messages: list[MessageDict]
    finish_reason: str
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    reward: float | None = None


class RolloutAgentLoop(ABC):
    """Base class of agent loops. One object serves many rollouts concurrently, so keep state inside ``run``.

    Attributes:
        name: Name under which the agent is registered and shown. Required, except on abstract classes.

    Raises:
        TypeError: A concrete class is defined without a name.
    """

    name: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not getattr(cls, "name", None) and not _is_abstract(cls):
            raise TypeError(
                f"{cls.__name__} must define a 'name' class attribute, for example: name = \"calculator\""
            )

    @abstractmethod
    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        """Return the tools of one rollout as schemas or equivalent dicts; ``[]`` for none."""

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run one rollout: ask the model with ``ctx.chat``, call tools, end with ``ctx.complete`` or ``ctx.error``."""


def _is_abstract(cls: type) -> bool:
    """Return whether a class is abstract. ``__abstractmethods__`` is not set yet while a class is created."""
    methods = ("get_tools", "run")
    return ABC in cls.__bases__ or any(
        getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in methods
    )


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
        """Return the result of a successful rollout; without ``reward``, graders decide."""
        return RolloutResult(
            "COMPLETED", final_messages, finish_reason, metrics=self._build_metrics(), reward=reward
        )

    def error(self, error_message: str, final_messages: list[MessageDict] | None = None) -> RolloutResult:
        """Return the result of a failed rollout."""
        return RolloutResult(
            "ERROR", final_messages or [], "error", error_message=error_message, metrics=self._build_metrics()
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
        """Append an event to ``<rollout_id>.jsonl`` in the debug directory, if there is one.

        Values that JSON cannot represent are written as text. Write errors are only logged.
        """
        if self._debug_dir is None:
            return
        rollout_id = self.request.rollout_id
        path = Path(self._debug_dir) / f"{_file_name(rollout_id)}.jsonl"
        try:
            event = {"event": event_type, "rollout_id": rollout_id, **data}
            line = json.dumps(event, default=str, ensure_ascii=False)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line + "\n")
        except (OSError, TypeError, ValueError) as error:
            logger.warning(
                "cannot write event %s of rollout %s to %s: %s", event_type, rollout_id, path, error
            )

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


RolloutContext.register(AgentLoopContext)


def _file_name(rollout_id: str) -> str:
    """Return a file name without path separators. Two ids never get the same name."""
    if _SAFE_FILE_NAME.fullmatch(rollout_id):
        return rollout_id
    digest = hashlib.sha256(rollout_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", rollout_id[:100]).strip(".")
    return f"{readable or 'rollout'}-{digest}"

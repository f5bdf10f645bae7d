"""Base class of agent loops and the types of their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..context import RolloutContext
    from ..types.sample import MessageDict
    from .schemas import OpenAIFunctionToolSchema, RolloutMetrics, RolloutRequest


@dataclass(frozen=True)
class CompletionsResult:
    """One reply of the model.

    Attributes:
        message: The assistant message in OpenAI format.
        token_ids: The sampled tokens; empty if the endpoint does not report them.
        logprobs: The log-probability of each token in ``token_ids``.
        usage: The endpoint's token counts.
        finish_reason: OpenAI's finish reason.
    """

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
        ...

    def get_metrics(self) -> RolloutMetrics:
        """Return the metrics of the calls so far."""
        ...


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

"""What an agent loop is: a name, the tools it offers, and one coroutine that talks to the model until it is done."""

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
        message: the assistant's message in OpenAI's shape.
        token_ids: the tokens as they were sampled; empty where the endpoint does not tell.
        logprobs: the log-probability of each of ``token_ids``.
        usage: the endpoint's token counts.
        finish_reason: why the model stopped, in OpenAI's words.
    """

    message: MessageDict
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = "stop"

    @property
    def has_tool_calls(self) -> bool:
        """Whether the model wants tools to be called."""
        return bool(self.message.get("tool_calls"))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls that the model wants; empty when there are none."""
        return self.message.get("tool_calls") or []

    @property
    def content(self) -> str | None:
        """The text of the reply, if it has any."""
        content: str | None = self.message.get("content")
        return content


@runtime_checkable
class LLMClientProtocol(Protocol):
    """What a loop's context asks its model through; a test may give its own."""

    async def chat_completions(self, messages: list[MessageDict], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply to ``messages``."""
        ...

    def get_metrics(self) -> RolloutMetrics:
        """Return what the calls so far have cost."""
        ...


@dataclass
class RolloutResult:
    """How a loop ended; made with ``ctx.complete(...)`` or ``ctx.error(...)``.

    Attributes:
        status: ``COMPLETED`` or ``ERROR``.
        final_messages: the whole conversation, oldest message first.
        finish_reason: why it ended: ``stop``, ``max_turns``, ``error`` or the agent's own word.
        error_message: what went wrong, with ``ERROR``.
        metrics: latencies in milliseconds, and counts.
        reward: the agent's own judgement; None leaves it to graders.
    """

    status: str
    final_messages: list[MessageDict]
    finish_reason: str
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    reward: float | None = None


class RolloutAgentLoop(ABC):
    """Base class of agent loops; one object serves many rollouts at once, so keep their state in ``run``.

    Attributes:
        name: how the agent is registered and shown. A class that can be used needs one; an abstract class between
            this one and yours may leave it out.

    Raises:
        TypeError: when a class that can be used is defined without a name.
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
        """Return the tools for one rollout: schemas, or dicts of the same shape; ``[]`` for none."""

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run one rollout: ask the model with ``ctx.chat``, call tools, end with ``ctx.complete`` or ``ctx.error``."""


def _is_abstract(cls: type) -> bool:
    """Tell whether a class is to be derived from; ``__abstractmethods__`` is not there yet when a class is made."""
    methods = ("get_tools", "run")
    return ABC in cls.__bases__ or any(
        getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in methods
    )

"""Contexts of workflows and graders, and access to the active rollout: a context variable that tasks inherit."""

from __future__ import annotations

import os
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar

from .extra_fields import GraderNotes
from .types import AgentWorkflowConfig, Messages, RolloutSample

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

    from .core.base import AgentLoopContext as _AlsoOfAgentLoops
    from .core.base import LLMClientProtocol
    from .core.schemas import OpenAIFunctionToolSchema, RolloutRequest
else:
    _AlsoOfAgentLoops = object

CHAT_COMPLETIONS_URL_ENV = "OSMOSIS_CHAT_COMPLETIONS_URL"
API_KEY_ENV = "OSMOSIS_API_KEY"
ROLLOUT_ID_ENV = "OSMOSIS_ROLLOUT_ID"

# The default keeps a bare `AgentWorkflow` fully typed in strict projects.
TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig, default=AgentWorkflowConfig)


class SampleSource(ABC):
    """Provides a rollout's conversation, such as a framework's session."""

    @abstractmethod
    async def get_sample(self) -> RolloutSample:
        """Return the sample. Called once, after ``run`` returned None, within the agent's time budget."""


@dataclass
class AgentWorkflowContext(Generic[TConfig]):
    """Input of one workflow run.

    Attributes:
        prompt: The initial messages; may be empty if ``metadata`` holds the row.
        config: This rollout's copy of the workflow configuration.
        metadata: Fields of the dataset row.
        artifacts_dir: Directory for output files; None if it could not be created.
    """

    prompt: Messages
    config: TConfig | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None


@dataclass
class GraderContext:
    """Input of one grading.

    Attributes:
        label: The ground truth, if the dataset has one.
        sample: The workflow's sample; None if it produced none.
        project_path: Directory of the project's code, if the backend knows it.
        metadata: Fields of the dataset row, in the same dict the workflow received.
        artifacts_dir: The directory the workflow wrote its files to.
    """

    label: str | None = None
    sample: RolloutSample | None = None
    project_path: str | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None

    def set_reward(
        self, reward: float, *, notes: str | None = None, parts: Mapping[str, float] | None = None
    ) -> None:
        """Set the sample's reward, a finite number. A later call replaces an earlier one.

        Args:
            reward: A finite number.
            notes: Explanation shown with the sample, truncated to 2,000 characters.
            parts: Components of the reward: up to 32 finite numbers with names of up to 64 characters.

        Raises ValueError without a sample or for invalid arguments. The reward is then unchanged.
        """
        if self.sample is None:
            raise ValueError("there is no sample to reward")
        checked = GraderNotes.checked(notes, parts)
        self.sample.reward = reward
        checked.write(self.sample.extra_fields)


@dataclass
class RolloutContext(_AlsoOfAgentLoops, metaclass=ABCMeta):
    """The running rollout: its id, its model and its sample source.

    If created with ``request=``, ``tools=`` and ``llm=``, it is the context of an agent loop instead
    (:class:`osmosis_ai.rollout.core.base.AgentLoopContext`), which is registered as a virtual subclass.

    Empty fields are read from the environment (``OSMOSIS_CHAT_COMPLETIONS_URL``, ``OSMOSIS_API_KEY``,
    ``OSMOSIS_ROLLOUT_ID``). Inside a ``with`` block, :func:`get_rollout_context` returns this context.

    Attributes:
        chat_completions_url: An OpenAI base URL; clients append ``/chat/completions``.
        api_key: The bearer token for it.
        rollout_id: The rollout's id.
        sample_source: Provides the sample if ``run`` returns None.
    """

    chat_completions_url: str = ""
    api_key: str | None = field(default=None, repr=False)
    rollout_id: str = ""
    sample_source: SampleSource | None = None
    _outer: list[RolloutContext | None] = field(default_factory=list, init=False, repr=False, compare=False)
    _http: httpx.AsyncClient | None = field(default=None, init=False, repr=False, compare=False)
    _openai: AsyncOpenAI | None = field(default=None, init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            chat_completions_url: str = "",
            api_key: str | None = None,
            rollout_id: str = "",
            sample_source: SampleSource | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self, request: RolloutRequest, tools: list[OpenAIFunctionToolSchema], llm: LLMClientProtocol
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    else:

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            has_request = args and not isinstance(args[0], (str, type(None)))
            if cls is RolloutContext and (has_request or {"request", "tools", "llm"} & kwargs.keys()):
                from .core.base import AgentLoopContext

                return AgentLoopContext(*args, **kwargs)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        self.chat_completions_url = self.chat_completions_url or os.environ.get(CHAT_COMPLETIONS_URL_ENV, "")
        self.api_key = self.api_key or os.environ.get(API_KEY_ENV)
        self.rollout_id = self.rollout_id or os.environ.get(ROLLOUT_ID_ENV, "")

    def __enter__(self) -> RolloutContext:
        self._outer.append(rollout_contextvar.get())
        rollout_contextvar.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        # Not ContextVar.reset: an async generator may leave the block in another task's context.
        rollout_contextvar.set(self._outer.pop())

    def http(self) -> httpx.AsyncClient:
        """Return a client for this rollout's model: ``await context.http().post("/chat/completions", json=...)``.

        All rollouts of a process share its connection pool. The rollout's key is sent only to the model's address.
        """
        if self._http is None or self._http.is_closed:
            from .model_client import open_http

            self._http = open_http(self._model_url(), self.api_key)
        return self._http

    def openai(self) -> AsyncOpenAI:
        """Return an OpenAI client for this rollout's model, using the connections of :meth:`http`.

        A call whose connection broke is retried twice and answered from the record of the first.
        """
        if self._openai is None or self._openai.is_closed():
            from .model_client import open_openai

            self._openai = open_openai(self._model_url(), self.api_key, self.http())
        return self._openai

    def _model_url(self) -> str:
        if not self.chat_completions_url:
            raise RuntimeError(
                f"this rollout has no model: `chat_completions_url` and {CHAT_COMPLETIONS_URL_ENV} are empty"
            )
        return self.chat_completions_url

    def set_sample_source(self, source: SampleSource) -> None:
        """Register the sample source. Raises ValueError if the rollout already has one."""
        if self.sample_source is not None:
            raise ValueError(
                "this rollout already has a sample source: create one session or agent per rollout"
            )
        self.sample_source = source

    async def get_sample(self) -> RolloutSample | None:
        """Return the registered source's sample, or None if no source is registered."""
        return None if self.sample_source is None else await self.sample_source.get_sample()


rollout_contextvar: ContextVar[RolloutContext | None] = ContextVar("osmosis_rollout_context", default=None)


def get_rollout_context() -> RolloutContext | None:
    """Return the active rollout, or None outside a rollout and inside a grader."""
    return rollout_contextvar.get()

"""What a workflow and a grader are given, and how code deep inside an agent finds its rollout.

The active rollout is a context variable: tasks an agent starts see it, other rollouts do not.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar

from .grader_notes import GraderNotes
from .types.config import AgentWorkflowConfig
from .types.sample import Messages, RolloutSample

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

    from .loop.agent import LLMClientProtocol
    from .loop.context import AgentLoopContext as _AlsoOfAgentLoops
    from .loop.schemas import OpenAIFunctionToolSchema, RolloutRequest
else:
    _AlsoOfAgentLoops = object

CHAT_COMPLETIONS_URL_ENV = "OSMOSIS_CHAT_COMPLETIONS_URL"
API_KEY_ENV = "OSMOSIS_API_KEY"
ROLLOUT_ID_ENV = "OSMOSIS_ROLLOUT_ID"

# The default keeps a bare `AgentWorkflow` fully typed in strict projects.
TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig, default=AgentWorkflowConfig)


class SampleSource(ABC):
    """Something that holds a rollout's conversation, such as a framework's session."""

    @abstractmethod
    async def get_sample(self) -> RolloutSample:
        """Return the sample; called once, after ``run`` returned None, within the agent's budget."""


@dataclass
class AgentWorkflowContext(Generic[TConfig]):
    """What one run of a workflow is about.

    Attributes:
        prompt: the initial messages; may be empty when ``metadata`` holds the row.
        config: this rollout's own copy of the workflow's configuration.
        metadata: the dataset row's own fields.
        artifacts_dir: a directory for files worth keeping; None when it could not be made.
    """

    prompt: Messages
    config: TConfig | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None


@dataclass
class GraderContext:
    """What one grading is about.

    Attributes:
        label: the ground truth, if the dataset has one.
        sample: what the workflow produced; None when it produced nothing.
        project_path: where the project's code lies, if the backend knows.
        metadata: the dataset row's own fields, the same dict the workflow saw.
        artifacts_dir: the directory the workflow wrote its files to.
    """

    label: str | None = None
    sample: RolloutSample | None = None
    project_path: str | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None

    def set_reward(
        self, reward: float, *, notes: str | None = None, parts: Mapping[str, float] | None = None
    ) -> None:
        """Give the sample its reward, and say what it stands on; the last call counts.

        Args:
            reward: a finite number.
            notes: shown with the sample; cut to 2,000 characters.
            parts: up to 32 finite numbers that the reward is made of, by names of up to 64 characters.

        Raises:
            ValueError: when there is no sample, or notes or parts are not such; the reward is then as it was.
            pydantic.ValidationError: (a ``ValueError``) when the reward is no finite number.
        """
        if self.sample is None:
            raise ValueError("there is no sample to reward")
        said = GraderNotes.checked(notes, parts)
        self.sample.reward = reward
        said.write(self.sample.extra_fields)


class _OneNameOfTwo(type):
    """One public name for the contexts of both lines: ``RolloutContext(request=..., tools=..., llm=...)`` is a loop's.

    Either is an instance of the name, so that annotations and checks hold for both.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        of_a_loop = {"request", "tools", "llm"} & kwargs.keys() or (
            args and not isinstance(args[0], (str, type(None)))
        )
        if cls is RolloutContext and of_a_loop:
            from .loop.context import AgentLoopContext

            return AgentLoopContext(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        if super().__subclasscheck__(subclass) or cls is not RolloutContext:
            return super().__subclasscheck__(subclass)
        from .loop.context import AgentLoopContext

        return issubclass(subclass, AgentLoopContext)


@dataclass
class RolloutContext(_AlsoOfAgentLoops, metaclass=_OneNameOfTwo):
    """The rollout that is running: its id, its model and where its sample comes from.

    Made with ``request=``, ``tools=`` and ``llm=``, it is the context of an agent loop, which has ``chat``,
    ``complete``, ``error`` and so on (:class:`osmosis_ai.rollout.loop.context.AgentLoopContext`) and none of these.

    What is left empty is read from the environment (``OSMOSIS_CHAT_COMPLETIONS_URL``,
    ``OSMOSIS_API_KEY``, ``OSMOSIS_ROLLOUT_ID``). Used with ``with``, it is what
    :func:`get_rollout_context` returns inside; the outer context comes back afterwards.

    Attributes:
        chat_completions_url: an OpenAI base URL; clients append ``/chat/completions``.
        api_key: the bearer token for it.
        rollout_id: the id.
        sample_source: asked for the sample when ``run`` returns None.
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

    def __post_init__(self) -> None:
        self.chat_completions_url = self.chat_completions_url or os.environ.get(CHAT_COMPLETIONS_URL_ENV, "")
        self.api_key = self.api_key or os.environ.get(API_KEY_ENV)
        self.rollout_id = self.rollout_id or os.environ.get(ROLLOUT_ID_ENV, "")

    def __enter__(self) -> RolloutContext:
        self._outer.append(rollout_contextvar.get())
        rollout_contextvar.set(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not ContextVar.reset: an async generator may leave the block in another task's context.
        rollout_contextvar.set(self._outer.pop())

    def http(self) -> httpx.AsyncClient:
        """Return a client for this rollout's model: ``await context.http().post("/chat/completions", json=...)``.

        All rollouts of a process share its connections, so it costs next to nothing. The rollout's key
        goes with requests to the model's address, and with no others.

        Raises:
            RuntimeError: when this rollout has no model.
        """
        if self._http is None or self._http.is_closed:
            from .model_client import open_http

            self._http = open_http(self._model_url(), self.api_key)
        return self._http

    def openai(self) -> AsyncOpenAI:
        """Return an OpenAI client for this rollout's model, over the connections of :meth:`http`.

        A call whose connection broke is sent again twice, and answered from the record of the first.

        Raises:
            RuntimeError: when this rollout has no model.
        """
        if self._openai is None or self._openai.is_closed():
            from .model_client import open_openai

            self._openai = open_openai(self._model_url(), self.api_key, self.http())
        return self._openai

    def _model_url(self) -> str:
        if not self.chat_completions_url:
            raise RuntimeError(
                "this rollout has no model: its `chat_completions_url` is empty "
                f"(outside of a rollout server, set {CHAT_COMPLETIONS_URL_ENV})"
            )
        return self.chat_completions_url

    def set_sample_source(self, source: SampleSource) -> None:
        """Register where the sample comes from.

        Raises:
            ValueError: when this rollout already has a sample source.
        """
        if self.sample_source is not None:
            raise ValueError(
                "this rollout already has a sample source; make one session, or one agent, per rollout"
            )
        self.sample_source = source

    async def get_sample(self) -> RolloutSample | None:
        """Return the registered source's sample; None when nothing is registered."""
        return None if self.sample_source is None else await self.sample_source.get_sample()


rollout_contextvar: ContextVar[RolloutContext | None] = ContextVar("osmosis_rollout_context", default=None)


def get_rollout_context() -> RolloutContext | None:
    """Return the rollout this code runs in; None outside of a rollout and inside a grader."""
    return rollout_contextvar.get()

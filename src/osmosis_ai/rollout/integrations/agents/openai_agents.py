"""OpenAI Agents SDK integration; needs the `openai-agents` extra. The session's conversation is the sample."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

from osmosis_ai.llm.litellm_backend import import_litellm

from ...context import SampleSource, get_rollout_context
from ...types import Messages, RolloutSample, snapshot
from ...utils.imports import needs_extra
from . import MODEL_ID, NO_KEY, framework_sample, placeholder_called, refuse_endpoint_options, running_rollout

with needs_extra("openai-agents", "an agent of the OpenAI Agents SDK"):
    # Check first that this is the framework at all, which costs little.
    import agents
    from agents.memory.session import SessionABC
    from agents.models.chatcmpl_converter import Converter

    import_litellm()
    from agents.extensions.models.litellm_model import LitellmModel

TContext = TypeVar("TContext")

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "SessionSampleSource",
]


class OsmosisRolloutModel(LitellmModel):
    """Placeholder for the rollout's model, for use in a workflow configuration.

    Accepts arguments of ``LitellmModel``, except those that select a model.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        # There is no address yet to initialize the base class with: the agent creates the real model.
        refuse_endpoint_options(litellm_kwargs, ("model", "base_url", "api_key"))
        self.litellm_kwargs = litellm_kwargs

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        """Always raise: a placeholder cannot answer."""
        raise placeholder_called("OsmosisAgent")

    get_response = stream_response


class OsmosisLitellmModel(LitellmModel):
    """The active rollout's model. Accepts further arguments of ``LitellmModel``."""

    def __init__(self, **litellm_kwargs: Any) -> None:
        self._rollout = running_rollout("OsmosisLitellmModel")
        super().__init__(
            **{
                **litellm_kwargs,
                "model": MODEL_ID,
                "base_url": self._rollout.chat_completions_url,
                "api_key": self._rollout.api_key or NO_KEY,
            }
        )

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the full answer. It is streamed, so that a long answer does not look like a dead connection."""
        answer = None
        async for event in self.stream_response(*args, **kwargs):
            if event.type == "response.completed":
                answer = event.response
        if answer is None:
            raise agents.exceptions.ModelBehaviorError(
                "the model's stream ended before its answer was complete"
            )
        usage, counted = agents.Usage(requests=1), answer.usage
        if counted is not None:
            usage = agents.Usage(
                requests=1,
                input_tokens=counted.input_tokens,
                output_tokens=counted.output_tokens,
                total_tokens=counted.total_tokens,
                input_tokens_details=counted.input_tokens_details,
                output_tokens_details=counted.output_tokens_details,
            )
        return agents.ModelResponse(output=answer.output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Return the answer's events."""
        running = get_rollout_context()
        if running is not None and running is not self._rollout:
            raise RuntimeError("this OsmosisLitellmModel belongs to another rollout: create it in `run`")
        source = self._rollout.sample_source
        if source is None:
            raise RuntimeError(
                "the rollout has no session, so its conversation would be lost: "
                "create one in `run` and pass it to `Runner.run(..., session=OsmosisMemorySession())`"
            )
        if isinstance(source, SessionSampleSource):
            source.keep_instructions(args[0] if args else kwargs.get("system_instructions"))
        events: AsyncIterator[Any] = super().stream_response(*args, **kwargs)
        return events

    async def _fetch_response(self, *args: Any, **kwargs: Any) -> Any:
        # By default LiteLLM keeps one client per address open for an hour. Framework releases without this method
        # use that default.
        client = {"client": self._rollout.openai()}
        with_client = (
            replace(each, extra_args=client | (each.extra_args or {}))
            if isinstance(each, agents.ModelSettings)
            else each
            for each in args
        )
        return await super()._fetch_response(*with_client, **kwargs)


class OsmosisAgent(agents.Agent[TContext]):
    """An agent that uses the rollout's model instead of the placeholder. Create it in ``run``.

    Accepts the arguments of ``agents.Agent``. A model other than the placeholder is kept.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        agent: Any = self
        if isinstance(agent.model, OsmosisRolloutModel):
            running_rollout("OsmosisAgent")
            agent.model = OsmosisLitellmModel(**agent.model.litellm_kwargs)


class OsmosisMemorySession(SessionABC):
    """An in-memory session. Inside a rollout, its conversation is the rollout's sample.

    Raises ValueError if the rollout already has a sample source. All methods raise RuntimeError if the session belongs to
    another rollout.
    """

    def __init__(self) -> None:
        context = get_rollout_context()
        self.session_id = (context.rollout_id if context else "") or uuid4().hex
        self.items: list[Any] = []
        self._source = SessionSampleSource(self)
        if context is not None:
            context.set_sample_source(self._source)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the latest ``limit`` items of the conversation, or all, oldest first."""
        self._require_registered()
        wanted = self.items if limit is None else self.items[-limit:] if limit > 0 else []
        return [snapshot(item) for item in wanted]

    async def add_items(self, items: list[Any]) -> None:
        """Append to the conversation."""
        self._require_registered()
        self.items.extend(snapshot(item) for item in items)

    async def pop_item(self) -> Any | None:
        """Remove and return the latest item, or None if the session is empty."""
        self._require_registered()
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        self._require_registered()
        self.items.clear()

    def _require_registered(self) -> None:
        context = get_rollout_context()
        if context is not None and context.sample_source is not self._source:
            raise RuntimeError(
                "this OsmosisMemorySession is not registered with the rollout that runs, so its conversation would be "
                "lost: create it in `run`"
            )


class SessionSampleSource(SampleSource):
    """Makes a session's conversation the rollout's sample."""

    def __init__(self, session: OsmosisMemorySession) -> None:
        self._session = session
        self._instructions: str | None = None

    def keep_instructions(self, instructions: str | None) -> None:
        """Keep the first agent's instructions, which the model sees but sessions leave out."""
        self._instructions = self._instructions or instructions

    async def get_sample(self) -> RolloutSample:
        """Return the conversation as items of the Responses API; chat messages are archived."""
        return framework_sample(self._session.items, self._chat_messages)

    def _chat_messages(self) -> Messages:
        system = [{"role": "system", "content": self._instructions}] if self._instructions else []
        return [*system, *(dict(message) for message in Converter.items_to_messages(self._session.items))]

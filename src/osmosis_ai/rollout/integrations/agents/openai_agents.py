"""Agents of the OpenAI Agents SDK on a rollout's model; needs the `openai-agents` extra.

The session is the sample: what the runner remembers of the conversation is what graders read. A model that is
called without one would leave a rollout without a conversation, so it refuses.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

from osmosis_ai.llm.litellm_transport import import_litellm

from ...context import SampleSource, get_rollout_context
from ...extras import needs_extra
from ...types.sample import Messages, RolloutSample, snapshot
from .endpoint import MODEL_ID, NO_KEY, placeholder_called, refuse_endpoint_options, running_rollout

with needs_extra("openai-agents", "an agent of the OpenAI Agents SDK"):
    # First what costs little: whether this is the framework at all.
    import agents
    from agents.memory.session import SessionABC
    from agents.models.chatcmpl_converter import Converter

    import_litellm()
    from agents.extensions.models.litellm_model import LitellmModel

logger = logging.getLogger(__name__)

TContext = TypeVar("TContext")

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "SessionSampleSource",
]


class OsmosisRolloutModel(LitellmModel):
    """Stands for the rollout's model where there is no rollout yet, such as in a workflow's configuration.

    Args:
        litellm_kwargs: further arguments of ``LitellmModel``.

    Raises:
        TypeError: an argument says which model answers, which is the run's to decide.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        # The model it stands for is made by its agent; there is no address here to make one with.
        refuse_endpoint_options(litellm_kwargs, ("model", "base_url", "api_key"))
        self.litellm_kwargs = litellm_kwargs

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a placeholder answers nothing."""
        raise placeholder_called("OsmosisAgent")

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a placeholder answers nothing."""
        raise placeholder_called("OsmosisAgent")


class OsmosisLitellmModel(LitellmModel):
    """The model of the rollout that runs.

    Args:
        litellm_kwargs: further arguments of ``LitellmModel``.

    Raises:
        RuntimeError: outside of a rollout.
    """

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
        """Return the whole answer. It is streamed all the same, so that a long one is not taken for a dead connection.

        Raises:
            RuntimeError: no session of this rollout's exists.
        """
        answer = None
        async for event in self.stream_response(*args, **kwargs):
            if event.type == "response.completed":
                answer = event.response
        if answer is None:
            raise agents.exceptions.ModelBehaviorError(
                "the model's stream ended before its answer was complete"
            )
        return agents.ModelResponse(output=answer.output, usage=_usage(answer), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Return the answer's events.

        Raises:
            RuntimeError: no session of this rollout's exists, or the call is made in another rollout.
        """
        running = get_rollout_context()
        if running is not None and running is not self._rollout:
            raise RuntimeError(
                "this OsmosisLitellmModel belongs to another rollout: create one per rollout in `run`, like the "
                "`OsmosisMemorySession()`"
            )
        source = self._rollout.sample_source
        if source is None:
            raise RuntimeError(
                "the rollout has no session, so its conversation would be lost: make an `OsmosisMemorySession()` in "
                "`run` and pass it on: `Runner.run(agent, ctx.prompt, session=session)`"
            )
        if isinstance(source, SessionSampleSource):
            source.keep_instructions(args[0] if args else kwargs.get("system_instructions"))
        events: AsyncIterator[Any] = super().stream_response(*args, **kwargs)
        return events

    async def _fetch_response(self, *args: Any, **kwargs: Any) -> Any:
        # One client of its own for each address, kept open for an hour, is LiteLLM's other choice. A release of the
        # framework that has no such method makes do with that.
        return await super()._fetch_response(*map(self._over_the_rollouts_client, args), **kwargs)

    def _over_the_rollouts_client(self, argument: Any) -> Any:
        if not isinstance(argument, agents.ModelSettings):
            return argument
        own = {"client": self._rollout.openai(), **(argument.extra_args or {})}
        return replace(argument, extra_args=own)


class OsmosisAgent(agents.Agent[TContext]):
    """An agent whose placeholder for a model becomes the rollout's own; made in ``run``.

    Takes what ``agents.Agent`` takes; any other model stays as it is.

    Raises:
        RuntimeError: with a placeholder, outside of a rollout.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        agent: Any = self
        if isinstance(agent.model, OsmosisRolloutModel):
            running_rollout("OsmosisAgent")
            agent.model = OsmosisLitellmModel(**agent.model.litellm_kwargs)


class OsmosisMemorySession(SessionABC):
    """A conversation in memory, which is the sample of the rollout that it is made in.

    Outside of a rollout it is plain memory.

    Attributes:
        session_id: the rollout's id, else one of its own.
        items: the conversation, oldest first.

    Raises:
        ValueError: the rollout has a session, or another source of its sample, already.
    """

    def __init__(self) -> None:
        context = get_rollout_context()
        self.session_id = (context.rollout_id if context else "") or uuid4().hex
        self.items: list[Any] = []
        self._source = SessionSampleSource(self)
        if context is not None:
            context.set_sample_source(self._source)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the conversation, oldest first.

        Args:
            limit: how many of the latest items at most; None for all.

        Raises:
            RuntimeError: the session is not the one of the rollout that runs. Of every other method, too.
        """
        self._require_registered()
        wanted = self.items if limit is None else self.items[-limit:] if limit > 0 else []
        return [snapshot(item) for item in wanted]

    async def add_items(self, items: list[Any]) -> None:
        """Add to the end of the conversation."""
        self._require_registered()
        self.items.extend(snapshot(item) for item in items)

    async def pop_item(self) -> Any | None:
        """Take the latest item away and return it; None when there is none."""
        self._require_registered()
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        """Forget everything."""
        self._require_registered()
        self.items.clear()

    def _require_registered(self) -> None:
        context = get_rollout_context()
        if context is not None and context.sample_source is not self._source:
            raise RuntimeError(
                "this OsmosisMemorySession is not registered with the rollout that runs, so its conversation would be "
                "lost: make one in `run`, for each rollout"
            )


class SessionSampleSource(SampleSource):
    """A session's conversation as a rollout's sample.

    Args:
        session: the session.
    """

    def __init__(self, session: OsmosisMemorySession) -> None:
        self._session = session
        self._instructions: str | None = None

    def keep_instructions(self, instructions: str | None) -> None:
        """Remember what the first agent was told: the model sees it before the items, and sessions leave it out."""
        self._instructions = self._instructions or instructions

    async def get_sample(self) -> RolloutSample:
        """Return the conversation: as the framework has it for graders, as chat messages for the archive."""
        return RolloutSample(
            messages=[snapshot(item) for item in self._session.items],
            trajectory_messages=self._chat_messages(),
        )

    def _chat_messages(self) -> Messages | None:
        """Return the conversation as chat messages; None, with a warning, where it has no such form."""
        told = [{"role": "system", "content": self._instructions}] if self._instructions else []
        try:
            return [*told, *(dict(message) for message in Converter.items_to_messages(self._session.items))]
        except Exception:
            # Items come from any tool and any model; what the archive cannot show must not cost the sample.
            logger.warning(
                "the session's items are no chat messages, so no trajectory is archived", exc_info=True
            )
            return None


def _usage(answer: Any) -> Any:
    usage = answer.usage
    if usage is None:
        return agents.Usage(requests=1)
    return agents.Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=usage.input_tokens_details,
        output_tokens_details=usage.output_tokens_details,
    )

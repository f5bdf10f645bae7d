"""Agents of Strands on a rollout's model; needs the `strands` extra.

The agent is the sample: its messages, when ``run`` is over, are what graders read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_ai.llm.litellm_transport import import_litellm

from ...context import SampleSource
from ...extras import needs_extra
from ...types.sample import Messages, RolloutSample, snapshot
from ...utils.messages import map_initial_messages_to_content_blocks
from .endpoint import MODEL_ID, NO_KEY, placeholder_called, refuse_endpoint_options, running_rollout

with needs_extra("strands", "a Strands agent"):
    # First what costs little: whether this is the framework at all.
    import strands.models

    import_litellm()
    from strands.models.litellm import LiteLLMModel

logger = logging.getLogger(__name__)

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent"]


class OsmosisRolloutModel(LiteLLMModel):
    """Stands for the rollout's model where there is no rollout yet, such as in a workflow's configuration.

    Args:
        model_config: what ``LiteLLMModel`` takes, such as ``params={"temperature": 1.0}``.

    Raises:
        TypeError: an argument says which model answers, which is the run's to decide.
    """

    def __init__(self, **model_config: Any) -> None:
        refuse_endpoint_options(model_config, ("client_args", "model_id"))
        super().__init__(**model_config)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a placeholder answers nothing."""
        raise placeholder_called("OsmosisStrandsAgent")

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a placeholder answers nothing."""
        raise placeholder_called("OsmosisStrandsAgent")


class OsmosisStrandsAgent(strands.Agent):
    """An agent whose placeholder for a model becomes the rollout's own, and whose messages are the sample.

    Takes what ``strands.Agent`` takes. With any other model it is a Strands agent like all others, and no sample.

    Args:
        model: the placeholder, or any model of Strands.
        messages: the conversation so far; contents may be plain strings, as in ``ctx.prompt``.

    Raises:
        RuntimeError: with a placeholder, outside of a rollout.
        ValueError: with a placeholder, when the rollout has another source of its sample already.
    """

    def __init__(
        self,
        model: Any = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        rollout = None
        if isinstance(model, OsmosisRolloutModel):
            rollout = running_rollout("OsmosisStrandsAgent")
            model = LiteLLMModel(
                client_args={
                    "api_base": rollout.chat_completions_url,
                    "api_key": rollout.api_key or NO_KEY,
                    # One of its own for each address, kept open for an hour, is LiteLLM's other choice.
                    "client": rollout.openai(),
                },
                model_id=MODEL_ID,
                **model.get_config(),
            )
        blocks = None if messages is None else map_initial_messages_to_content_blocks(messages)
        super().__init__(model, blocks, *args, **kwargs)
        if rollout is not None:
            rollout.set_sample_source(StrandsAgentSampleSource(self))


class StrandsAgentSampleSource(SampleSource):
    """An agent's messages as a rollout's sample.

    Args:
        agent: the agent.
    """

    def __init__(self, agent: OsmosisStrandsAgent) -> None:
        self._agent = agent

    async def get_sample(self) -> RolloutSample:
        """Return the conversation: in Strands' blocks for graders, as the model was sent it for the archive."""
        return RolloutSample(
            messages=[snapshot(message) for message in self._agent.messages],
            trajectory_messages=self._chat_messages(),
        )

    def _chat_messages(self) -> Messages | None:
        """Return the messages as the model was sent them; None, with a warning, where they have no such form."""
        try:
            return list(LiteLLMModel.format_request_messages(self._agent.messages, self._agent.system_prompt))
        except Exception:
            # Blocks come from any tool and any model; what the archive cannot show must not cost the sample.
            logger.warning(
                "the agent's messages are no chat messages, so no trajectory is archived", exc_info=True
            )
            return None

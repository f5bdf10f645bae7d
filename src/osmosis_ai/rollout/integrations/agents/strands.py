"""Strands integration; needs the `strands` extra. The agent's messages are the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_ai.llm.litellm_backend import import_litellm

from ...context import SampleSource
from ...types import RolloutSample
from ...utils import map_initial_messages_to_content_blocks
from ...utils.imports import needs_extra
from . import MODEL_ID, NO_KEY, framework_sample, placeholder_called, refuse_endpoint_options, running_rollout

with needs_extra("strands", "a Strands agent"):
    # Check first that this is the framework at all, which costs little.
    import strands.models

    import_litellm()
    from strands.models.litellm import LiteLLMModel

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent"]


class OsmosisRolloutModel(LiteLLMModel):
    """Placeholder for the rollout's model, for use in a workflow configuration.

    Accepts arguments of ``LiteLLMModel``, such as ``params={"temperature": 1.0}``, except those that select a model.
    """

    def __init__(self, **model_config: Any) -> None:
        refuse_endpoint_options(model_config, ("client_args", "model_id"))
        super().__init__(**model_config)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Always raise: a placeholder cannot answer."""
        raise placeholder_called("OsmosisStrandsAgent")

    structured_output = stream


class OsmosisStrandsAgent(strands.Agent):
    """An agent that uses the rollout's model instead of the placeholder, and whose messages are the sample.

    Accepts the arguments of ``strands.Agent``; contents of ``messages`` may be plain strings, as in ``ctx.prompt``. With
    another model it is an ordinary Strands agent and provides no sample.

    Raises:
        RuntimeError: A placeholder is used outside a rollout.
        ValueError: A placeholder is used in a rollout that already has a sample source.
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
                    # By default LiteLLM keeps one client per address open for an hour.
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
    """Makes an agent's messages the rollout's sample."""

    def __init__(self, agent: OsmosisStrandsAgent) -> None:
        self._agent = agent

    async def get_sample(self) -> RolloutSample:
        """Return the conversation as Strands blocks; the messages sent to the model are archived."""
        messages, system = self._agent.messages, self._agent.system_prompt
        return framework_sample(
            messages, lambda: list(LiteLLMModel.format_request_messages(messages, system))
        )

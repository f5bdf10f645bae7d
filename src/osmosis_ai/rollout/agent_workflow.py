"""The agent a user writes: one class, one method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from .context import AgentWorkflowContext, TConfig
from .types.output import AgentWorkflowOutput
from .types.sample import Messages


class AgentWorkflow(ABC, Generic[TConfig]):
    """An agent. A fresh instance runs each rollout.

    Subclass it as ``AgentWorkflow[MyConfig]``, or bare when there is no configuration of your own.
    """

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> AgentWorkflowOutput | Messages | None:
        """Play one rollout: talk to the model, use tools, come to an end.

        The model's address and key are in :func:`osmosis_ai.rollout.get_rollout_context`.

        Returns:
            the conversation as a list of messages, an AgentWorkflowOutput, or None when a sample
            source registered with the rollout's context has it.
        """

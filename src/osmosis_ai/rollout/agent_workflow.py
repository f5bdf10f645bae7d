"""Base class for user-written agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from .context import AgentWorkflowContext, TConfig
from .types import AgentWorkflowOutput, Messages


class AgentWorkflow(ABC, Generic[TConfig]):
    """Base class for an agent. Each rollout runs in a new instance.

    Subclass it as ``AgentWorkflow[MyConfig]``, or without a parameter if you need no configuration.
    """

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> AgentWorkflowOutput | Messages | None:
        """Run one rollout.

        :func:`osmosis_ai.rollout.get_rollout_context` has the model's address and key.

        Returns:
            The conversation as a list of messages, an AgentWorkflowOutput, or None to use the sample
            source registered with the rollout context.
        """

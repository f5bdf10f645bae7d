"""What agent loops are written against, under the path that 0.2 had."""

from __future__ import annotations

from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.loop.agent import (
    CompletionsResult,
    LLMClientProtocol,
    RolloutAgentLoop,
    RolloutResult,
)

__all__ = ["CompletionsResult", "LLMClientProtocol", "RolloutAgentLoop", "RolloutContext", "RolloutResult"]

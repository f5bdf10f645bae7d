"""Base classes of agent loops under their 0.2 import path."""

from __future__ import annotations

from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.loop.agent import (
    CompletionsResult,
    LLMClientProtocol,
    RolloutAgentLoop,
    RolloutResult,
)

__all__ = ["CompletionsResult", "LLMClientProtocol", "RolloutAgentLoop", "RolloutContext", "RolloutResult"]

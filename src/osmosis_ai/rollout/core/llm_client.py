"""What a loop asks its model through, under the path that 0.2 had."""

from __future__ import annotations

from osmosis_ai.rollout.loop.agent import CompletionsResult, LLMClientProtocol

__all__ = ["CompletionsResult", "LLMClientProtocol"]

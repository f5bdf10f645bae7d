"""LLM client of agent loops under its 0.2 import path."""

from __future__ import annotations

from osmosis_ai.rollout.loop.agent import CompletionsResult, LLMClientProtocol

__all__ = ["CompletionsResult", "LLMClientProtocol"]

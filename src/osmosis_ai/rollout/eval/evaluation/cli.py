"""Inputs of agent-loop commands (0.2 import path)."""

from osmosis_ai.evaluation.agent_loop.inputs import build_completion_params, load_agent, load_dataset_rows
from osmosis_ai.evaluation.agent_loop.llm_client import create_llm_client
from osmosis_ai.evaluation.agent_loop.runner import format_duration, format_tokens

__all__ = [
    "build_completion_params",
    "create_llm_client",
    "format_duration",
    "format_tokens",
    "load_agent",
    "load_dataset_rows",
]

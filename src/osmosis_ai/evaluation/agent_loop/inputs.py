"""What a local run of an agent loop is given: the agent, its rows, its model and how the model should sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.agent_loop.dataset import DatasetReader
from osmosis_ai.evaluation.agent_loop.errors import DatasetValidationError
from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient
from osmosis_ai.evaluation.agent_loop.report import format_duration, format_tokens
from osmosis_ai.evaluation.agent_loop.runner import DEFAULT_MODEL

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.dataset import LoopRow
    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop

__all__ = [
    "build_completion_params",
    "create_llm_client",
    "format_duration",
    "format_tokens",
    "load_agent",
    "load_dataset_rows",
]


def load_agent(module: str) -> RolloutAgentLoop:
    """Return the agent that ``module:attribute`` names."""
    from osmosis_ai.rollout.loop.loading import load_agent_loop

    return load_agent_loop(module)


def load_dataset_rows(
    dataset: str | Path, limit: int | None = None, offset: int = 0, empty: str = "No rows to evaluate"
) -> list[LoopRow]:
    """Return rows of a dataset file."""
    rows = DatasetReader(dataset).read(limit=limit, offset=offset)
    if not rows:
        raise DatasetValidationError(f"{empty}: {dataset} has none from row {offset} on.")
    return rows


def create_llm_client(
    model: str = DEFAULT_MODEL, api_key: str | None = None, base_url: str | None = None
) -> ExternalLLMClient:
    """Return the client of a model; see :class:`ExternalLLMClient`."""
    return ExternalLLMClient(model, api_key=api_key, api_base=base_url)


def build_completion_params(
    temperature: float | None = None, max_tokens: int | None = None
) -> dict[str, Any]:
    """Return the sampling parameters of a request, without those that are not set."""
    given = {"temperature": temperature, "max_tokens": max_tokens}
    return {name: value for name, value in given.items() if value is not None}

"""Shared code of agent-loop tests and evaluations (0.2 import paths)."""

from __future__ import annotations

from pathlib import Path

from osmosis_ai.evaluation.agent_loop.inputs import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.inputs import (
    DEFAULT_MODEL,
    DatasetReader,
    DatasetValidationError,
    LoopRow,
)
from osmosis_ai.evaluation.agent_loop.llm_client import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient
from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403


def load_dataset_rows(dataset: str | Path, limit: int | None = None, offset: int = 0) -> list[LoopRow]:
    """Return rows of a dataset file.

    Raises:
        DatasetValidationError: a row is invalid, or there are no rows.
    """
    rows = DatasetReader(dataset).read(limit, offset)
    if not rows:
        raise DatasetValidationError(f"No rows to evaluate: '{dataset}' has no row {offset}.")
    return rows


def create_llm_client(
    model: str = DEFAULT_MODEL, api_key: str | None = None, base_url: str | None = None
) -> ExternalLLMClient:
    """Return the client of a model; see :class:`ExternalLLMClient`."""
    return ExternalLLMClient(model, api_key=api_key, api_base=base_url)

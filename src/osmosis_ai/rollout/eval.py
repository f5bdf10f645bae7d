"""Local tests and evaluations of agent loops under their 0.2 import paths."""

from __future__ import annotations

import sys
from pathlib import Path

from osmosis_ai.evaluation.agent_loop.inputs import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.inputs import (
    DEFAULT_MODEL,
    DatasetReader,
    DatasetValidationError,
    LoopRow,
)
from osmosis_ai.evaluation.agent_loop.interactive import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.llm_client import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient
from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403
from osmosis_ai.rollout.eval_functions import *  # noqa: F403


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


# Import paths of the 0.2 SDK that are this module.
_PATHS = """
    common common.cli common.dataset common.errors common.llm_client common.runner
    evaluation evaluation.cli evaluation.eval_fn evaluation.report evaluation.runner
    test_mode test_mode.cli test_mode.interactive test_mode.runner
"""
for _path in _PATHS.split():
    sys.modules[f"{__name__}.{_path}"] = sys.modules[__name__]
    globals()[_path.rpartition(".")[2]] = sys.modules[__name__]

"""Resolve a run's ``model_path``: a built-in model, a trained adapter, or a provider's model.

An adapter is named like its endpoint, ``<base model>:<adapter>``. Provider names may contain colons, too
(``ollama/llama3:8b``), so only the names of the workspace's adapters decide. Runs can use undeployed adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.config.issues import Issue
from osmosis_ai.inference.catalog import base_model_of
from osmosis_ai.training import has_train_extra

MODEL_PATH = "experiment.model_path"

IsAdapter = Callable[[str], bool]
"""Tells whether a ``model_path`` is an adapter of the workspace that submits."""


@dataclass(frozen=True)
class PolicyWeights:
    """The weights of a run: a base model, with the files of an adapter or without."""

    base_model: str
    adapter: Path | None = None


def is_servable(base_model: str) -> bool:
    """Tell whether this platform can serve adapters of a model: a built-in one, or any where torch is installed."""
    from osmosis_ai.inference.catalog import engine_of

    return engine_of(base_model) == "numpy" or has_train_extra()


def unknown_adapter(model_path: str) -> Issue | None:
    """Return what is wrong with a ``model_path`` that reads as an adapter of a built-in model and is none."""
    base = base_model_of(model_path)
    if base == model_path:
        return None
    name = model_path.rpartition(":")[2]
    return Issue(
        MODEL_PATH,
        f"this workspace has no adapter '{name}' of `{base}`; `osmosis model list` shows its adapters",
    )

"""Built-in models and the names of tool call formats. This module loads no model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from osmosis_ai.errors import NotFoundError

FormatName = Literal["hermes", "qwen3_coder", "mistral", "deepseek", "llama3_json", "pythonic"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)

# No provider has it.
BUILT_IN_PREFIX = "osmosis/"
MODELS_DIR = Path(__file__).parent / "models"

_MODELS = {"osmosis/tiny": MODELS_DIR / "tiny"}


def served_models() -> tuple[str, ...]:
    """Return the built-in models, which need only NumPy; every other one needs torch."""
    return tuple(_MODELS)


def base_model_of(model_path: str) -> str:
    """Return the built-in model that ``model_path`` is an adapter of, otherwise ``model_path``."""
    base = model_path.rpartition(":")[0]
    return base if base in served_models() else model_path


def built_in_model(name: str) -> Path:
    """Return the folder of a built-in model."""
    if name in _MODELS:
        return _MODELS[name]
    known = ", ".join(served_models())
    raise NotFoundError(
        f"Unknown built-in model: {name} (available: {known}).",
        hint="a trained model answers at its platform: use the platform's /v1 address and an API key"
        if ":" in name
        else None,
    )

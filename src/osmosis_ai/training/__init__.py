"""Train an agent's model: sample, grade, compare within groups, update, publish, checkpoint, validate.

The learner receives exactly the sampled token ids and their sampling log-probabilities; nothing is tokenised a second
time. Only modules that compute import torch, so settings, advantages and the CLI stay light.
"""

from __future__ import annotations

from importlib.util import find_spec

from osmosis_ai.errors import MissingExtraError

_TRAIN_MODULES = ("torch", "transformers", "peft")


def require_train_extra() -> None:
    """Make sure, before anything slow or irreversible begins, that what training needs is installed."""
    module = _missing_module()
    if module is not None:
        raise MissingExtraError("train", module)


def has_train_extra() -> bool:
    """Tell whether what training needs is installed; does not import it."""
    return _missing_module() is None


def _missing_module() -> str | None:
    return next((module for module in _TRAIN_MODULES if find_spec(module) is None), None)

"""What the trainer of this release has against a training config, beyond the rules that hold for every platform.

Light: a submit and a platform check every config with it, and load no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osmosis_ai.config.issues import InvalidConfigError, Issue
from osmosis_ai.config.spelling import closest
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, base_model_of, served_models

_SECTIONS = ("training", "sampling", "checkpoints", "advanced")


def read_settings(document: Mapping[str, Any]) -> TrainingSettings:
    """Return the settings that a config's sections say; what is no table counts as empty.

    Raises:
        InvalidConfigError: with everything that is wrong in them.
    """
    sections = [document.get(name) for name in _SECTIONS]
    model_path = model_path_of(document)
    return TrainingSettings.from_config(
        *(section if isinstance(section, Mapping) else {} for section in sections),
        model_path=base_model_of(model_path) if model_path is not None else None,
    )


def trainer_issues(document: Mapping[str, Any]) -> list[Issue]:
    """Return everything the trainer would refuse in a config, as far as its text tells."""
    model_path = model_path_of(document)
    unknown = unknown_built_in(model_path) if model_path is not None else None
    found = [unknown] if unknown is not None else []
    try:
        read_settings(document)
    except InvalidConfigError as error:
        found += error.issues
    return found


def model_path_of(document: Mapping[str, Any]) -> str | None:
    """Return the model that a config names, if it names one."""
    experiment = document.get("experiment")
    model_path = experiment.get("model_path") if isinstance(experiment, Mapping) else None
    return model_path if isinstance(model_path, str) else None


def unknown_built_in(model_path: str) -> Issue | None:
    """Return what is wrong with a name that only a built-in model can have, and none has."""
    if not model_path.startswith(BUILT_IN_PREFIX) or base_model_of(model_path) in served_models():
        return None
    return Issue(
        "experiment.model_path",
        f"there is no built-in model `{model_path}`",
        suggestion=closest(model_path, served_models()),
    )

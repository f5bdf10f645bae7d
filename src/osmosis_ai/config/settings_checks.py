"""The settings that this release's trainer reads from a training config, and checks of them.

Importing this module loads no model. A key of ``[advanced]`` that looks like a misspelling of one of ours is an error;
any other unknown key is for another trainer and has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from osmosis_ai.config.checks import TRAINING, ConfigKind, section_issues
from osmosis_ai.config.execution import EXECUTION, execution_issues
from osmosis_ai.config.issues import InvalidConfigError, Issue, closest
from osmosis_ai.config.training import (
    TINY_MODEL,
    TINY_MODEL_LR,
    TRAINER_SECTIONS,
    AdvancedSection,
    TrainingSettings,
)
from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, base_model_of, served_models

_SECTION_OF = {key: name for name, model in TRAINER_SECTIONS.items() for key in model.model_fields}
_ENGINE_KEYS = {"policy_engine", "vllm_url", "vllm_command", "rollout_top_p"}


def read_settings(
    document: Mapping[str, Any], *, shown_path: str = "the training config"
) -> TrainingSettings:
    """Return the settings of a config; missing keys get their defaults."""
    written = {
        name: section if isinstance(section := document.get(name), Mapping) else {}
        for name in TRAINER_SECTIONS
    }
    ignored = tuple(key for key in written["advanced"] if _is_for_others(key))
    written["advanced"] = {
        key: value for key, value in written["advanced"].items() if key not in (*ignored, EXECUTION)
    }
    issues = [
        _explained(issue) for name in written for issue in section_issues(name, written[name], TRAINING)
    ]
    wrong = {issue.key for issue in issues}
    values = {
        key: value
        for name, section in written.items()
        for key, value in section.items()
        if f"{name}.{key}" not in wrong
    }
    model_path = model_path_of(document)
    if model_path is not None and base_model_of(model_path) == TINY_MODEL:
        values.setdefault("lr", TINY_MODEL_LR)
    # If one of the engine's keys is invalid, the intended engine is unknown.
    if not {key.rpartition(".")[2] for key in wrong} & _ENGINE_KEYS:
        try:
            settings = TrainingSettings(**values, ignored=ignored)
        except ValidationError as error:
            issues += _wrong_together(error)
    if issues:
        raise InvalidConfigError(TRAINING.name, shown_path, issues)
    return settings


def settings_issues(document: Mapping[str, Any], kind: ConfigKind) -> list[Issue]:
    """Return the issues that only this release finds in a config, in the order of the text."""
    model_path = model_path_of(document)
    unknown = unknown_built_in(model_path) if model_path is not None else None
    found = [*([unknown] if unknown is not None else []), *execution_issues(document)]
    if kind is TRAINING:
        try:
            read_settings(document)
        except InvalidConfigError as error:
            found += error.issues
    return found


def model_path_of(document: Mapping[str, Any]) -> str | None:
    """Return the model that a config names, or None."""
    experiment = document.get("experiment")
    model_path = experiment.get("model_path") if isinstance(experiment, Mapping) else None
    return model_path if isinstance(model_path, str) else None


def unknown_built_in(model_path: str) -> Issue | None:
    """Return an issue if a name has the form of a built-in model but is not one."""
    if not model_path.startswith(BUILT_IN_PREFIX) or base_model_of(model_path) in served_models():
        return None
    return Issue(
        "experiment.model_path",
        f"there is no built-in model `{model_path}`",
        suggestion=closest(model_path, served_models()),
    )


def _is_for_others(key: str) -> bool:
    return key != EXECUTION and key not in _SECTION_OF and closest(key, AdvancedSection.model_fields) is None


def _explained(issue: Issue) -> Issue:
    if issue.key != "advanced.policy_engine" or 'got "sglang"' not in issue.message:
        return issue
    return replace(
        issue,
        message=f"{issue.message}; SGLang's documents do not say which log-probabilities it returns",
    )


def _wrong_together(error: ValidationError) -> Iterator[Issue]:
    """Yield the issues of settings that are valid individually but not in combination."""
    for detail in error.errors(include_url=False):
        for key, message in detail["ctx"]["problems"].items():
            yield Issue(f"{_SECTION_OF[key]}.{key}", message)

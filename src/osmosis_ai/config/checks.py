"""The kinds of configs, and all checks of a parsed config that need no network; they report every issue at once.

Models of training and of ``[advanced.execution]`` are imported only for configs that use them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.issues import InvalidConfigError, Issue, as_written, closest, table_issues, unknown_key
from osmosis_ai.config.sections import ConfigSection, EvaluationSettings, Experiment
from osmosis_ai.config.toml_text import key_lines

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings

_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
LONGEST_SECRET_NAME = 255
LOGIN_TOKEN = "OSMOSIS_TOKEN"
"""A name that no secret may have: a run's processes would log in with its value."""
_LOOKS_LIKE_A_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]{1,16}){0,6}")
_RESERVED_PREFIX = "_OSMOSIS_"


@dataclass(frozen=True)
class ConfigKind:
    """A kind of config: the directory of its files and its sections."""

    name: str
    article: str
    directory: str
    sections: tuple[str, ...]
    models: Callable[[], Mapping[str, type[ConfigSection]]]
    free: tuple[str, ...] = ("advanced", "env", "secrets")
    """Sections without a model, or with one that lists only some of the keys."""

    @property
    def parts(self) -> dict[str, str]:
        """The section for each part of a submit's body, in the order of the body."""
        return {f"{section}_config": section for section in (*self.sections, "advanced", "env")}


def _training_models() -> Mapping[str, type[ConfigSection]]:
    from osmosis_ai.config.training import TRAINER_SECTIONS

    return {"experiment": Experiment, **TRAINER_SECTIONS}


EVAL = ConfigKind(
    "eval",
    "An eval",
    "configs/eval",
    ("experiment", "evaluation"),
    lambda: {"experiment": Experiment, "evaluation": EvaluationSettings},
)
TRAINING = ConfigKind(
    "training",
    "A training",
    "configs/training",
    ("experiment", "training", "sampling", "checkpoints"),
    _training_models,
)


def all_sections() -> Mapping[str, type[ConfigSection]]:
    """Return the model of every section of eval and training configs."""
    return {**EVAL.models(), **TRAINING.models()}


def commented_keys(section: str) -> str:
    """Return every optional key as a commented-out line of TOML with its meaning."""
    lines = []
    for key, field in all_sections()[section].model_fields.items():
        if not field.is_required():
            value = field.examples[0] if field.examples else field.default
            lines.append(f"{f'# {key} = {json.dumps(value)} '.ljust(41)}# {field.description}")
    return "\n".join(lines)


def keys_by_section() -> str:
    """Return a Markdown table of the sections and the names of their keys."""
    rows = [
        f"| `[{name}]` | {', '.join(f'`{key}`' for key in model.model_fields)} |"
        for name, model in all_sections().items()
        if name != "advanced"
    ]
    return "\n".join(["| section | keys |", "|---|---|", *rows])


def is_secret_name(name: str) -> bool:
    """Return whether ``name`` is a valid secret name; configs, the terminal and the platform use this rule."""
    return SECRET_NAME.fullmatch(name) is not None and len(name) <= LONGEST_SECRET_NAME


def in_file_order(issues: Iterable[Issue], text: str) -> list[Issue]:
    """Return a file's issues with their lines, in the order of ``text``."""
    lines = {".".join(path): line for path, line in key_lines(text).items()}
    placed = [
        replace(issue, line=lines.get(issue.key, lines.get(issue.key.partition(".")[0]))) for issue in issues
    ]
    return sorted(placed, key=lambda issue: issue.line or 0)


def document_issues(document: Mapping[str, Any], kind: ConfigKind) -> list[Issue]:
    """Return all issues of ``document``, which may be a file or the body of a submit."""
    return [
        *_unknown_sections(document, kind),
        *_section_issues(document, kind),
        *env_issues(document.get("env", {}), "env"),
        *_secrets_issues(document, kind),
        *_conflicts(document),
        *(_advanced_issues(document.get("advanced", {}), "advanced") if "advanced" in kind.free else ()),
    ]


def _unknown_sections(document: Mapping[str, Any], kind: ConfigKind) -> Iterator[Issue]:
    known = (*kind.sections, *kind.free)
    for name, value in document.items():
        if name in known:
            continue
        other = next((other for other in (EVAL, TRAINING) if name in other.sections), None)
        if not isinstance(value, dict):
            yield unknown_key(name, kind.models(), ())
        elif other is not None:
            yield Issue(name, f"Unrecognized section; it belongs to configs in {other.directory}/")
        else:
            yield Issue(name, "Unrecognized section", suggestion=closest(name, known))


def _section_issues(document: Mapping[str, Any], kind: ConfigKind) -> Iterator[Issue]:
    models = kind.models()
    for name in kind.sections:
        section = document.get(name)
        if isinstance(section, dict):
            yield from table_issues(name, section, models[name], models)
        elif section is not None:
            yield Issue(name, f"must be a table, got {as_written(section)}")
        elif name == "experiment":
            yield Issue(name, "Missing [experiment] section")


def env_issues(env: Any, place: str) -> Iterator[Issue]:
    """Yield the issues of a table of variables at ``place``."""
    if not isinstance(env, dict):
        yield Issue(place, f"must be a table, got {as_written(env)}")
        return
    for name, value in env.items():
        key = f"{place}.{name}"
        if not _ENV_NAME.fullmatch(name):
            yield Issue(key, f"the name of a variable must match ^{_ENV_NAME.pattern}$")
        elif name.startswith(_RESERVED_PREFIX):
            yield Issue(key, f"names that start with {_RESERVED_PREFIX} are reserved")
        if not isinstance(value, str):
            yield Issue(key, f"must be a string, got {as_written(value)}")
        elif "\0" in value:
            yield Issue(key, "must not contain a NUL character")


def _secrets_issues(document: Mapping[str, Any], kind: ConfigKind) -> Iterator[Issue]:
    """Yield the issues of `[secrets]`; they repeat no value, which may be a key pasted into the wrong place."""
    secrets, key = document.get("secrets"), "secrets.required"
    if secrets is None:
        if kind is EVAL:
            yield Issue(
                "secrets", "Missing [secrets] section; write `required = []` in it when no key is needed"
            )
        return
    if not isinstance(secrets, dict):
        yield Issue("secrets", "must be a table with the key `required`")
        return
    for name in secrets:
        if name != "required":
            yield Issue(
                f"secrets.{name}", 'Unrecognized key; [secrets] only lists names: required = ["NAME"]'
            )
    required = secrets.get("required")
    if "required" not in secrets:
        yield Issue(key, "Missing 'required' in [secrets] section")
    elif not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield Issue(key, "must be a list of strings, the names of secrets")
    else:
        yield from _secret_name_issues(key, required)


def _secret_name_issues(key: str, required: list[str]) -> Iterator[Issue]:
    for position, name in enumerate(required, start=1):
        if is_secret_name(name):
            continue
        rule = f"the name of a secret must match ^{SECRET_NAME.pattern}$"
        renamed = name.upper().replace("-", "_")
        # Only a name that cannot be a pasted key is repeated.
        if _LOOKS_LIKE_A_NAME.fullmatch(name) and "_" in name and is_secret_name(renamed):
            yield Issue(key, f"'{name}' is not a valid secret name: {rule}", suggestion=renamed)
        else:
            yield Issue(key, f"entry {position} is not a valid secret name: {rule}")
    for name, count in Counter(required).items():
        if count > 1 and is_secret_name(name):
            yield Issue(key, f"'{name}' is listed {count} times")


def _conflicts(document: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield the issues of values that are valid, but not together."""
    sections = ("experiment", "env", "secrets", "advanced")
    experiment, env, secrets, advanced = (document.get(name) for name in sections)
    if isinstance(experiment, dict) and "branch" in experiment and "commit_sha" in experiment:
        yield Issue("experiment.commit_sha", "cannot be combined with `branch`; keep one of them")
    required = secrets.get("required") if isinstance(secrets, dict) else None
    if isinstance(env, dict) and isinstance(required, list):
        both = sorted(name for name in env if name in required)
        if both:
            yield Issue("env", f"Name(s) appear in both [env] and [secrets]: {', '.join(both)}")
    hosted = {"backend": "tinker", "tinker_server": "hosted"}
    if isinstance(advanced, dict) and hosted.items() <= advanced.items():
        names = [*(env if isinstance(env, dict) else ()), *(required if isinstance(required, list) else ())]
        if "TINKER_API_KEY" not in names:
            yield Issue("secrets.required", 'must list TINKER_API_KEY with `tinker_server = "hosted"`')


def _advanced_issues(value: Any, key: str) -> Iterator[Issue]:
    if key == "advanced" and not isinstance(value, dict):
        yield Issue(key, f"must be a table, got {as_written(value)}")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _advanced_issues(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _advanced_issues(inner, key)
    elif isinstance(value, (datetime, date, time)):
        yield Issue(key, "dates and times cannot be passed on; write a string")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Issue(key, f"must be a finite number, got {value}")


def read_settings(
    document: Mapping[str, Any], *, shown_path: str = "the training config"
) -> TrainingSettings:
    """Return the trainer's settings in a config; missing keys get their defaults.

    A key of ``[advanced]`` that looks like a misspelling of one of ours is an error; any other unknown key is for another
    trainer and has no effect.
    """
    from osmosis_ai.config.execution import EXECUTION
    from osmosis_ai.config.training import (
        OWN_RULES,
        TINY_MODEL,
        TINY_MODEL_LR,
        TRAINER_SECTIONS,
        TrainingSettings,
        backend_problems,
        engine_problems,
    )
    from osmosis_ai.inference.catalog import base_model_of

    section_of = {key: name for name, model in TRAINER_SECTIONS.items() for key in model.model_fields}
    sections = {
        name: dict(section) if isinstance(section := document.get(name), Mapping) else {}
        for name in TRAINER_SECTIONS
    }
    advanced, known = sections["advanced"], TRAINER_SECTIONS["advanced"].model_fields
    advanced.pop(EXECUTION, None)
    ignored = tuple(key for key in advanced if key not in section_of and not closest(key, known))
    sections["advanced"] = {key: value for key, value in advanced.items() if key not in ignored}
    issues: list[Issue] = []
    values: dict[str, Any] = {"ignored": ignored}
    for name, section in sections.items():
        found = list(table_issues(name, section, TRAINER_SECTIONS[name], TRAINING.models()))
        wrong = {issue.key for issue in found}
        issues += found
        values |= {key: value for key, value in section.items() if f"{name}.{key}" not in wrong}
    is_rl = values.get("method", "rl") == "rl"
    issues += [
        Issue(f"{section_of[key]}.{key}", rule)
        for key, (accepts, rule) in OWN_RULES.items()
        if is_rl and key in values and not accepts(values[key])
    ]
    if is_rl and values.get("sft_source"):
        issues.append(Issue("advanced.sft_source", 'requires `method = "sft"`'))
    experiment = document.get("experiment")
    validated = values.get("validation_dataset")
    if validated and isinstance(experiment, Mapping) and validated == experiment.get("dataset"):
        issues.append(Issue("advanced.validation_dataset", "must differ from the training dataset"))
    if base_model_of(model_path_of(document) or "") == TINY_MODEL:
        values.setdefault("lr", TINY_MODEL_LR)
    settings = TrainingSettings(**values)
    # If one of these keys is invalid, the intended engine is unknown.
    engine_keys = {"policy_engine", "vllm_url", "vllm_command", "vllm_replicas", "rollout_top_p"}
    if is_rl and engine_keys.isdisjoint(issue.key.rpartition(".")[2] for issue in issues):
        problems = engine_problems(settings)
        issues += [Issue(f"{section_of[key]}.{key}", message) for key, message in problems.items()]
    if not issues:
        problems = backend_problems(settings)
        issues = [Issue(f"{section_of[key]}.{key}", message) for key, message in problems.items()]
    if issues:
        raise InvalidConfigError(TRAINING.name, shown_path, issues)
    return settings


def settings_issues(document: Mapping[str, Any], kind: ConfigKind) -> list[Issue]:
    """Return the issues that only this release finds in a config, in the order of the text."""
    model_path = model_path_of(document)
    unknown = unknown_built_in(model_path) if model_path is not None else None
    found = [unknown] if unknown is not None else []
    if document.get("advanced"):
        from osmosis_ai.config.execution import execution_issues

        found += execution_issues(document, kind.name)
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
    from osmosis_ai.inference.catalog import base_model_of, served_models

    has_form = model_path.startswith("osmosis/") or f"osmosis/{model_path}" in served_models()
    if not has_form or base_model_of(model_path) in served_models():
        return None
    return Issue(
        "experiment.model_path",
        f"there is no built-in model `{model_path}`",
        suggestion=closest(f"osmosis/{model_path.removeprefix('osmosis/')}", served_models()),
    )

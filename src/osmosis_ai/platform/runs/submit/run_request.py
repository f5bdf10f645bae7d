"""Request body of a submit, validated completely.

The rules and keys are those of a config file, which clients send. This module has the common part of evaluations and
training runs; ``eval_request`` and ``training_request`` have the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from osmosis_ai.config.checks import EVAL, TRAINING, ConfigKind, document_issues
from osmosis_ai.config.execution import ExecutionSection, execution_issues, read_execution
from osmosis_ai.config.issues import Issue, closest
from osmosis_ai.config.sections import Experiment
from osmosis_ai.platform.runs.lifecycle import KIND_NAMES, RunKind
from osmosis_ai.platform.runs.submit.errors import rejected
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.workspace.secrets_file import value_problem

_LONGEST_NAME = 255


@dataclass(frozen=True, kw_only=True)
class RunRequest(ABC):
    """A checked submit."""

    kind: ClassVar[RunKind]

    experiment: Experiment
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    written: Mapping[str, Any]
    provided: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def execution(self) -> ExecutionSection:
        """What the run asks of the machine that executes it."""
        return read_execution(self.written.get("advanced_config"))

    @property
    @abstractmethod
    def seed(self) -> int:
        """What the run's chance is drawn from."""

    @abstractmethod
    def choose_rows(self, *, total_rows: int, sha256: str, extension: str) -> RowSelection:
        """Decide which rows of a dataset the run uses."""

    @abstractmethod
    def first_results(self, rows: RowSelection) -> dict[str, Any]:
        """Return the results of the run before it has begun."""


def check_body(body: Mapping[str, Any], kind: ConfigKind) -> tuple[dict[str, Any], list[Issue]]:
    """Return the config that ``body`` stands for, and everything that is wrong in it by the rules of configs."""
    document = read_document(body, kind)
    return document, [
        *_unknown_parts(body, kind),
        *document_issues(document, kind),
        *execution_issues(document, kind.name),
        *_provided_issues(body),
        *_length_issues(document),
    ]


def read_document(body: Mapping[str, Any], kind: ConfigKind) -> dict[str, Any]:
    """Return the config that a body stands for; on the wire, null is absent."""
    document = {
        section: without_nulls(body[part])
        for part, section in kind.parts.items()
        if body.get(part) is not None
    }
    secrets = body.get("secrets")
    if isinstance(secrets, Mapping):
        known = {name: value for name, value in secrets.items() if name != "provided" and value is not None}
        document["secrets"] = {"required": [], **known}
    else:
        document["secrets"] = {"required": []} if secrets is None else secrets
    return document


def without_nulls(section: Any) -> Any:
    """Return a section without the keys that are null; anything else as it is."""
    if not isinstance(section, Mapping):
        return section
    return {key: value for key, value in section.items() if value is not None}


def common_fields(
    document: Mapping[str, Any], kind: ConfigKind, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields of a :class:`RunRequest` from a ``document`` without issues."""
    secrets = tuple(document["secrets"]["required"])
    written = {part: document[section] for part, section in kind.parts.items() if document.get(section)}
    if secrets:
        written["secrets"] = {"required": list(secrets)}
    return {
        "experiment": Experiment(**document["experiment"]),
        "env": document.get("env", {}),
        "secrets": secrets,
        "written": written,
        "provided": dict(((body or {}).get("secrets") or {}).get("provided") or {}),
    }


def reject_any(issues: list[Issue]) -> None:
    """Refuse the submit when there are ``issues``."""
    if issues:
        raise rejected(issues)


def _unknown_parts(body: Mapping[str, Any], kind: ConfigKind) -> Iterator[Issue]:
    other = TRAINING if kind is EVAL else EVAL
    known = (*kind.parts, "secrets")
    for part in body:
        if part in known:
            continue
        if part in other.parts:
            yield Issue(part, f"Unrecognized key; it belongs to {KIND_NAMES[other.name]} runs")
        else:
            yield Issue(str(part), "Unrecognized key", suggestion=closest(str(part), known))


def _provided_issues(body: Mapping[str, Any]) -> Iterator[Issue]:
    secrets = body.get("secrets")
    given = secrets.get("provided") if isinstance(secrets, Mapping) else None
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield Issue("secrets.provided", "must be an object: the values of secrets, by name")
        return
    listed = secrets.get("required") if isinstance(secrets, Mapping) else None
    required = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    for position, (name, value) in enumerate(given.items(), start=1):
        if name not in required:
            # Not repeated: it may be a value in the wrong place.
            yield Issue("secrets.provided", f"entry {position} is not listed in `required`")
            continue
        problem = value_problem(value)
        if problem is not None:
            yield Issue(f"secrets.provided.{name}", problem)


def _length_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    experiment = document.get("experiment")
    for name, value in experiment.items() if isinstance(experiment, Mapping) else ():
        if isinstance(value, str) and len(value) > _LONGEST_NAME:
            yield Issue(f"experiment.{name}", f"must not be longer than {_LONGEST_NAME} characters")

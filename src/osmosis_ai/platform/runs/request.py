"""What a submit asks for, checked whole: a request that exists can be run as far as its text can tell.

The rules are those of a config file, which is what clients send; their keys are named as in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.platform.runs.rejection import rejected
from osmosis_ai.workspace.config_checks import EVAL, document_issues
from osmosis_ai.workspace.config_issues import Issue
from osmosis_ai.workspace.config_sections import EvaluationSettings, Experiment
from osmosis_ai.workspace.spelling import closest

MAX_SECRET_BYTES = 64 * 1024
_SECTIONS = {
    "experiment_config": "experiment",
    "evaluation_config": "evaluation",
    "advanced_config": "advanced",
    "env_config": "env",
}
_OF_TRAINING = ("training_config", "sampling_config", "checkpoints_config")
_LONGEST_NAME = 255


@dataclass(frozen=True)
class EvalRequest:
    """A checked submit.

    Attributes:
        written: the sections as they were sent, without secret values.
        secrets: the names of all secrets.
        provided: values for this run only, by name.
    """

    experiment: Experiment
    evaluation: EvaluationSettings
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    written: Mapping[str, Any]
    provided: Mapping[str, str] = field(default_factory=dict, repr=False)

    def spec(self, *, commit_sha: str | None = None) -> EvalRunSpec:
        """Return what the engine runs."""
        experiment, settings = self.experiment, self.evaluation
        return EvalRunSpec(
            rollout_name=experiment.rollout,
            entrypoint=experiment.entrypoint,
            model_path=experiment.model_path,
            dataset_name=experiment.dataset,
            n=settings.n,
            batch_size=settings.batch_size,
            pass_threshold=settings.pass_threshold,
            agent_timeout_sec=settings.agent_workflow_timeout_s,
            grader_timeout_sec=settings.grader_timeout_s,
            env=self.env,
            secret_names=self.secrets,
            branch=experiment.branch,
            commit_sha=commit_sha,
        )


def parse_request(body: Mapping[str, Any]) -> EvalRequest:
    """Check the body of a submit.

    Raises:
        SubmitRejectedError: with everything that is wrong in it; no value of a secret is repeated.
    """
    document = _document(body)
    issues = [
        *_unknown_parts(body),
        *document_issues(document, EVAL),
        *_provided_issues(body),
        *_length_issues(document),
    ]
    if not issues:
        issues = [*_model_issues(document)]
    if issues:
        raise rejected(issues)
    return _request(document, _provided(body))


def read_request(written: Mapping[str, Any]) -> EvalRequest:
    """Return the request that a run's row keeps."""
    return _request(_document(written), {})


def effective_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluation settings that a run's row keeps, and the defaults of those it does not.

    Lists show them for every run, so no more of the request is read.
    """
    settings = EvaluationSettings(**_without_nulls(written.get("evaluation_config") or {}))
    return settings.model_dump(exclude_none=True)


def _document(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that a body stands for; on the wire, null is absent."""
    document = {
        section: _without_nulls(body[part])
        for part, section in _SECTIONS.items()
        if body.get(part) is not None
    }
    secrets = body.get("secrets")
    if isinstance(secrets, Mapping):
        known = {name: value for name, value in secrets.items() if name != "provided" and value is not None}
        document["secrets"] = {"required": [], **known}
    else:
        document["secrets"] = {"required": []} if secrets is None else secrets
    return document


def _without_nulls(section: Any) -> Any:
    if not isinstance(section, Mapping):
        return section
    return {key: value for key, value in section.items() if value is not None}


def _unknown_parts(body: Mapping[str, Any]) -> Iterator[Issue]:
    known = (*_SECTIONS, "secrets")
    for part in body:
        if part in _OF_TRAINING:
            yield Issue(part, "Unrecognized key; it belongs to training runs")
        elif part not in known:
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
        key = f"secrets.provided.{name}"
        if not isinstance(value, str) or not value:
            yield Issue(key, "must be a non-empty string")
        elif "\0" in value:
            yield Issue(key, "must not contain a NUL character")
        elif len(value.encode("utf-8", "replace")) > MAX_SECRET_BYTES:
            yield Issue(key, f"must not be longer than {MAX_SECRET_BYTES // 1024} KiB")


def _provided(body: Mapping[str, Any]) -> dict[str, str]:
    secrets = body.get("secrets")
    return dict(secrets.get("provided") or {}) if isinstance(secrets, Mapping) else {}


def _length_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    experiment = document.get("experiment")
    for name, value in experiment.items() if isinstance(experiment, Mapping) else ():
        if isinstance(value, str) and len(value) > _LONGEST_NAME:
            yield Issue(f"experiment.{name}", f"must not be longer than {_LONGEST_NAME} characters")


def _model_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    """Find out whether the model can be named and keyed; a run gets no key but its own secrets."""
    from osmosis_ai.inference import served_models
    from osmosis_ai.llm.providers import resolve_model

    placeholders = dict.fromkeys(document["secrets"]["required"], "given when the run starts")
    known = {**document.get("env", {}), **placeholders}
    try:
        resolve_model(
            document["experiment"]["model_path"], known, served=dict.fromkeys(served_models(), ("", None))
        )
    except OsmosisError as error:
        missing = error.details.get("missing_variable")
        if missing is not None:
            problem = f"needs a key: store the secret `{missing}` and list it in [secrets].required"
        else:
            problem = error.message.rstrip(".")
        yield Issue("experiment.model_path", problem)


def _request(document: Mapping[str, Any], provided: Mapping[str, str]) -> EvalRequest:
    evaluation, env = document.get("evaluation", {}), document.get("env", {})
    secrets = tuple(document["secrets"]["required"])
    written = {
        f"{section}_config": document[section] for section in _SECTIONS.values() if document.get(section)
    }
    if secrets:
        written["secrets"] = {"required": list(secrets)}
    return EvalRequest(
        experiment=Experiment(**document["experiment"]),
        evaluation=EvaluationSettings(**evaluation),
        env=env,
        secrets=secrets,
        written=written,
        provided=provided,
    )

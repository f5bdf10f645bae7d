"""`osmosis eval resubmit` and `osmosis train resubmit`: a new run of a run's own config, and what changed since.

A platform of ours says what was submitted, word for word. Of any other the config is put together from what its
detail says of the run; what a detail does not say (whether the commit was pinned, `[advanced]`) is then left out, and
told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.eval_runs import EvalRunDetail
    from osmosis_ai.api.wire.runs import EvalRunSubmit, Run, SubmitCheck, SubmittedRun, TrainingRunSubmit
    from osmosis_ai.api.wire.training_runs import TrainingRunDetail
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.runs.lifecycle import RunKind
    from osmosis_ai.services.runs.secrets import RunSecret

    Body = EvalRunSubmit | TrainingRunSubmit
    Detail = EvalRunDetail | TrainingRunDetail

_DIGITS = 12
_NOT_SAID = "the platform does not say what was submitted: whether the commit was pinned, and [advanced], are left out."


@dataclass(frozen=True)
class Change:
    """What something was for the run, and what it would be now.

    Attributes:
        what: its name.
        before, now: None where nobody says.
        changed: None where that cannot be told.
    """

    what: str
    before: str | None
    now: str | None
    changed: bool | None

    @property
    def label(self) -> str:
        """Its name as people see it."""
        return f"{self.what[:1].upper()}{self.what[1:]}"

    @property
    def words(self) -> str:
        """It in words."""
        if self.changed is None:
            return f"{self.before or 'not recorded'}; now {self.now or 'known to the platform only'}"
        return f"was {self.before}, now {self.now}" if self.changed else f"{self.now} (unchanged)"


@dataclass(frozen=True)
class PreparedResubmit:
    """A run that is ready to be submitted again.

    Attributes:
        run: the one whose config it is.
        body: what is sent; may hold values of secrets.
        changes: since then, everything that was looked at.
        warnings: what may not be as the user thinks.
    """

    kind: RunKind
    run: Run
    body: Body = field(repr=False)
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name or self.run.id

    def changes_data(self) -> list[dict[str, Any]]:
        """Return the changes as scripts see them."""
        return [asdict(change) for change in self.changes]


def prepare_resubmit(
    context: PlatformContext, kind: RunKind, name: str, secret_values: Mapping[str, str]
) -> PreparedResubmit:
    """Find out what a run was submitted with, and what has changed; a platform that can tell is asked.

    Args:
        context: workspace directory, login and platform.
        kind: of the run.
        name: the run's name or id.
        secret_values: from the user's secrets file, for the new run alone.

    Raises:
        PlatformError: no such run, or the platform would refuse it.
        OsmosisError: it cannot be submitted again; the message says why.
    """
    from osmosis_ai.services.runs.secrets import (
        plan_run_secrets,
        stand_ins,
        supplied_values,
        unused_values,
    )
    from osmosis_ai.services.runs.submit import ask_platform

    client = context.client
    detail: Detail = client.eval_runs.get(name) if kind == "eval" else client.training_runs.get(name)
    run = _own(detail)
    _require_executed(run, detail)
    names = tuple(detail.resolved_secret_scopes or ())
    supplied = supplied_values(names, secret_values)
    client.hide(supplied.values())
    secrets = plan_run_secrets(client, names, supplied)
    verdict = ask_platform(context, _body(kind, detail, stand_ins(supplied)))
    warnings = [
        None if detail.request is not None else _NOT_SAID,
        secrets.doubt if verdict is None else None,
        unused_values(names, secret_values),
    ]
    return PreparedResubmit(
        kind=kind,
        run=run,
        body=_body(kind, detail, supplied),
        changes=tuple(_changes(context, detail, verdict, secrets.secrets)),
        warnings=tuple(filter(None, warnings)),
    )


def resubmit(context: PlatformContext, prepared: PreparedResubmit) -> SubmittedRun:
    """Submit the run again, once.

    Raises:
        PlatformError: the platform refused; or it did not answer, and the run may exist all the same.
    """
    from osmosis_ai.services.runs.submit import post_run

    return post_run(context, prepared.kind, prepared.body)


def _own(detail: Detail) -> Run:
    from osmosis_ai.api.wire.eval_runs import EvalRunDetail

    return detail.eval_run if isinstance(detail, EvalRunDetail) else detail.training_run


def _require_executed(run: Run, detail: Detail) -> None:
    from osmosis_ai.api.wire.eval_runs import EvalRun

    if isinstance(run, EvalRun) and run.imported is not None:
        raise ConflictError(
            f"the evaluation run '{run.name or run.id}' was imported: the platform has no config of it to submit.",
            hint="submit a config with `osmosis eval submit CONFIG`",
        )
    if detail.request is None and not (detail.rollout and detail.rollout.name and detail.entrypoint):
        raise OsmosisError(
            f"the platform does not say how the run '{run.name or run.id}' was configured.",
            hint="submit its config again with `submit CONFIG`",
        )


def _body(kind: RunKind, detail: Detail, provided: Mapping[str, str]) -> Body:
    from pydantic import ValidationError

    from osmosis_ai.api.wire.runs import EvalRunSubmit, TrainingRunSubmit

    request = dict(detail.request or _recorded(kind, detail))
    names = list(detail.resolved_secret_scopes or ())
    request.pop("secrets", None)
    if names:
        request["secrets"] = {"required": names, **({"provided": dict(provided)} if provided else {})}
    model = EvalRunSubmit if kind == "eval" else TrainingRunSubmit
    try:
        return model.model_validate(request)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise OsmosisError(
            f"what the platform says of the run's config cannot be submitted: {where} is none that this version knows.",
            hint="submit its config again with `submit CONFIG`",
        ) from None


def _recorded(kind: RunKind, detail: Detail) -> dict[str, Any]:
    """Return the config as far as a platform's detail says it."""
    from osmosis_ai.config.sections import EvaluationSettings

    config = _without_nulls(detail.config or {})
    experiment = {
        "rollout": detail.rollout.name if detail.rollout else None,
        "entrypoint": detail.entrypoint,
        "model_path": _model_of(detail),
        "dataset": detail.dataset.name if detail.dataset else None,
        "branch": detail.branch,
    }
    body: dict[str, Any] = {"experiment_config": {key: value for key, value in experiment.items() if value}}
    if kind == "eval":
        body["evaluation_config"] = {
            key: config[key] for key in EvaluationSettings.model_fields if key in config
        }
    else:
        sections = ("training", "sampling", "checkpoints", "advanced")
        body |= {f"{name}_config": config[name] for name in sections if isinstance(config.get(name), dict)}
    return {**body, **({"env_config": detail.env_config} if detail.env_config else {})}


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in settings.items() if value is not None}
    return {key: _without_nulls(value) if isinstance(value, dict) else value for key, value in known.items()}


def _model_of(detail: Detail) -> str | None:
    from osmosis_ai.api.wire.eval_runs import EvalRunDetail

    if isinstance(detail, EvalRunDetail):
        path = (detail.config or {}).get("model_path")
        return path if isinstance(path, str) else None
    return detail.model.name if detail.model else None


def _changes(
    context: PlatformContext, detail: Detail, verdict: SubmitCheck | None, secrets: tuple[RunSecret, ...]
) -> list[Change]:
    told = verdict.resolved_secret_scopes if verdict is not None else {}
    now = {secret.name: told.get(secret.name, secret.source) for secret in secrets}
    changes = [
        _compared("commit", _short(detail.commit_sha), _short(verdict.commit_sha if verdict else None)),
        _dataset_change(context, detail, verdict),
        Change("model", _model_of(detail), _model_of(detail), False),
    ]
    for name, scope in (detail.resolved_secret_scopes or {}).items():
        changes.append(_compared(f"secret {name}", scope, now.get(name)))
    version = verdict.platform_version if verdict is not None else None
    return [*changes, _compared("platform version", detail.platform_version, version)]


def _dataset_change(context: PlatformContext, detail: Detail, verdict: SubmitCheck | None) -> Change:
    """Compare the rows by their digest, or else by when the dataset was last changed."""
    from osmosis_ai.api.http_errors import PlatformError

    before, now = detail.dataset_sha256, verdict.dataset_sha256 if verdict is not None else None
    if before is not None and now is not None:
        return _compared("dataset", _short(before), _short(now))
    name, begun = detail.dataset.name if detail.dataset else None, _own(detail).created_at
    if name is None:
        return Change("dataset", None, None, None)
    try:
        dataset = context.client.datasets.get(name)
    except PlatformError as error:
        if error.status != 404:
            raise
        raise NotFoundError(
            f"the dataset '{name}' of this run is not there any more.",
            hint="upload it again with `osmosis dataset upload FILE`",
        ) from None
    if dataset.updated_at is None or begun is None:
        return Change("dataset", name, name, None)
    changed = dataset.updated_at > begun
    return Change("dataset", name, f"{name}, replaced since" if changed else name, changed)


def _compared(what: str, before: str | None, now: str | None) -> Change:
    return Change(what, before, now, None if before is None or now is None else before != now)


def _short(digest: str | None) -> str | None:
    return digest[:_DIGITS] if digest else None

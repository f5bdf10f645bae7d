"""Submit and resubmit runs of either kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.workspace.git import run_git

if TYPE_CHECKING:
    from osmosis_ai.api.models.datasets import Dataset
    from osmosis_ai.api.models.runs import EvalRunSubmit, SubmitCheck, SubmittedRun, TrainingRunSubmit
    from osmosis_ai.config.issues import Issue
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.rollout_preflight import ImportOutcome
    from osmosis_ai.services.runs.lifecycle import RunKind
    from osmosis_ai.services.runs.secrets import RunSecret
    from osmosis_ai.workspace.config_files import EvalConfig, TrainingConfig
    from osmosis_ai.workspace.layout import WorkspaceDirectory

    Config = EvalConfig | TrainingConfig
    from osmosis_ai.api.git_identity import GitIdentity
    from osmosis_ai.api.models.eval_runs import EvalRunDetail
    from osmosis_ai.api.models.runs import Run
    from osmosis_ai.api.models.training_runs import TrainingRunDetail
    from osmosis_ai.config.sections import Experiment
    from osmosis_ai.workspace.git import GitState

    Body = EvalRunSubmit | TrainingRunSubmit
    Detail = EvalRunDetail | TrainingRunDetail


CHECKS = {
    "config": "the config",
    "import": "the import of the entrypoint",
    "secrets": "the secrets",
    "dataset": "the dataset",
    "model": "the model",
    "commit": "the commit",
    "rollout": "the rollout's directory at that commit",
    "limits": "its own limits on the settings",
}
"""Display names of all checks that can refuse a submit."""

_ONLY_THE_PLATFORM = ("dataset", "model", "commit", "rollout", "limits")


@dataclass(frozen=True)
class Findings:
    """Completed and pending checks; both are keys of :data:`CHECKS`, in its order."""

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]

    @classmethod
    def of(cls, verdict: SubmitCheck | None, *, doubtful: Sequence[str]) -> Findings:
        """Divide the checks into completed and pending ones.

        Args:
            verdict: the platform's preview, if available.
            doubtful: checks that neither this machine nor the verdict settles.
        """
        unchecked = {*doubtful, *(() if verdict is not None else _ONLY_THE_PLATFORM)}
        return cls(
            tuple(check for check in CHECKS if check not in unchecked),
            tuple(check for check in CHECKS if check in unchecked),
        )

    def with_checked(self, check: str) -> Findings:
        unchecked = [each for each in self.unchecked if each != check]
        return Findings(tuple(each for each in CHECKS if each not in unchecked), tuple(unchecked))


def in_words(checks: Sequence[str]) -> str:
    """Return the display names of checks."""
    return ", ".join(CHECKS[check] for check in checks)


def code_notes(
    experiment: Experiment, repository: GitIdentity, git: GitState, verdict: SubmitCheck | None
) -> list[str]:
    """Return notes about which code will run, and which is checked out here."""
    if served_agent(experiment.entrypoint) is not None:
        return [f"The agent is remote ({experiment.entrypoint}): the repository's code is not run."]
    source = (
        f"commit {experiment.commit_sha}"
        if experiment.commit_sha
        else f"the latest commit of branch {experiment.branch}"
        if experiment.branch
        else "the latest commit it has synced of its default branch"
    )
    if verdict is not None and verdict.commit_sha:
        source += f", now {verdict.commit_sha[:8]}"
    here = f"{git.branch or 'no branch'} @ {git.head[:8]}" if git.head else "no commit yet"
    return [
        f"The platform runs the code of the repository it knows as {repository.identity}: {source}.",
        f"Checked out here: {here}.",
    ]


def code_warnings(
    root: Path,
    experiment: Experiment,
    repository: GitIdentity,
    git: GitState,
    verdict: SubmitCheck | None,
) -> list[str]:
    """Return warnings about how the code that will run may differ from the code here."""
    if served_agent(experiment.entrypoint) is not None:
        return []  # the remote server has the agent's code
    warnings = []
    if git.dirty:
        warnings.append("Uncommitted changes are not visible to the platform.")
    if experiment.commit_sha is not None:
        return warnings
    if verdict is not None and verdict.commit_sha:
        return [*warnings, *_distance(root, git, verdict)]
    if not _is_itself(root, repository):
        warnings += _push_warnings(git)
    if experiment.branch is None:
        warnings.append(
            "neither `commit_sha` nor `branch` is set: what runs may not be what is checked out here."
        )
    return warnings


def _distance(root: Path, git: GitState, verdict: SubmitCheck) -> list[str]:
    """Return how the commit that would run differs from the one checked out here."""
    would, sha = f"the platform would run {verdict.commit_sha[:8]}", verdict.commit_sha
    if git.head is None:
        return [f"{would}; nothing is committed here yet."]
    if git.head == sha:
        return []
    missing = _count(root, f"{sha}..{git.head}")
    if missing is None:
        return [f"{would}, which is not in this clone; {git.head[:8]} is checked out here."]
    if missing == 0:
        return [f"{would}, which is newer than {git.head[:8]}, checked out here."]
    commits = (
        "1 commit that is checked out here is" if missing == 1 else f"{missing} commits checked out here are"
    )
    it = "it" if missing == 1 else "them"
    reason = "not on the branch it reads" if verdict.repository.local else "not pushed to the branch it reads"
    return [f"{would}: {commits} {reason}; the platform does not see {it}."]


def _push_warnings(git: GitState) -> list[str]:
    warnings = []
    if git.branch is not None and not git.has_upstream:
        warnings.append(f"branch {git.branch} has no upstream; it may not be pushed.")
    if git.ahead:
        commits = "1 commit is" if git.ahead == 1 else f"{git.ahead} commits are"
        warnings.append(
            f"{commits} not pushed; the platform does not see {'it' if git.ahead == 1 else 'them'}."
        )
    return warnings


def _is_itself(root: Path, repository: GitIdentity) -> bool:
    """Whether the origin is this same repository, which needs no push."""
    return Path(repository.display_url).is_absolute() and Path(repository.display_url) == root.resolve()


def _count(root: Path, commits: str) -> int | None:
    counted = run_git(["rev-list", "--count", commits], cwd=root)
    return int(counted.stdout) if counted.returncode == 0 and counted.stdout.strip().isdigit() else None


Tell = Callable[[str], None]


@dataclass(frozen=True)
class PreparedSubmit:
    """A run that is ready to be submitted.

    Attributes:
        body: request body; may contain secret values.
        notes: information to show before confirmation.
        warnings: possible surprises.
        findings: completed and pending checks.
        imported: result of importing the entrypoint; an import error is raised instead.
    """

    kind: RunKind
    config: Config
    body: Body = field(repr=False)
    secrets: tuple[RunSecret, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    findings: Findings
    imported: ImportOutcome

    def resource(self) -> dict[str, Any]:
        """Return the request body without secret values."""
        payload = self.body.to_wire()
        if self.body.secrets is not None:
            provided = sorted(self.body.secrets.provided)
            payload["secrets"] = {
                "required": list(self.body.secrets.required),
                **({"provided": provided} if provided else {}),
            }
        return {
            "config": self.described(),
            "payload": payload,
            "secrets": {secret.name: secret.source for secret in self.secrets},
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "checked": list(self.findings.checked),
            "unchecked": list(self.findings.unchecked),
        }

    @property
    def rows_drawn(self) -> str | None:
        """The dataset rows and attempts of an evaluation, without their total, which only the platform knows."""
        from osmosis_ai.ui.numbers import amount
        from osmosis_ai.workspace.config_files import EvalConfig

        if not isinstance(self.config, EvalConfig):
            return None
        limit, n = self.config.evaluation.limit, self.config.evaluation.n
        if limit is None:
            rows = "a random 10%, at least one, by a seed that the run records (the config sets no limit)"
        else:
            rows = f"the first {limit:,}, or all if there are fewer"
        return f"{rows}; {amount(n, 'attempt')} per row"

    def described(self) -> dict[str, Any]:
        """Return the experiment's fields of a submit's result."""
        experiment = self.config.experiment
        return {
            "rollout": experiment.rollout,
            "entrypoint": experiment.entrypoint,
            "model": experiment.model_path,
            "dataset": experiment.dataset,
            "branch": experiment.branch,
            "commit_sha": experiment.commit_sha,
        }


def prepare_submission(
    context: PlatformContext,
    kind: RunKind,
    config: Path,
    *,
    secret_values: Mapping[str, str] | None = None,
    tell: Tell = lambda _stage: None,
) -> PreparedSubmit:
    """Read and validate the inputs of a submit, including a preview by the platform if it supports one.

    Args:
        context: workspace directory, login and platform.
        kind: kind of the run.
        config: a file in ``configs/eval/`` or ``configs/training/``.
        secret_values: values from the user's secrets file, for this run only.
        tell: receives a message before each slow step.

    Raises:
        OsmosisError: an input is missing or invalid, or the platform would refuse the run.
    """
    from osmosis_ai.redaction import exposure_warnings
    from osmosis_ai.services.runs.secrets import (
        plan_run_secrets,
        stand_ins,
        supplied_values,
        unused_values,
    )
    from osmosis_ai.workspace.git import read_git_state

    loaded = _load(kind, config, context.workspace)
    imported = _import_code(context, kind, loaded, tell)
    supplied = supplied_values(loaded.secrets, secret_values or {})
    context.client.hide(supplied.values())
    if loaded.secrets:
        tell("Checking secrets")
    secrets = plan_run_secrets(context.client, loaded.secrets, supplied)
    tell("Asking the platform")
    verdict = ask_platform(context, _body(kind, loaded, stand_ins(supplied)))
    # Configs are sent in the request, so changes in them do not matter.
    state = read_git_state(context.workspace.root, ignored="configs")
    git = context.checkout.git
    doubts = [
        imported.problem,
        unused_values(loaded.secrets, secret_values or {}),
        *exposure_warnings(supplied),
    ]
    doubtful = ["import"] if imported.kind != "imported" else []
    if verdict is None:
        doubts += [secrets.doubt, _look_for_commit(context, loaded, tell)]
        doubtful += ["secrets"] if secrets.doubt else []
    doubts += _settings_doubts(loaded, verdict)
    return PreparedSubmit(
        kind=kind,
        config=loaded,
        body=_body(kind, loaded, supplied),
        secrets=secrets.secrets,
        notes=(
            *code_notes(loaded.experiment, git, state, verdict),
            f"The config is read from this machine: {loaded.path.name}.",
        ),
        warnings=tuple(
            filter(
                None,
                [*doubts, *code_warnings(context.workspace.root, loaded.experiment, git, state, verdict)],
            )
        ),
        findings=Findings.of(verdict, doubtful=doubtful),
        imported=imported,
    )


def submit(context: PlatformContext, submission: PreparedSubmit) -> SubmittedRun:
    """Submit a run, without repeating the request.

    Raises:
        PlatformError: the platform refused, or did not answer; in the latter case the run may exist.
    """
    return post_run(context, submission.kind, submission.body)


def require_import(submission: PreparedSubmit) -> None:
    """Check that the entrypoint was imported in time; a submit leaves a slow import to the platform.

    Raises:
        OsmosisError: it was not.
    """
    if submission.imported.kind == "late":
        raise OsmosisError(
            submission.imported.problem,
            details={"entrypoint": submission.imported.entrypoint},
            hint="import it by hand to find the cause; move slow work out of the module into functions",
        )


def check_dataset(context: PlatformContext, submission: PreparedSubmit) -> Dataset:
    """Return a run's dataset after checking that it is ready; a submit leaves this check to the platform.

    Raises:
        PlatformError: the dataset does not exist.
        OsmosisError: it is still being processed, or was rejected.
    """
    from osmosis_ai.services.datasets import get_dataset, require_ready

    return require_ready(get_dataset(context.client, submission.config.experiment.dataset))


def _load(kind: RunKind, config: Path, workspace: WorkspaceDirectory) -> Config:
    from osmosis_ai.workspace.config_files import load_eval_config, load_training_config

    return load_eval_config(config, workspace) if kind == "eval" else load_training_config(config, workspace)


def _settings_doubts(config: Config, verdict: SubmitCheck | None) -> list[str]:
    """Return objections of this release to the settings; the platform decides."""
    from osmosis_ai.inference.catalog import base_model_of
    from osmosis_ai.workspace.config_files import EvalConfig

    if config.doubts:
        likely = [f"{_said(issue)}; the platform is likely to refuse it." for issue in config.doubts]
        return likely if verdict is None else []
    if isinstance(config, EvalConfig):
        return []
    return config.settings.warnings(base_model_of(config.experiment.model_path))


def _said(issue: Issue) -> str:
    meant = f" (did you mean '{issue.suggestion}'?)" if issue.suggestion else ""
    return f"{issue.key}: {issue.message}{meant}"


def _import_code(context: PlatformContext, kind: RunKind, config: Config, tell: Tell) -> ImportOutcome:
    """Import the local entrypoint."""
    from osmosis_ai.services.rollout_preflight import import_entrypoint, served_elsewhere
    from osmosis_ai.workspace.config_files import entrypoint_path, rollout_directory

    workspace, experiment = context.workspace, config.experiment
    if served_agent(experiment.entrypoint) is not None:
        return served_elsewhere(experiment.entrypoint)
    entrypoint_path(workspace, experiment.rollout, experiment.entrypoint)
    tell("Importing the entrypoint")
    return import_entrypoint(
        rollout_directory(workspace, experiment.rollout),
        experiment.entrypoint,
        env=config.env,
        secret_names=config.secrets,
    ).require(f"{kind} submit")


def _look_for_commit(context: PlatformContext, config: Config, tell: Tell) -> str | None:
    """Return a warning about the pinned commit that does not need the platform, or None."""
    from osmosis_ai.services.runs.pinned_commit import check_pinned_commit

    commit_sha = config.experiment.commit_sha
    if commit_sha is None:
        return None
    tell("Looking for the pinned commit")
    return check_pinned_commit(context.workspace.root, commit_sha, context.checkout.git)


def ask_platform(context: PlatformContext, body: Body) -> SubmitCheck | None:
    """Preview the submit of ``body`` on the platform; None if unsupported.

    The hosted service has no such route, and is never sent a request that it does not know.

    Raises:
        OsmosisError: the platform would refuse the run.
    """
    from osmosis_ai.api.models.runs import EvalRunSubmit
    from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
    from osmosis_ai.services.runs.secrets import explaining_failures

    if context.credentials.platform_url == DEFAULT_PLATFORM_URL:
        return None
    with explaining_failures():
        if isinstance(body, EvalRunSubmit):
            return context.client.eval_runs.check(body)
        return context.client.training_runs.check(body)


def _body(kind: RunKind, config: Config, supplied: Mapping[str, str]) -> Body:
    from osmosis_ai.api.models.runs import EvalRunSubmit, TrainingRunSubmit

    payload = config.payload()
    if supplied:
        payload["secrets"] = {**payload["secrets"], "provided": dict(supplied)}
    body = EvalRunSubmit if kind == "eval" else TrainingRunSubmit
    return body.model_validate(payload)


def post_run(context: PlatformContext, kind: RunKind, body: Body) -> SubmittedRun:
    """Submit ``body``, without repeating the request.

    Raises:
        PlatformError: the platform refused, or did not answer; in the latter case the run may exist.
    """
    from osmosis_ai.api.models.runs import EvalRunSubmit
    from osmosis_ai.services.runs.secrets import explaining_failures

    with explaining_failures(f"osmosis {kind} list"):
        if isinstance(body, EvalRunSubmit):
            return context.client.eval_runs.submit(body)
        return context.client.training_runs.submit(body)


_DIGITS = 12
_NOT_SAID = "the platform does not report what was submitted: a pinned commit and [advanced] are omitted."


@dataclass(frozen=True)
class Change:
    """A setting of the earlier run compared with its current value.

    Attributes:
        what: key of the setting.
        before, now: None if unknown.
        changed: None if unknown.
    """

    what: str
    before: str | None
    now: str | None
    changed: bool | None

    @property
    def label(self) -> str:
        return f"{self.what[:1].upper()}{self.what[1:]}"

    @property
    def words(self) -> str:
        """The change as a phrase."""
        if self.changed is None:
            return f"{self.before or 'not recorded'}; now {self.now or 'known to the platform only'}"
        return f"was {self.before}, now {self.now}" if self.changed else f"{self.now} (unchanged)"


@dataclass(frozen=True)
class PreparedResubmit:
    """A run that is ready to be resubmitted.

    Attributes:
        run: the original run.
        body: request body; may contain secret values.
        changes: all compared settings, including unchanged ones.
        warnings: possible surprises.
    """

    kind: RunKind
    run: Run
    body: Body = field(repr=False)
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.run.name or self.run.id

    def changes_data(self) -> list[dict[str, Any]]:
        return [asdict(change) for change in self.changes]


def prepare_resubmit(
    context: PlatformContext, kind: RunKind, name: str, secret_values: Mapping[str, str]
) -> PreparedResubmit:
    """Read a run's config and compare it with the current state; the platform previews the submit if it can.

    Args:
        context: workspace directory, login and platform.
        kind: kind of the run.
        name: the run's name or id.
        secret_values: values from the user's secrets file, for the new run only.

    Raises:
        PlatformError: the run does not exist, or the platform would refuse the new one.
        OsmosisError: the run cannot be resubmitted.
    """
    from osmosis_ai.services.runs.secrets import (
        plan_run_secrets,
        stand_ins,
        supplied_values,
        unused_values,
    )

    client = context.client
    detail: Detail = client.eval_runs.get(name) if kind == "eval" else client.training_runs.get(name)
    run = _own(detail)
    _require_executed(run, detail)
    names = tuple(detail.resolved_secret_scopes or ())
    supplied = supplied_values(names, secret_values)
    client.hide(supplied.values())
    secrets = plan_run_secrets(client, names, supplied)
    verdict = ask_platform(context, _body_again(kind, detail, stand_ins(supplied)))
    warnings = [
        None if detail.request is not None else _NOT_SAID,
        secrets.doubt if verdict is None else None,
        unused_values(names, secret_values),
    ]
    return PreparedResubmit(
        kind=kind,
        run=run,
        body=_body_again(kind, detail, supplied),
        changes=tuple(_changes(context, detail, verdict, secrets.secrets)),
        warnings=tuple(filter(None, warnings)),
    )


def resubmit(context: PlatformContext, prepared: PreparedResubmit) -> SubmittedRun:
    """Resubmit a run, without repeating the request.

    Raises:
        PlatformError: the platform refused, or did not answer; in the latter case the run may exist.
    """

    return post_run(context, prepared.kind, prepared.body)


def _own(detail: Detail) -> Run:
    from osmosis_ai.api.models.eval_runs import EvalRunDetail

    return detail.eval_run if isinstance(detail, EvalRunDetail) else detail.training_run


def _require_executed(run: Run, detail: Detail) -> None:
    from osmosis_ai.api.models.eval_runs import EvalRun

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


def _body_again(kind: RunKind, detail: Detail, provided: Mapping[str, str]) -> Body:
    from pydantic import ValidationError

    from osmosis_ai.api.models.runs import EvalRunSubmit, TrainingRunSubmit

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
            f"the platform's copy of the run's config cannot be submitted: {where} is unknown to this version.",
            hint="submit its config again with `submit CONFIG`",
        ) from None


def _recorded(kind: RunKind, detail: Detail) -> dict[str, Any]:
    """Return the config as far as the platform's run details contain it."""
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
    from osmosis_ai.api.models.eval_runs import EvalRunDetail

    if isinstance(detail, EvalRunDetail):
        path = (detail.config or {}).get("model_path")
        return path if isinstance(path, str) else None
    return detail.model.name if detail.model else None


def _changes(
    context: PlatformContext, detail: Detail, verdict: SubmitCheck | None, secrets: tuple[RunSecret, ...]
) -> list[Change]:
    from osmosis_ai.ui.run_numbers import execution_rows

    told = verdict.resolved_secret_scopes if verdict is not None else {}
    now = {secret.name: told.get(secret.name, secret.source) for secret in secrets}
    changes = [
        _compared("commit", _short(detail.commit_sha), _short(verdict.commit_sha if verdict else None)),
        _dataset_change(context, detail, verdict),
        Change("model", _model_of(detail), _model_of(detail), False),
    ]
    for label, value in execution_rows((detail.request or {}).get("advanced_config")):
        changes.append(Change(label.lower(), value, value, False))
    for name, scope in (detail.resolved_secret_scopes or {}).items():
        changes.append(_compared(f"secret {name}", scope, now.get(name)))
    version = verdict.platform_version if verdict is not None else None
    return [*changes, _compared("platform version", detail.platform_version, version)]


def _dataset_change(context: PlatformContext, detail: Detail, verdict: SubmitCheck | None) -> Change:
    """Compare datasets by digest or, without one, by modification time."""
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.datasets import get_dataset

    before, now = detail.dataset_sha256, verdict.dataset_sha256 if verdict is not None else None
    if before is not None and now is not None:
        return _compared("dataset", _short(before), _short(now))
    name, begun = detail.dataset.name if detail.dataset else None, _own(detail).created_at
    if name is None:
        return Change("dataset", None, None, None)
    try:
        dataset = get_dataset(context.client, name)
    except PlatformError as error:
        if error.status != 404:
            raise
        raise NotFoundError(
            f"the dataset '{name}' of this run no longer exists.",
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

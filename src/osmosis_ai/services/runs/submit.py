"""Submit and resubmit runs of either kind."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.git_identity import GitIdentity
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.datasets import Dataset
from osmosis_ai.api.models.eval_runs import EvalRun, EvalRunDetail
from osmosis_ai.api.models.runs import EvalRunSubmit, Run, SubmitCheck, SubmittedRun, TrainingRunSubmit
from osmosis_ai.api.models.training_runs import TrainingRunDetail
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
from osmosis_ai.config.issues import InvalidConfigError
from osmosis_ai.config.sections import EvaluationSettings, Experiment, served_agent
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.process_environment import github_environment
from osmosis_ai.redaction import exposure_warnings
from osmosis_ai.services.runs.lifecycle import RUN_PATHS, RunKind, get_run
from osmosis_ai.services.runs.secrets import (
    SecretSource,
    explaining_failures,
    plan_run_secrets,
    stand_ins,
    supplied_values,
    unused_values,
)
from osmosis_ai.ui.numbers import amount
from osmosis_ai.ui.run_numbers import execution_rows
from osmosis_ai.workspace.config_files import (
    EvalConfig,
    TrainingConfig,
    entrypoint_path,
    load_eval_config,
    load_training_config,
    rollout_directory,
)
from osmosis_ai.workspace.git import GitState, read_git_state, run_git

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.rollout_preflight import ImportOutcome
    from osmosis_ai.training.model_support import ModelSupport
    from osmosis_ai.workspace.layout import WorkspaceDirectory

    Config = EvalConfig | TrainingConfig

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
    "limits": "the platform's limits on the settings",
}
"""Display names of all checks that can refuse a submit."""

_GITHUB_TIMEOUT_S = 20.0
_NO_ROUTE = (404, 405, 410, 501)
_ONLY_THE_PLATFORM = ("dataset", "model", "commit", "rollout", "limits")


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
        else "the latest synced commit of its default branch"
    )
    if verdict is not None and verdict.commit_sha:
        source += f", now {verdict.commit_sha[:8]}"
    here = f"{git.branch or 'no branch'} @ {git.head[:8]}" if git.head else "no commit yet"
    return [f"The platform runs the code of {repository.identity}: {source}.", f"Checked out here: {here}."]


def code_warnings(
    root: Path, experiment: Experiment, repository: GitIdentity, git: GitState, verdict: SubmitCheck | None
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
    origin = Path(repository.display_url)
    if not (origin.is_absolute() and origin == root.resolve()):  # this same repository needs no push
        warnings += _push_warnings(git)
    if experiment.branch is None:
        warnings.append(
            "neither `commit_sha` nor `branch` is set: the run may use another commit than this checkout."
        )
    return warnings


def _distance(root: Path, git: GitState, verdict: SubmitCheck) -> list[str]:
    """Return how the commit that would run differs from the one checked out here."""
    would, sha = f"the platform would run {verdict.commit_sha[:8]}", verdict.commit_sha
    if git.head is None:
        return [f"{would}; nothing is committed here yet."]
    if git.head == sha:
        return []
    counted = run_git(["rev-list", "--count", f"{sha}..{git.head}"], cwd=root)
    if counted.returncode != 0:
        return [f"{would}, which is not in this clone; {git.head[:8]} is checked out here."]
    missing = int(counted.stdout)
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


Tell = Callable[[str], None]


@dataclass(frozen=True)
class PreparedSubmit:
    """A run that is ready to be submitted; ``unchecked`` has the keys of :data:`CHECKS` that are pending."""

    kind: RunKind
    config: Config
    body: Body = field(repr=False)
    secrets: Mapping[str, SecretSource]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    unchecked: tuple[str, ...]
    imported: ImportOutcome
    # According to the platform.
    rows: int | None = None
    model: ModelSupport | None = None

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
            "secrets": dict(self.secrets),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "checked": [check for check in CHECKS if check not in self.unchecked],
            "unchecked": list(self.unchecked),
            **({"method": method} if (method := self.method) else {}),
            **({"model": self.model.data()} if self.model is not None else {}),
        }

    @property
    def rows_drawn(self) -> str | None:
        """The dataset rows and attempts of an evaluation, without their total, which only the platform knows."""
        if not isinstance(self.config, EvalConfig):
            return None
        limit, n = self.config.evaluation.limit, self.config.evaluation.n
        if limit is None:
            rows = "a random 10%, at least one, by a seed that the run records (the config sets no limit)"
        else:
            rows = f"the first {limit:,}, or all if there are fewer"
        return f"{rows}; {amount(n, 'attempt')} per row"

    @property
    def method(self) -> str | None:
        """The conversations of a supervised training run, and its steps; None for other runs."""
        config = self.config
        if not isinstance(config, TrainingConfig) or config.doubts or config.settings.method != "sft":
            return None
        settings = config.settings
        source = f"passing attempts of {settings.source_run}" if settings.source_run else "conversations"
        if self.rows is None:
            return f"sft on {source}"
        steps = math.ceil(self.rows / settings.rollout_batch_size) * settings.total_epochs
        at_most = amount(min(steps, settings.max_steps or steps), "step")
        return f"sft on {self.rows:,} {source}, at most {at_most}"

    def described(self) -> dict[str, Any]:
        known = self.config.experiment.model_dump()
        keys = ("rollout", "entrypoint", "model_path", "dataset", "branch", "commit_sha")
        return {key.removesuffix("_path"): known[key] for key in keys}


def prepare_submission(
    context: PlatformContext, kind: RunKind, config: Path, *, secret_values: Mapping[str, str], tell: Tell
) -> PreparedSubmit:
    """Read and validate the inputs of a submit, including a preview by the platform if it supports one."""
    load = load_eval_config if kind == "eval" else load_training_config
    loaded: Config = load(config, context.workspace)
    model, doubts = _check_model(context, loaded)
    imported = _import_code(context, kind, loaded, tell)
    supplied = supplied_values(loaded.secrets, secret_values)
    context.client.hide(supplied.values())
    if loaded.secrets:
        tell("Checking secrets")
    secrets, doubt = plan_run_secrets(context.client, loaded.secrets, supplied)
    tell("Asking the platform")
    try:
        verdict = ask_platform(context.client, _body(loaded, stand_ins(supplied)))
    except PlatformError as error:
        error.message = _with_lines(error, loaded, context.workspace) or error.message
        raise
    # Configs are sent in the request, so changes in them do not matter.
    state = read_git_state(context.workspace.root, ignored="configs")
    git = context.git
    doubts += [imported.problem, unused_values(loaded.secrets, secret_values), *exposure_warnings(supplied)]
    unchecked = {"import"} if imported.kind != "imported" else set()
    if isinstance(loaded, TrainingConfig) and (model is None or not model.is_known):
        unchecked.add("model")
    if verdict is None:
        unchecked |= {*_ONLY_THE_PLATFORM, *(["secrets"] if doubt else [])}
        doubts.append(doubt)
        if commit_sha := loaded.experiment.commit_sha:
            tell("Looking for the pinned commit")
            doubts.append(check_pinned_commit(context.workspace.root, commit_sha, git))
    doubts += _settings_doubts(loaded, verdict)
    doubts += code_warnings(context.workspace.root, loaded.experiment, git, state, verdict)
    return PreparedSubmit(
        kind=kind,
        config=loaded,
        body=_body(loaded, supplied),
        secrets=secrets,
        notes=(
            *code_notes(loaded.experiment, git, state, verdict),
            f"The config is read from this machine: {loaded.path.name}.",
        ),
        warnings=tuple(filter(None, doubts)),
        unchecked=tuple(check for check in CHECKS if check in unchecked),
        imported=imported,
        rows=verdict.sampled_rows if verdict is not None else None,
        model=model,
    )


def _check_model(context: PlatformContext, config: Config) -> tuple[ModelSupport | None, list[str | None]]:
    """Check the model of a training run before anything slow; the hosted service has its own trainer and models."""
    is_hosted = context.credentials.platform_url == DEFAULT_PLATFORM_URL
    if is_hosted or config.doubts or isinstance(config, EvalConfig):
        return None, []
    from osmosis_ai.services.training_estimate import check_model

    model, warnings = check_model(config.experiment.model_path, config.settings)
    return model, [*warnings]


def require_import(submission: PreparedSubmit) -> None:
    """Check that the entrypoint was imported in time; a submit leaves a slow import to the platform."""
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

    config = submission.config
    validated = config.advanced.get("validation_dataset") if isinstance(config, TrainingConfig) else None
    if isinstance(validated, str):
        require_ready(get_dataset(context.client, validated))
    return require_ready(get_dataset(context.client, config.experiment.dataset))


def _with_lines(error: PlatformError, config: Config, workspace: WorkspaceDirectory) -> str | None:
    """Return a refusal of settings with their lines, if all of its issues are known here."""
    refused = error.body.get("issues")
    keys = (
        [issue.get("key") for issue in refused if isinstance(issue, dict)]
        if isinstance(refused, list)
        else []
    )
    issues = [issue for issue in config.doubts if issue.key in keys]
    if not issues or len(issues) < len(keys):
        return None
    shown = config.path.relative_to(workspace.root).as_posix()
    return InvalidConfigError(config.kind.name, shown, issues).message


def _settings_doubts(config: Config, verdict: SubmitCheck | None) -> list[str]:
    from osmosis_ai.inference.catalog import base_model_of

    if config.doubts:
        likely = []
        for issue in config.doubts if verdict is None else ():
            meant = f" (did you mean '{issue.suggestion}'?)" if issue.suggestion else ""
            likely.append(f"{issue.key}: {issue.message}{meant}; the platform is likely to refuse it.")
        return likely
    if isinstance(config, EvalConfig):
        return []
    return config.settings.warnings(base_model_of(config.experiment.model_path))


def _import_code(context: PlatformContext, kind: RunKind, config: Config, tell: Tell) -> ImportOutcome:
    from osmosis_ai.services.rollout_preflight import import_entrypoint, remote_agent

    workspace, experiment = context.workspace, config.experiment
    if served_agent(experiment.entrypoint) is not None:
        return remote_agent(experiment.entrypoint)
    entrypoint_path(workspace, experiment.rollout, experiment.entrypoint)
    tell("Importing the entrypoint")
    return import_entrypoint(
        rollout_directory(workspace, experiment.rollout),
        experiment.entrypoint,
        env=config.env,
        secret_names=config.secrets,
    ).require(f"{kind} submit")


def ask_platform(client: PlatformClient, body: Body) -> SubmitCheck | None:
    """Preview the submit of ``body`` on the platform; None if unsupported.

    The hosted service has no such route, and is never sent a request that it does not know.
    """
    if client.platform_url == DEFAULT_PLATFORM_URL:
        return None
    with explaining_failures():
        try:
            found = client.post(f"{_collection(body)}/check", body, model=SubmitCheck, retry=REPEATING)
        except PlatformError as error:
            # Other errors of these statuses refuse the submit or its user.
            is_verdict = error.body.get("dry_run") is True or (error.platform_code or "").startswith("GIT_")
            if error.status in _NO_ROUTE and not is_verdict:
                return None
            raise
    return found if found.dry_run else None


def _collection(body: Body) -> str:
    return RUN_PATHS["eval" if isinstance(body, EvalRunSubmit) else "train"]


def _body(config: Config, supplied: Mapping[str, str]) -> Body:
    payload = config.payload()
    if supplied:
        payload["secrets"] = {**payload["secrets"], "provided": dict(supplied)}
    body = EvalRunSubmit if isinstance(config, EvalConfig) else TrainingRunSubmit
    return body.model_validate(payload)


def post_run(client: PlatformClient, kind: RunKind, body: Body) -> SubmittedRun:
    """Submit a run; the request is never repeated, and no error contains values of its secrets."""
    if body.secrets is not None:
        client.hide(body.secrets.provided.values())
    with explaining_failures(f"osmosis {kind} list"):
        return client.post(_collection(body), body, model=SubmittedRun)


_DIGITS = 12
_NOT_SAID = "the platform does not report what was submitted: a pinned commit and [advanced] are omitted."


@dataclass(frozen=True)
class Change:
    """A setting of the earlier run compared with its current value; None if unknown."""

    what: str
    before: str | None
    now: str | None
    changed: bool | None

    @property
    def label(self) -> str:
        return f"{self.what[:1].upper()}{self.what[1:]}"

    @property
    def words(self) -> str:
        if self.changed is None:
            return f"{self.before or 'not recorded'}; now {self.now or 'known to the platform only'}"
        return f"was {self.before}, now {self.now}" if self.changed else f"{self.now} (unchanged)"


@dataclass(frozen=True)
class PreparedResubmit:
    """A run that is ready to be resubmitted, with all compared settings, including unchanged ones."""

    kind: RunKind
    run: Run
    body: Body = field(repr=False)
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.run.name or self.run.id


def prepare_resubmit(
    context: PlatformContext, kind: RunKind, name: str, secret_values: Mapping[str, str]
) -> PreparedResubmit:
    """Read a run's config and compare it with the current state; the platform previews the submit if it can."""
    client = context.client
    detail = get_run(client, kind, name)
    run = detail.run
    if isinstance(run, EvalRun) and run.imported is not None:
        raise ConflictError(
            f"Run '{run.name or run.id}' was imported: the platform has no config of it to submit.",
            hint="submit a config with `osmosis eval submit CONFIG`",
        )
    if detail.request is None and not (detail.rollout and detail.rollout.name and detail.entrypoint):
        raise OsmosisError(
            f"The platform does not report how the run '{run.name or run.id}' was configured.",
            hint="submit its config again with `submit CONFIG`",
        )
    names = tuple(detail.resolved_secret_scopes or ())
    supplied = supplied_values(names, secret_values)
    client.hide(supplied.values())
    secrets, doubt = plan_run_secrets(client, names, supplied)
    verdict = ask_platform(client, _body_again(kind, detail, stand_ins(supplied)))
    warnings = [
        None if detail.request is not None else _NOT_SAID,
        doubt if verdict is None else None,
        unused_values(names, secret_values),
    ]
    return PreparedResubmit(
        kind=kind,
        run=run,
        body=_body_again(kind, detail, supplied),
        changes=tuple(_changes(context, detail, verdict, secrets)),
        warnings=tuple(filter(None, warnings)),
    )


def _body_again(kind: RunKind, detail: Detail, provided: Mapping[str, str]) -> Body:
    from pydantic import ValidationError

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
            f"The platform's copy of the run's config cannot be submitted: {where} is unknown to this version.",
            hint="submit its config again with `submit CONFIG`",
        ) from None


def _recorded(kind: RunKind, detail: Detail) -> dict[str, Any]:
    """Return the config as far as the platform's run details contain it."""
    config = _without_nulls(detail.config or {})
    experiment = {
        "rollout": detail.rollout.name if detail.rollout else None,
        "entrypoint": detail.entrypoint,
        "model_path": detail.model_name,
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


def _changes(
    context: PlatformContext, detail: Detail, verdict: SubmitCheck | None, secrets: Mapping[str, SecretSource]
) -> list[Change]:
    told = verdict.resolved_secret_scopes if verdict is not None else {}
    now = {name: told.get(name, source) for name, source in secrets.items()}
    changes = [
        _compared("commit", _short(detail.commit_sha), _short(verdict.commit_sha if verdict else None)),
        _dataset_change(context, detail, verdict),
        Change("model", detail.model_name, detail.model_name, False),
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
    name, begun = detail.dataset.name if detail.dataset else None, detail.run.created_at
    if name is None:
        return Change("dataset", None, None, None)
    try:
        dataset = get_dataset(context.client, name)
    except PlatformError as error:
        if error.status != 404:
            raise
        raise NotFoundError(
            f"Dataset '{name}' of this run no longer exists.",
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


def check_pinned_commit(root: Path, commit_sha: str, git: GitIdentity) -> str | None:
    """Look for a commit in this clone and, if the origin is on GitHub, there."""
    local = run_git(["cat-file", "-e", f"{commit_sha}^{{commit}}"], cwd=root).returncode == 0
    try:
        is_on_github = (urlsplit(git.display_url).hostname or "").rstrip(".") == "github.com"
    except ValueError:
        is_on_github = False
    answer = _ask_github(git.identity, commit_sha) if is_on_github else "unknown"
    if answer == "present":
        return None
    if answer == "absent":
        details = {"commit_sha": commit_sha, "identity": git.identity, "exists_locally": local}
        if local:
            raise OsmosisError(
                f"Commit {commit_sha} is in this clone but not pushed to {git.identity}.",
                details=details,
                hint="push a branch with it: git push origin HEAD",
            )
        raise OsmosisError(
            f"Commit {commit_sha} is neither in this clone nor in {git.identity}.",
            details=details,
            hint="write the SHA of a pushed commit into `commit_sha`; `git log` lists them",
        )
    if not local:
        return f"commit {commit_sha} is not in this clone; whether {git.identity} has it is left to the platform."
    known = run_git(["branch", "--remotes", "--contains", commit_sha], cwd=root)
    if known.returncode == 0 and known.stdout.strip():
        return None
    return f"commit {commit_sha} is not on any remote branch known to this clone; it may not be pushed yet."


def _ask_github(identity: str, commit_sha: str) -> Literal["present", "absent", "unknown"]:
    """Query GitHub with the GitHub CLI, which has the user's login; the result is unknown without it."""
    gh = shutil.which("gh")
    if gh is None:
        return "unknown"
    path = f"repos/{quote(identity)}/commits/{quote(commit_sha, safe='')}"
    try:
        done = subprocess.run(
            [gh, "api", "--silent", path],
            env={**github_environment(os.environ), "GH_PROMPT_DISABLED": "1", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GITHUB_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if done.returncode == 0:
        return "present"
    # GitHub returns 404 for repositories that this login cannot see, too, but 422 only for missing commits.
    return "absent" if "HTTP 422" in done.stderr else "unknown"

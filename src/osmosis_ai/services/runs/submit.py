"""`osmosis eval submit` and `osmosis train submit`: from a config file to a run of the platform.

Whatever can be found wrong on this machine is found before the platform hears of it; what is sent is the
config as it is written, names of secrets, and values only of those the user has put into a secrets file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.datasets import Dataset
    from osmosis_ai.api.wire.runs import EvalRunSubmit, SubmitCheck, SubmittedRun, TrainingRunSubmit
    from osmosis_ai.config.issues import Issue
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.rollout_preflight import ImportOutcome
    from osmosis_ai.services.runs.lifecycle import RunKind
    from osmosis_ai.services.runs.secrets import RunSecret
    from osmosis_ai.services.runs.submit_findings import Findings
    from osmosis_ai.workspace.config_files import EvalConfig, TrainingConfig
    from osmosis_ai.workspace.layout import WorkspaceDirectory

    Config = EvalConfig | TrainingConfig
    Body = EvalRunSubmit | TrainingRunSubmit

Tell = Callable[[str], None]


@dataclass(frozen=True)
class PreparedSubmit:
    """A run that is ready to be submitted.

    Attributes:
        body: what is sent; may hold values of secrets.
        notes: what the user is agreeing to.
        warnings: what may not be as the user thinks.
        findings: what was checked, and what was not.
        imported: how the import of the entrypoint went; not that it failed.
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
        """Return what would be sent, without any value of a secret."""
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
        """Which rows of its dataset an evaluation takes; how many there are, the platform knows."""
        from osmosis_ai.workspace.config_files import EvalConfig

        if not isinstance(self.config, EvalConfig):
            return None
        limit = self.config.evaluation.limit
        if limit is None:
            return "a random 10 %, at least one, of a seed that the run records (the config sets no limit)"
        return f"the first {limit:,}, or all where there are fewer"

    def described(self) -> dict[str, Any]:
        """Return the experiment in the words of a submit's result."""
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
    """Read and check everything a submit needs; a platform that can tell beforehand what it would say is asked.

    Args:
        context: workspace directory, login and platform.
        kind: what is submitted.
        config: a file of ``configs/eval/`` or ``configs/training/``.
        secret_values: from the user's secrets file, for this run alone.
        tell: takes what takes a moment.

    Raises:
        OsmosisError: naming what is wrong and how to mend it.
    """
    from osmosis_ai.redaction import exposure_warnings
    from osmosis_ai.services.runs.secrets import (
        plan_run_secrets,
        stand_ins,
        supplied_values,
        unused_values,
    )
    from osmosis_ai.services.runs.submit_findings import Findings, code_notes, code_warnings
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
    # The platform receives the config itself.
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
    """Submit, once.

    Raises:
        PlatformError: the platform refused; or it did not answer, and the run may exist all the same.
    """
    return post_run(context, submission.kind, submission.body)


def require_import(submission: PreparedSubmit) -> None:
    """Check that the entrypoint imported in time; submitting leaves a slow one to the platform.

    Raises:
        OsmosisError: it did not.
    """
    if submission.imported.kind == "late":
        raise OsmosisError(
            submission.imported.problem,
            details={"entrypoint": submission.imported.entrypoint},
            hint="import it by hand to see what it waits for; move slow work out of the module into functions",
        )


def check_dataset(context: PlatformContext, submission: PreparedSubmit) -> Dataset:
    """Return the dataset a run will read, when it is ready; submitting leaves this to the platform.

    Raises:
        PlatformError: there is none of that name.
        OsmosisError: it is still being processed, or was not accepted.
    """
    from osmosis_ai.services.datasets import require_ready

    return require_ready(context.client.datasets.get(submission.config.experiment.dataset))


def _load(kind: RunKind, config: Path, workspace: WorkspaceDirectory) -> Config:
    from osmosis_ai.workspace.config_files import load_eval_config, load_training_config

    return load_eval_config(config, workspace) if kind == "eval" else load_training_config(config, workspace)


def _settings_doubts(config: Config, verdict: SubmitCheck | None) -> list[str]:
    """Return what this release has against the settings; the platform has the last word."""
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
    """Look at the code as it is here.

    Raises:
        OsmosisError: it cannot run anywhere.
    """
    from osmosis_ai.config.sections import served_agent
    from osmosis_ai.services.rollout_preflight import import_entrypoint, served_elsewhere
    from osmosis_ai.workspace.config_files import entrypoint_path, rollout_directory

    workspace, experiment = context.workspace, config.experiment
    if served_agent(experiment.entrypoint) is not None:
        return served_elsewhere(experiment.entrypoint)
    entrypoint_path(workspace, experiment)
    tell("Importing the entrypoint")
    return import_entrypoint(
        rollout_directory(workspace, experiment.rollout),
        experiment.entrypoint,
        env=config.env,
        secret_names=config.secrets,
    ).require(f"{kind} submit")


def _look_for_commit(context: PlatformContext, config: Config, tell: Tell) -> str | None:
    """Return what is doubtful about the pinned commit, as far as can be told without the platform."""
    from osmosis_ai.services.runs.pinned_commit import check_pinned_commit

    commit_sha = config.experiment.commit_sha
    if commit_sha is None:
        return None
    tell("Looking for the pinned commit")
    return check_pinned_commit(context.workspace.root, commit_sha, context.checkout.git)


def ask_platform(context: PlatformContext, body: Body) -> SubmitCheck | None:
    """Ask the platform what it would say to ``body``; None where it cannot be asked.

    The hosted service is known to have no such route, and gets no request it does not know.

    Raises:
        OsmosisError: it would refuse.
    """
    from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
    from osmosis_ai.api.wire.runs import EvalRunSubmit
    from osmosis_ai.services.runs.secrets import explaining_failures

    if context.credentials.platform_url == DEFAULT_PLATFORM_URL:
        return None
    with explaining_failures():
        if isinstance(body, EvalRunSubmit):
            return context.client.eval_runs.check(body)
        return context.client.training_runs.check(body)


def _body(kind: RunKind, config: Config, supplied: Mapping[str, str]) -> Body:
    from osmosis_ai.api.wire.runs import EvalRunSubmit, TrainingRunSubmit

    payload = config.payload()
    if supplied:
        payload["secrets"] = {**payload["secrets"], "provided": dict(supplied)}
    body = EvalRunSubmit if kind == "eval" else TrainingRunSubmit
    return body.model_validate(payload)


def post_run(context: PlatformContext, kind: RunKind, body: Body) -> SubmittedRun:
    """Submit ``body``, once.

    Raises:
        PlatformError: the platform refused; or it did not answer, and the run may exist all the same.
    """
    from osmosis_ai.api.wire.runs import EvalRunSubmit
    from osmosis_ai.services.runs.secrets import explaining_failures

    with explaining_failures(f"osmosis {kind} list"):
        if isinstance(body, EvalRunSubmit):
            return context.client.eval_runs.submit(body)
        return context.client.training_runs.submit(body)

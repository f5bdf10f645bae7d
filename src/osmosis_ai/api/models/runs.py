"""Fields of evaluation and training runs: submission and its reply, and the fields of a run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from osmosis_ai.api.models.base import Named, Timestamp, WireModel
from osmosis_ai.config.sections import Experiment


class RunSecrets(WireModel):
    """``required`` lists every name; ``provided`` contains values for this run only."""

    required: list[str] = []
    provided: dict[str, str] = Field(default={}, repr=False)


class RunSubmit(WireModel):
    experiment_config: Experiment
    advanced_config: dict[str, Any] = {}
    env_config: dict[str, str] = {}
    secrets: RunSecrets | None = None


class EvalRunSubmit(RunSubmit):
    evaluation_config: dict[str, Any] = {}


class TrainingRunSubmit(RunSubmit):
    training_config: dict[str, Any] = {}
    sampling_config: dict[str, Any] = {}
    checkpoints_config: dict[str, Any] = {}


class Run(WireModel):
    """The fields common to all runs; ``waits``, in lists of our platform, is the reason why a run has no worker."""

    id: str
    name: str | None = None
    status: str = ""
    created_at: Timestamp | None = None
    started_at: Timestamp | None = None
    completed_at: Timestamp | None = None
    creator_name: str | None = None
    creator_email: str | None = None
    platform_url: str | None = None
    error: str | None = None
    waits: str | None = None


class DetailedRun(WireModel):
    """Details of both kinds; fields from ``request`` on are only on our platform."""

    config: dict[str, Any] | None = None
    dataset: Named | None = None
    rollout: Named | None = None
    entrypoint: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    env_config: dict[str, str] | None = None
    resolved_secret_scopes: dict[str, str] | None = None
    is_internal_user: bool = False
    request: dict[str, Any] | None = None
    dataset_sha256: str | None = None
    platform_version: str | None = None
    environment: str | None = None
    isolation: str | None = None
    waits: str | None = None
    silent_since: Timestamp | None = None

    @property
    def waits_for(self) -> object:
        """A value that changes only when the reason for waiting changes; None if the run is not waiting."""
        return self.silent_since or self.waits or None


class EvalRetry(WireModel):
    """The input of a retried evaluation: secret values for this run only, and a budget that replaces the run's."""

    secrets: RunSecrets | None = None
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None


class SubmittedRun(WireModel):
    id: str
    name: str
    status: str
    created_at: Timestamp
    platform_url: str | None = None


class CheckedRepository(WireModel):
    """``local``: the platform reads a path on its own machine, so nothing needs to be pushed."""

    identity: str = ""
    local: bool = False


class SubmitCheck(WireModel):
    """The expected result of a submit."""

    dry_run: bool = False
    commit_sha: str = ""
    repository: CheckedRepository = CheckedRepository()
    dataset: Named | None = None
    sampled_rows: int | None = None
    total_dataset_rows: int | None = None
    resolved_secret_scopes: dict[str, str] = {}
    dataset_sha256: str | None = None
    platform_version: str | None = None


class StopReply(WireModel):
    id: str | None = None
    status: str | None = None

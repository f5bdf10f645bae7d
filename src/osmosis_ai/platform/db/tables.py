"""The tables, noun by noun."""

from __future__ import annotations

import math
import secrets
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    event,
    func,
    select,
    text,
)
from sqlalchemy.orm import Mapped, MappedSQLExpression, column_property, mapped_column, relationship

from osmosis_ai.platform.db.base import Base as Base
from osmosis_ai.platform.log_lines import PLAN, WARNED


def new_id(prefix: str) -> str:
    """Return a fresh URL-safe id such as ``run_3f9a…`` (96 random bits)."""
    return f"{prefix}_{secrets.token_hex(12)}"


class DbUser(Base):
    """A user; while ``disabled_at`` is set, the password and tokens are refused."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    email: Mapped[str] = mapped_column(String(320), unique=True)
    name: Mapped[str | None] = mapped_column(String(255))
    password_hash: Mapped[str | None] = mapped_column(String(255))
    is_admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]

    @property
    def display_name(self) -> str:
        return self.name or self.email


def _name_of(user_id: Mapped[str | None]) -> MappedSQLExpression[str | None]:
    """Map the name of the user in another column, or else the address."""
    name = select(func.coalesce(DbUser.name, DbUser.email)).where(DbUser.id == user_id)
    return column_property(name.correlate_except(DbUser).scalar_subquery())


class DbToken(Base):
    """A bearer token of a user; only its SHA-256 is stored. ``kind``: ``cli``, ``api_key`` or ``web``."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    workspace_id: Mapped[str | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str | None] = mapped_column(String(255))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class DbDeviceLogin(Base):
    """One pass of the device flow. ``status``: ``pending``, ``approved``, ``denied``, ``used``."""

    __tablename__ = "device_logins"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    device_code_hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_code: Mapped[str] = mapped_column(String(16), unique=True)
    device_name: Mapped[str] = mapped_column(String(255))
    status: Mapped[str] = mapped_column(String(16))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    interval_s: Mapped[float] = mapped_column(Float)
    last_poll_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class DbWorkspace(Base):
    __tablename__ = "workspaces"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    created_at: Mapped[datetime]


class DbMembership(Base):
    """``role``: ``owner``, ``admin`` or ``member``; ``quickstart_intent``: what the user chose to do first."""

    __tablename__ = "memberships"

    workspace_id: Mapped[str] = mapped_column(
        ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    quickstart_intent: Mapped[str | None] = mapped_column(String(16))


class DbRepository(Base):
    """A connected repository: its name, and the URL that it is cloned from."""

    __tablename__ = "repositories"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    identity: Mapped[str] = mapped_column(String(255), unique=True)
    clone_url: Mapped[str] = mapped_column(Text)
    default_branch: Mapped[str | None] = mapped_column(String(255))
    last_synced_sha: Mapped[str | None] = mapped_column(String(64))
    last_synced_at: Mapped[datetime | None]
    sync_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]


class DbRepositoryIdentity(Base):
    """An identity that clients send for a repository; its name is always one of them."""

    __tablename__ = "repository_identities"

    identity: Mapped[str] = mapped_column(String(255), primary_key=True)
    repository_id: Mapped[str] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"), index=True)


class DbRollout(Base):
    __tablename__ = "rollouts"
    __table_args__ = (UniqueConstraint("repository_id", "name"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    repository_id: Mapped[str] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(255))
    description: Mapped[str | None] = mapped_column(Text)
    is_active: Mapped[bool] = mapped_column(default=True)
    last_synced_commit_sha: Mapped[str | None] = mapped_column(String(64))
    last_synced_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class DbDataset(Base):
    __tablename__ = "datasets"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        Index("ix_datasets_workspace_created", "workspace_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(255))
    status: Mapped[str] = mapped_column(String(16))
    extension: Mapped[str] = mapped_column(String(16))
    file_size: Mapped[int] = mapped_column(BigInteger)
    row_count: Mapped[int | None] = mapped_column(Integer)
    sha256: Mapped[str | None] = mapped_column(String(64))
    blob_key: Mapped[str | None] = mapped_column(String(255))
    pending_upload: Mapped[dict[str, Any] | None] = mapped_column("upload")
    preview: Mapped[list[Any] | None]
    error: Mapped[str | None] = mapped_column(Text)
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    creator_name: Mapped[str | None] = _name_of(creator_id)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class DbSecret(Base):
    """A sealed value. ``scope``: ``workspace`` (``owner_id`` empty) or ``user`` (its owner's own)."""

    __tablename__ = "secrets"
    __table_args__ = (
        UniqueConstraint("workspace_id", "scope", "owner_id", "name"),
        Index("ix_secrets_workspace_name", "workspace_id", "name", "scope", "owner_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    scope: Mapped[str] = mapped_column(String(16))
    # An empty string instead of NULL, which unique constraints ignore.
    owner_id: Mapped[str] = mapped_column(String(40), default="")
    name: Mapped[str] = mapped_column(String(255))
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    creator_name: Mapped[str | None] = _name_of(creator_id)
    updater_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    updater_name: Mapped[str | None] = _name_of(updater_id)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class DbRolloutServer(Base):
    """A remote agent's latest registration under its name, with the result of its last probe."""

    __tablename__ = "rollout_servers"
    __table_args__ = (UniqueConstraint("workspace_id", "name"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(255))
    host: Mapped[str] = mapped_column(String(255))
    port: Mapped[int] = mapped_column(Integer)
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary)
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    probed_at: Mapped[datetime | None]
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    creator_name: Mapped[str | None] = _name_of(creator_id)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class DbRun(Base):
    """An evaluation or training run; ``run_shards`` has what its workers execute."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        Index("ix_runs_workspace_kind_created", "workspace_id", "kind", "created_at", "id"),
        Index("ix_runs_status", "status"),
        *(
            Index(f"ix_runs_workspace_{name}", "workspace_id", "kind", column, "id")
            for name, column in (
                ("status", "status"),
                ("reward", "reward"),
                ("pass_rate", "pass_rate"),
                ("cost", "cost_usd"),
                ("duration", "duration_ms"),
            )
        ),
        Index(
            "ix_runs_workspace_config",
            *("workspace_id", "kind", "rollout_name", "dataset_name", "created_at", "id"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    repository_id: Mapped[str | None] = mapped_column(ForeignKey("repositories.id", ondelete="SET NULL"))
    kind: Mapped[Literal["eval", "training"]] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(255))
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]

    request: Mapped[dict[str, Any]]
    commit_sha: Mapped[str | None] = mapped_column(String(64))
    branch: Mapped[str | None] = mapped_column(String(255))
    rollout_id: Mapped[str | None] = mapped_column(String(40))
    rollout_name: Mapped[str] = mapped_column(String(255))
    dataset_id: Mapped[str | None] = mapped_column(String(40))
    dataset_name: Mapped[str] = mapped_column(String(255))
    model_path: Mapped[str] = mapped_column(String(255))
    seed: Mapped[int] = mapped_column(Integer, default=0)
    selection: Mapped[dict[str, Any] | None]
    secret_scopes: Mapped[dict[str, Any] | None]
    sealed_secrets: Mapped[bytes | None] = mapped_column(LargeBinary)
    platform_version: Mapped[str | None] = mapped_column(String(64))
    environment: Mapped[str | None] = mapped_column(Text)
    isolation: Mapped[str | None] = mapped_column(String(255))
    pool: Mapped[str | None] = mapped_column(String(64))
    needs: Mapped[str | None] = mapped_column(Text)

    creator: Mapped[DbUser | None] = relationship(viewonly=True, lazy="raise")

    # How often the run was retried, when last, and how many samples had been accepted then.
    revision: Mapped[int] = mapped_column(Integer, default=0)
    retried_at: Mapped[datetime | None]
    reopened_at: Mapped[int] = mapped_column(BigInteger, default=0)
    stop_requested_at: Mapped[datetime | None]

    # Samples accepted so far, each time one is; and how many of them the results and metrics count.
    accepted: Mapped[int] = mapped_column(BigInteger, default=0)
    counted: Mapped[int] = mapped_column(BigInteger, default=0)
    progress: Mapped[dict[str, Any] | None]
    results: Mapped[dict[str, Any] | None]
    metrics: Mapped[dict[str, Any] | None]
    training_state: Mapped[dict[str, Any] | None]
    upload_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    grader_digest: Mapped[str | None] = mapped_column(String(64))
    imported: Mapped[dict[str, Any] | None]
    journal_blob: Mapped[str | None] = mapped_column(String(255))

    # Sort columns, computed from results and metrics: values inside JSON have no index on both engines.
    reward: Mapped[float | None] = mapped_column(Float)
    pass_rate: Mapped[float | None] = mapped_column(Float)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    duration_ms: Mapped[float | None] = mapped_column(Float)


@event.listens_for(DbRun, "before_insert")
@event.listens_for(DbRun, "before_update")
def _compute_sort_columns(_mapper: object, _connection: object, run: DbRun) -> None:
    results, metrics = run.results or {}, run.metrics or {}
    stats, headline = results.get("reward_stats") or {}, results.get("headline") or {}
    graded, passed = results.get("graded"), results.get("passed")
    took = None
    if run.started_at and run.completed_at:
        took = (run.completed_at - run.started_at).total_seconds() * 1000
    found: dict[str, Any] = {
        "reward": results.get("reward", results.get("score", stats.get("mean"))),
        "pass_rate": headline.get("pass_rate", passed / graded if graded and passed is not None else None),
        "cost_usd": ((metrics.get("estimates") or {}).get("cost_usd") or {}).get("total"),
        "duration_ms": metrics.get("duration_ms", took),
    }
    for name, value in found.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        number = float(value) if is_number else None
        if getattr(run, name) != number:
            setattr(run, name, number)


def duration_ms(run: Any, now: datetime) -> float | None:
    """Return how long a run has taken in milliseconds; None before it begins."""
    if run.duration_ms is not None:
        return float(run.duration_ms)
    if run.started_at is None:
        return None
    return max(0.0, float((now - run.started_at).total_seconds() * 1000))


class DbRunShard(Base):
    """A part of an open run that one worker executes at a time, and its lease.

    ``kind``: ``prepare``, ``work`` or ``finalize``. ``status``: ``pending``, ``running``, ``finished``, ``failed`` or
    ``stopped``. ``attempts`` lists the rows and attempts of a retry; otherwise the shard has every ``count``-th row.
    ``waits``: why no worker executes it now. ``ticket_...``: what lets one worker claim attempt ``ticket_attempt``.
    """

    __tablename__ = "run_shards"
    __table_args__ = (
        UniqueConstraint("run_id", "kind", "number"),
        Index("ix_run_shards_status_lease", "status", "lease_expires_at"),
        Index("ix_run_shards_claim_id", "claim_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(16))
    number: Mapped[int] = mapped_column(Integer, default=0)
    count: Mapped[int] = mapped_column(Integer, default=1)
    attempts: Mapped[list[Any] | None]
    status: Mapped[str] = mapped_column(String(16), default="pending")
    error: Mapped[str | None] = mapped_column(Text)
    waits: Mapped[str | None] = mapped_column(Text)

    lease_token: Mapped[str | None] = mapped_column(String(64))
    lease_expires_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    claim_id: Mapped[str | None] = mapped_column(String(32))
    token_id: Mapped[str | None] = mapped_column(String(40))
    worker_id: Mapped[str | None] = mapped_column(String(40), index=True)
    unfit_worker_id: Mapped[str | None] = mapped_column(String(40))
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    failed_attempts: Mapped[int] = mapped_column(Integer, default=0)
    not_before: Mapped[datetime | None]

    ticket_hash: Mapped[str | None] = mapped_column(String(64), index=True)
    ticket_attempt: Mapped[int] = mapped_column(Integer, default=0)
    ticket_claim_id: Mapped[str | None] = mapped_column(String(32))
    ticket_running_at: Mapped[datetime | None]
    ticket_refused_at: Mapped[datetime | None]

    journal_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    log_lines: Mapped[int] = mapped_column(Integer, default=0)
    worked_s: Mapped[float] = mapped_column(Float, default=0.0)
    limited_by: Mapped[dict[str, Any] | None]


class DbJournalChunk(Base):
    """An accepted part of a shard's journal, from byte ``offset`` on, until the run has ended."""

    __tablename__ = "journal_chunks"

    shard_id: Mapped[str] = mapped_column(ForeignKey("run_shards.id", ondelete="CASCADE"), primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class DbDeletedRun(Base):
    """A run that has been deleted, for as long as files of it may be left."""

    __tablename__ = "deleted_runs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    deleted_at: Mapped[datetime]


class DbSample(Base):
    """A finished row x attempt of an evaluation run."""

    __tablename__ = "samples"
    __table_args__ = (
        Index("ix_samples_run_category", "run_id", "category"),
        Index("ix_samples_digest", "row_digest", "run_id"),
        Index("ix_samples_run_position", "run_id", "position"),
        Index("ix_samples_run_reward", "run_id", "reward", "row_index", "run_index"),
        Index("ix_samples_run_duration", "run_id", "duration_ms", "row_index", "run_index"),
        Index("ix_samples_run_tokens", "run_id", "tokens", "row_index", "run_index"),
        Index("ix_samples_run_cost", "run_id", "cost_usd", "row_index", "run_index"),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    row_index: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    run_index: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    source_row_index: Mapped[int] = mapped_column(Integer)
    rollout_id: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(16))
    reward: Mapped[float | None] = mapped_column(Float)
    tokens: Mapped[int | None] = mapped_column(Integer)
    duration_ms: Mapped[float] = mapped_column(Float)
    error_type: Mapped[str | None] = mapped_column(String(64))
    resumed: Mapped[bool] = mapped_column(default=False)
    boundary: Mapped[str | None] = mapped_column(String(32))
    category: Mapped[str | None] = mapped_column(String(64))
    error: Mapped[str | None] = mapped_column(Text)
    prompt_tokens: Mapped[int | None] = mapped_column(Integer)
    completion_tokens: Mapped[int | None] = mapped_column(Integer)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    model_calls: Mapped[int | None] = mapped_column(Integer)
    model_latency_ms: Mapped[float | None] = mapped_column(Float)
    lost_attempts: Mapped[int | None] = mapped_column(Integer)
    row_digest: Mapped[str | None] = mapped_column(String(32))
    input: Mapped[str | None] = mapped_column(Text)
    output: Mapped[str | None] = mapped_column(Text)
    notes: Mapped[str | None] = mapped_column(Text)
    parts: Mapped[dict[str, Any] | None]
    finish_reasons: Mapped[dict[str, Any] | None]
    judge_calls: Mapped[int | None] = mapped_column(Integer)
    judge_tokens: Mapped[int | None] = mapped_column(BigInteger)
    judge_cost_usd: Mapped[float | None] = mapped_column(Float)
    judge_outside_scale: Mapped[int | None] = mapped_column(Integer)
    # How many samples of the run had been accepted with this one.
    position: Mapped[int | None] = mapped_column(BigInteger)


class DbRunFile(Base):
    """A file of a run; ``path`` as in the download layout, ``size`` in bytes.

    Its bytes are a blob, a compressed range of one, or, without ``blob_key``, in ``conversations``.
    """

    __tablename__ = "run_files"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(String(1024), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    source_row_index: Mapped[int | None] = mapped_column(Integer)
    size: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str | None] = mapped_column(String(255))
    offset: Mapped[int | None] = mapped_column(BigInteger)
    length: Mapped[int | None] = mapped_column(Integer)
    sha256: Mapped[str | None] = mapped_column(String(64))
    # The run's revision when the file was written.
    revision: Mapped[int] = mapped_column(Integer, default=0)


class DbConversation(Base):
    """The compressed bytes of a small file of an open run, until they are packed into a blob."""

    __tablename__ = "conversations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(String(1024), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class DbMetricPoint(Base):
    """The value of a metric of a training run at one of its steps; always a finite number."""

    __tablename__ = "metric_points"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    value: Mapped[float] = mapped_column(Float)
    timestamp: Mapped[datetime]


class DbLoraModel(Base):
    """An adapter that a training run has saved: a checkpoint of the run, and a model that can be deployed."""

    __tablename__ = "lora_models"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        UniqueConstraint("run_id", "step"),
        Index("ix_lora_models_workspace_created", "workspace_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    run_name: Mapped[str] = column_property(
        select(DbRun.name).where(DbRun.id == run_id).correlate_except(DbRun).scalar_subquery()
    )
    name: Mapped[str] = mapped_column(String(255))
    base_model: Mapped[str] = mapped_column(String(255))
    step: Mapped[int] = mapped_column(Integer)
    reward: Mapped[float | None] = mapped_column(Float)
    validation_reward: Mapped[float | None] = mapped_column(Float)
    files: Mapped[dict[str, Any]]
    deployment_status: Mapped[str | None] = mapped_column(String(16))
    deployed_at: Mapped[datetime | None]
    deployer_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    deployed_by: Mapped[str | None] = _name_of(deployer_id)
    created_at: Mapped[datetime]

    @property
    def inference_name(self) -> str:
        """The model name for clients of the served adapter."""
        return f"{self.base_model}:{self.name}"


class DbEvalImport(Base):
    """The upload of an evaluation that ran on another machine."""

    __tablename__ = "eval_imports"
    __table_args__ = (UniqueConstraint("workspace_id", "local_run_id", "manifest_digest"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    repository_id: Mapped[str | None] = mapped_column(ForeignKey("repositories.id", ondelete="SET NULL"))
    local_run_id: Mapped[str] = mapped_column(String(32))
    manifest_digest: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    announced: Mapped[dict[str, Any]]
    run_id: Mapped[str] = mapped_column(String(40))
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class DbEvalImportFile(Base):
    """A file of such an upload, by its path in the run's directory; ``upload`` is the store's, while it is open."""

    __tablename__ = "eval_import_files"

    import_id: Mapped[str] = mapped_column(
        ForeignKey("eval_imports.id", ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(String(1024), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    blob_key: Mapped[str] = mapped_column(String(255))
    upload: Mapped[dict[str, Any] | None]
    is_stored: Mapped[bool] = mapped_column(default=False)


OF_MARKS = f"step IN ('{PLAN}', '{WARNED}')"
"""The lines of a log that are marks on a run's curves: a few of hundreds of thousands, so they have an index."""


class DbLogLine(Base):
    """A line of the log of a dataset or a run (``subject_id``), in the order of ``id``."""

    __tablename__ = "log_lines"
    __table_args__ = (
        Index("ix_log_lines_subject", "subject_id", "id"),
        Index(
            "ix_log_lines_marks",
            "subject_id",
            "step",
            "id",
            sqlite_where=text(OF_MARKS),
            postgresql_where=text(OF_MARKS),
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    subject_id: Mapped[str] = mapped_column(String(40))
    timestamp: Mapped[datetime]
    level: Mapped[str] = mapped_column(String(16))
    step: Mapped[str] = mapped_column(String(64))
    message: Mapped[str] = mapped_column(Text)
    details: Mapped[dict[str, Any] | None]


class DbWorkerToken(Base):
    """A token to claim the runs of a pool, of some workspaces or (null) of all; only its SHA-256 is stored."""

    __tablename__ = "worker_tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str | None] = mapped_column(String(255))
    pool: Mapped[str] = mapped_column(String(64))
    workspace_ids: Mapped[list[Any] | None]
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class DbKnownWorker(Base):
    """A machine that has asked for runs with a worker token; ``id`` is a digest of its description."""

    __tablename__ = "known_workers"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("worker_tokens.id", ondelete="CASCADE"), index=True)
    pool: Mapped[str] = mapped_column(String(64))
    machine: Mapped[str | None] = mapped_column(String(128))
    labels: Mapped[list[Any]]
    cpus: Mapped[float | None] = mapped_column(Float)
    gpus: Mapped[float | None] = mapped_column(Float)
    memory_gb: Mapped[float | None] = mapped_column(Float)
    sandbox: Mapped[bool | None]
    sandbox_problem: Mapped[str | None] = mapped_column(Text)
    seen_at: Mapped[datetime]
    left_at: Mapped[datetime | None]


class DbSecretAccess(Base):
    """The names of the secrets of a run that a claim was answered with. It outlives its run."""

    __tablename__ = "secret_access"
    __table_args__ = (Index("ix_secret_access_workspace_created", "workspace_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    run_id: Mapped[str] = mapped_column(String(40))
    run_name: Mapped[str] = mapped_column(String(255))
    attempt: Mapped[int] = mapped_column(Integer)
    claim_id: Mapped[str] = mapped_column(String(32))
    names: Mapped[list[Any]]
    machine: Mapped[str | None] = mapped_column(String(128))
    pool: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]


class DbRunUpload(Base):
    """A blob uploaded by a worker for an active run; ``name`` is the end of its key, after the run's prefix."""

    __tablename__ = "run_uploads"
    __table_args__ = (
        Index(
            "ix_run_uploads_open",
            "run_id",
            sqlite_where=text("is_stored = 0"),
            postgresql_where=text("NOT is_stored"),
        ),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    upload_id: Mapped[str] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    is_stored: Mapped[bool] = mapped_column(default=False)


class DbSourceArchive(Base):
    """A commit's files as one archive, for workers; made once."""

    __tablename__ = "source_archives"

    workspace_id: Mapped[str] = mapped_column(
        ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True
    )
    commit_sha: Mapped[str] = mapped_column(String(64), primary_key=True)
    blob_key: Mapped[str] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]

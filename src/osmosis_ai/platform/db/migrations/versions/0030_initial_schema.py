"""Initial schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# Development databases used 0001 to 0024; they must not pass for this one.
revision = "0030"
down_revision = None


def upgrade() -> None:
    """Create every table and index."""
    op.create_table(
        "deleted_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deleted_runs"),
    )
    op.create_table(
        "log_lines",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("subject_id", sa.String(length=40), nullable=False),
        sa.Column("timestamp", sa.DateTime(timezone=True), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("step", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_log_lines"),
    )
    op.create_index(
        "ix_log_lines_marks",
        "log_lines",
        ["subject_id", "step", "id"],
        sqlite_where=sa.text("step IN ('plan', 'warning')"),
        postgresql_where=sa.text("step IN ('plan', 'warning')"),
    )
    op.create_index("ix_log_lines_subject", "log_lines", ["subject_id", "id"])
    op.create_table(
        "run_shards",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("merged_into", sa.String(length=255), nullable=True),
        sa.Column("merged_offset", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_run_shards"),
    )
    op.create_index("ix_run_shards_state_run", "run_shards", ["state", "run_id"])
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("password_hash", sa.String(length=255), nullable=True),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("email", name="uq_users_email"),
    )
    op.create_table(
        "worker_tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("pool", sa.String(length=64), nullable=False),
        sa.Column("workspace_ids", sa.JSON(), nullable=True),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_worker_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_worker_tokens_token_hash"),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
        sa.UniqueConstraint("name", name="uq_workspaces_name"),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("extension", sa.String(length=16), nullable=False),
        sa.Column("file_size", sa.BigInteger(), nullable=False),
        sa.Column("row_count", sa.Integer(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("blob_key", sa.String(length=255), nullable=True),
        sa.Column("upload", sa.JSON(), nullable=True),
        sa.Column("preview", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("creator_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name="fk_datasets_creator_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_datasets_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_datasets_workspace_id_name"),
    )
    op.create_index("ix_datasets_workspace_created", "datasets", ["workspace_id", "created_at", "id"])
    op.create_table(
        "device_logins",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("device_code_hash", sa.String(length=64), nullable=False),
        sa.Column("user_code", sa.String(length=16), nullable=False),
        sa.Column("device_name", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=True),
        sa.Column("interval_s", sa.Float(), nullable=False),
        sa.Column("last_poll_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_device_logins_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_device_logins"),
        sa.UniqueConstraint("device_code_hash", name="uq_device_logins_device_code_hash"),
        sa.UniqueConstraint("user_code", name="uq_device_logins_user_code"),
    )
    op.create_table(
        "known_workers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=False),
        sa.Column("pool", sa.String(length=64), nullable=False),
        sa.Column("machine", sa.String(length=128), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("cpus", sa.Float(), nullable=True),
        sa.Column("gpus", sa.Float(), nullable=True),
        sa.Column("memory_gb", sa.Float(), nullable=True),
        sa.Column("sandbox", sa.Boolean(), nullable=True),
        sa.Column("sandbox_problem", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("left_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["token_id"], ["worker_tokens.id"], name="fk_known_workers_token_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_known_workers"),
    )
    op.create_index("ix_known_workers_token_id", "known_workers", ["token_id"])
    op.create_table(
        "memberships",
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("quickstart_intent", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_memberships_user_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_memberships_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "user_id", name="pk_memberships"),
    )
    op.create_table(
        "repositories",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("clone_url", sa.Text(), nullable=False),
        sa.Column("default_branch", sa.String(length=255), nullable=True),
        sa.Column("last_synced_sha", sa.String(length=64), nullable=True),
        sa.Column("last_synced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sync_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_repositories_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_repositories"),
        sa.UniqueConstraint("identity", name="uq_repositories_identity"),
    )
    op.create_index("ix_repositories_workspace_id", "repositories", ["workspace_id"])
    op.create_table(
        "rollout_servers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("probed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("creator_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name="fk_rollout_servers_creator_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_rollout_servers_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_servers"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_rollout_servers_workspace_id_name"),
    )
    op.create_table(
        "secret_handouts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("run_name", sa.String(length=255), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claim_id", sa.String(length=32), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("machine", sa.String(length=128), nullable=True),
        sa.Column("pool", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_secret_handouts_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_secret_handouts"),
        sa.UniqueConstraint("run_id", "claim_id", name="uq_secret_handouts_run_id_claim_id"),
    )
    op.create_index(
        "ix_secret_handouts_workspace_created", "secret_handouts", ["workspace_id", "created_at", "id"]
    )
    op.create_table(
        "secrets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("creator_id", sa.String(length=40), nullable=True),
        sa.Column("updater_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name="fk_secrets_creator_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["updater_id"], ["users.id"], name="fk_secrets_updater_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_secrets_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_secrets"),
        sa.UniqueConstraint(
            "workspace_id", "scope", "owner_id", "name", name="uq_secrets_workspace_id_scope_owner_id_name"
        ),
    )
    op.create_table(
        "source_archives",
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("commit_sha", sa.String(length=64), nullable=False),
        sa.Column("blob_key", sa.String(length=255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_source_archives_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "commit_sha", name="pk_source_archives"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_tokens_user_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_tokens_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_tokens_token_hash"),
    )
    op.create_index("ix_tokens_user_id", "tokens", ["user_id"])
    op.create_table(
        "eval_imports",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("repository_id", sa.String(length=40), nullable=True),
        sa.Column("local_run_id", sa.String(length=32), nullable=False),
        sa.Column("manifest_digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("announced", sa.JSON(), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("creator_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name="fk_eval_imports_creator_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name="fk_eval_imports_repository_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_eval_imports_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_eval_imports"),
        sa.UniqueConstraint(
            "workspace_id",
            "local_run_id",
            "manifest_digest",
            name="uq_eval_imports_workspace_id_local_run_id_manifest_digest",
        ),
    )
    op.create_index("ix_eval_imports_expires_at", "eval_imports", ["expires_at"])
    op.create_table(
        "repository_identities",
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("repository_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_repository_identities_repository_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("identity", name="pk_repository_identities"),
    )
    op.create_index("ix_repository_identities_repository_id", "repository_identities", ["repository_id"])
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("repository_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("last_synced_commit_sha", sa.String(length=64), nullable=True),
        sa.Column("last_synced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name="fk_rollouts_repository_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_rollouts_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_rollouts"),
        sa.UniqueConstraint("repository_id", "name", name="uq_rollouts_repository_id_name"),
    )
    op.create_index("ix_rollouts_workspace_id", "rollouts", ["workspace_id"])
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("repository_id", sa.String(length=40), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("creator_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("commit_sha", sa.String(length=64), nullable=True),
        sa.Column("branch", sa.String(length=255), nullable=True),
        sa.Column("rollout_id", sa.String(length=40), nullable=True),
        sa.Column("rollout_name", sa.String(length=255), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=True),
        sa.Column("dataset_name", sa.String(length=255), nullable=False),
        sa.Column("model_path", sa.String(length=255), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("selection", sa.JSON(), nullable=True),
        sa.Column("secret_scopes", sa.JSON(), nullable=True),
        sa.Column("sealed_secrets", sa.LargeBinary(), nullable=True),
        sa.Column("platform_version", sa.String(length=64), nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.Column("isolation", sa.String(length=255), nullable=True),
        sa.Column("retry_of_id", sa.String(length=40), nullable=True),
        sa.Column("retry_of_name", sa.String(length=255), nullable=True),
        sa.Column("retried", sa.JSON(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("results", sa.JSON(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=True),
        sa.Column("grader_digest", sa.String(length=64), nullable=True),
        sa.Column("imported", sa.JSON(), nullable=True),
        sa.Column("journal_blob", sa.String(length=255), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("pass_rate", sa.Float(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=True),
        sa.Column("pool", sa.String(length=64), nullable=True),
        sa.Column("needs", sa.Text(), nullable=True),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("is_claim_answered", sa.Boolean(), nullable=False),
        sa.Column("journal_generation", sa.Integer(), nullable=False),
        sa.Column("journal_bytes", sa.BigInteger(), nullable=False),
        sa.Column("log_lines", sa.Integer(), nullable=False),
        sa.Column("fruitless", sa.Integer(), nullable=False),
        sa.Column("claimable_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("training_state", sa.JSON(), nullable=True),
        sa.Column("upload_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["creator_id"], ["users.id"], name="fk_runs_creator_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name="fk_runs_repository_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_runs_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_runs_workspace_id_name"),
    )
    op.create_index("ix_runs_claim_id", "runs", ["claim_id"])
    op.create_index("ix_runs_retry_of", "runs", ["retry_of_id"])
    op.create_index("ix_runs_status_lease", "runs", ["status", "lease_expires_at"])
    op.create_index(
        "ix_runs_workspace_config",
        "runs",
        ["workspace_id", "kind", "rollout_name", "dataset_name", "created_at", "id"],
    )
    op.create_index("ix_runs_workspace_cost", "runs", ["workspace_id", "kind", "cost_usd", "id"])
    op.create_index("ix_runs_workspace_duration", "runs", ["workspace_id", "kind", "duration_ms", "id"])
    op.create_index("ix_runs_workspace_kind_created", "runs", ["workspace_id", "kind", "created_at", "id"])
    op.create_index("ix_runs_workspace_pass_rate", "runs", ["workspace_id", "kind", "pass_rate", "id"])
    op.create_index("ix_runs_workspace_reward", "runs", ["workspace_id", "kind", "reward", "id"])
    op.create_index("ix_runs_workspace_status", "runs", ["workspace_id", "kind", "status", "id"])
    op.create_table(
        "eval_import_files",
        sa.Column("import_id", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("blob_key", sa.String(length=255), nullable=False),
        sa.Column("upload", sa.JSON(), nullable=True),
        sa.Column("is_stored", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["import_id"], ["eval_imports.id"], name="fk_eval_import_files_import_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("import_id", "path", name="pk_eval_import_files"),
    )
    op.create_table(
        "journal_segments",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("blob_key", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_journal_segments_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "generation", "seq", name="pk_journal_segments"),
    )
    op.create_table(
        "lora_models",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("base_model", sa.String(length=255), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("validation_reward", sa.Float(), nullable=True),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("deployment_status", sa.String(length=16), nullable=True),
        sa.Column("deployed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deployer_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployer_id"], ["users.id"], name="fk_lora_models_deployer_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_lora_models_run_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_lora_models_workspace_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_lora_models"),
        sa.UniqueConstraint("run_id", "step", name="uq_lora_models_run_id_step"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_lora_models_workspace_id_name"),
    )
    op.create_index("ix_lora_models_workspace_created", "lora_models", ["workspace_id", "created_at", "id"])
    op.create_table(
        "metric_points",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("timestamp", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_metric_points_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "key", "step", name="pk_metric_points"),
    )
    op.create_table(
        "run_files",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("source_row_index", sa.Integer(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("blob_key", sa.String(length=255), nullable=False),
        sa.Column("shard_offset", sa.BigInteger(), nullable=True),
        sa.Column("shard_length", sa.Integer(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_files_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "path", name="pk_run_files"),
    )
    op.create_index(
        "ix_run_files_shard",
        "run_files",
        ["run_id", "blob_key"],
        sqlite_where=sa.text("shard_offset IS NOT NULL"),
        postgresql_where=sa.text("shard_offset IS NOT NULL"),
    )
    op.create_table(
        "run_uploads",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=160), nullable=False),
        sa.Column("upload_id", sa.String(length=255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("is_stored", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_uploads_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_run_uploads"),
    )
    op.create_index(
        "ix_run_uploads_open",
        "run_uploads",
        ["run_id"],
        sqlite_where=sa.text("is_stored = 0"),
        postgresql_where=sa.text("NOT is_stored"),
    )
    op.create_table(
        "samples",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("row_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source_row_index", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("error_type", sa.String(length=64), nullable=True),
        sa.Column("resumed", sa.Boolean(), nullable=False),
        sa.Column("boundary", sa.String(length=32), nullable=True),
        sa.Column("category", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("model_calls", sa.Integer(), nullable=True),
        sa.Column("model_latency_ms", sa.Float(), nullable=True),
        sa.Column("lost_attempts", sa.Integer(), nullable=True),
        sa.Column("row_digest", sa.String(length=32), nullable=True),
        sa.Column("input", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("notes", sa.Text(), nullable=True),
        sa.Column("parts", sa.JSON(), nullable=True),
        sa.Column("finish_reasons", sa.JSON(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_samples_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "row_index", "run_index", name="pk_samples"),
    )
    op.create_index("ix_samples_digest", "samples", ["row_digest", "run_id"])
    op.create_index("ix_samples_run_category", "samples", ["run_id", "category"])
    op.create_index("ix_samples_run_cost", "samples", ["run_id", "cost_usd", "row_index", "run_index"])
    op.create_index("ix_samples_run_duration", "samples", ["run_id", "duration_ms", "row_index", "run_index"])
    op.create_index("ix_samples_run_position", "samples", ["run_id", "position"])
    op.create_index("ix_samples_run_reward", "samples", ["run_id", "reward", "row_index", "run_index"])
    op.create_index("ix_samples_run_tokens", "samples", ["run_id", "tokens", "row_index", "run_index"])
    op.create_table(
        "worker_tickets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("running_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("synced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refused_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_worker_tickets_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_worker_tickets"),
        sa.UniqueConstraint("token_hash", name="uq_worker_tickets_token_hash"),
    )
    op.create_index("ix_worker_tickets_run_id", "worker_tickets", ["run_id"])

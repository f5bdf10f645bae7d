"""training: what runs measure, and the adapters they save."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "lora_models",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("base_model", sa.String(length=255), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("deployment_status", sa.String(length=16), nullable=True),
        sa.Column("deployed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deployer_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployer_id"], ["users.id"], name=op.f("fk_lora_models_deployer_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_lora_models_run_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_lora_models_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lora_models")),
        sa.UniqueConstraint("run_id", "step", name=op.f("uq_lora_models_run_id_step")),
        sa.UniqueConstraint("workspace_id", "name", name=op.f("uq_lora_models_workspace_id_name")),
    )
    with op.batch_alter_table("lora_models", schema=None) as batch_op:
        batch_op.create_index(
            "ix_lora_models_workspace_created", ["workspace_id", "created_at", "id"], unique=False
        )

    op.create_table(
        "metric_points",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("timestamp", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_metric_points_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "key", "step", name=op.f("pk_metric_points")),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("metric_points")
    with op.batch_alter_table("lora_models", schema=None) as batch_op:
        batch_op.drop_index("ix_lora_models_workspace_created")

    op.drop_table("lora_models")

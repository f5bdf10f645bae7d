"""rubric_results: results of judging sessions that were uploaded; each document is a blob."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_INDEXES = {
    "created": "created_at",
    "status": "status",
    "reward": "reward",
    "cost": "cost_usd",
    "duration": "duration_ms",
}


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "rubric_results",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("workspace_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("blob_key", sa.String(255), nullable=False),
        sa.Column("creator_id", sa.String(40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("model_path", sa.String(255), nullable=True),
        sa.Column("dataset_name", sa.String(255), nullable=True),
        sa.Column("config", sa.String(255), nullable=True),
        sa.Column("headline", sa.JSON(), nullable=True),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace_id"],
            ["workspaces.id"],
            name=op.f("fk_rubric_results_workspace_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name=op.f("fk_rubric_results_creator_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rubric_results")),
        sa.UniqueConstraint("workspace_id", "name", name=op.f("uq_rubric_results_workspace_id_name")),
    )
    for order, column in _INDEXES.items():
        op.create_index(
            f"ix_rubric_results_workspace_{order}", "rubric_results", ["workspace_id", column, "id"]
        )
    op.create_index("ix_rubric_results_workspace", "rubric_results", ["workspace_id", "id"])
    op.create_index(
        "ix_rubric_results_workspace_config", "rubric_results", ["workspace_id", "config", "created_at", "id"]
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("rubric_results")

"""known_workers, runs.needs, runs.worker_id: which machines there are, and which of them a run is for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "known_workers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=False),
        sa.Column("pool", sa.String(length=64), nullable=False),
        sa.Column("machine", sa.String(length=128), nullable=True),
        sa.Column("labels", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("cpus", sa.Float(), nullable=True),
        sa.Column("gpus", sa.Float(), nullable=True),
        sa.Column("memory_gb", sa.Float(), nullable=True),
        sa.Column("sandbox", sa.Boolean(), nullable=True),
        sa.Column("sandbox_problem", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["worker_tokens.id"], name=op.f("fk_known_workers_token_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_known_workers")),
    )
    op.create_index(op.f("ix_known_workers_token_id"), "known_workers", ["token_id"])
    op.add_column("runs", sa.Column("needs", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("worker_id", sa.String(length=40), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("runs", "worker_id")
    op.drop_column("runs", "needs")
    op.drop_table("known_workers")

"""retries of evaluation runs, the version that took a run on, and runs whose files are being deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "deleted_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deleted_runs")),
    )
    op.add_column("runs", sa.Column("platform_version", sa.String(length=64), nullable=True))
    op.add_column("runs", sa.Column("retry_of_id", sa.String(length=40), nullable=True))
    op.add_column("runs", sa.Column("retry_of_name", sa.String(length=255), nullable=True))
    op.add_column("runs", sa.Column("retried", sa.JSON(), nullable=True))
    op.create_index("ix_runs_retry_of", "runs", ["retry_of_id"])


def downgrade() -> None:
    """Take it back."""
    op.drop_index("ix_runs_retry_of", "runs")
    op.drop_column("runs", "retried")
    op.drop_column("runs", "retry_of_name")
    op.drop_column("runs", "retry_of_id")
    op.drop_column("runs", "platform_version")
    op.drop_table("deleted_runs")

"""secret_handouts: which secrets of which run were handed to which machine, and when; it outlives the run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "secret_handouts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column(
            "workspace_id",
            sa.String(40),
            sa.ForeignKey(
                "workspaces.id",
                name=op.f("fk_secret_handouts_workspace_id_workspaces"),
                ondelete="CASCADE",
            ),
            nullable=False,
        ),
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("run_name", sa.String(255), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claim_id", sa.String(32), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("machine", sa.String(128), nullable=True),
        sa.Column("pool", sa.String(64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_secret_handouts")),
        sa.UniqueConstraint("run_id", "claim_id", name=op.f("uq_secret_handouts_run_id_claim_id")),
    )
    op.create_index(
        "ix_secret_handouts_workspace_created", "secret_handouts", ["workspace_id", "created_at", "id"]
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("secret_handouts")

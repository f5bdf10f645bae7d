"""runs: the environment that a run's rollouts run in, and what holds them back there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.add_column("runs", sa.Column("environment", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("isolation", sa.String(length=255), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("runs", "isolation")
    op.drop_column("runs", "environment")

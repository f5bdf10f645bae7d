"""known_workers.left_at: when a machine said that it asks for no more runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.add_column("known_workers", sa.Column("left_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("known_workers", "left_at")

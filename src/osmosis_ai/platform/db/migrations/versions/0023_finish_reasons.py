"""samples.finish_reasons: how many model calls of an attempt ended with each finish reason."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.add_column("samples", sa.Column("finish_reasons", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("samples", "finish_reasons")

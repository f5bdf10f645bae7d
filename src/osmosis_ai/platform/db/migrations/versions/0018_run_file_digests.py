"""run_files.sha256: what the bytes of a file must be when they are read again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.add_column("run_files", sa.Column("sha256", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("run_files", "sha256")

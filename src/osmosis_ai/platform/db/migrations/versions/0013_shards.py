"""run_files: where a file lies in a shard that many share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.add_column("run_files", sa.Column("shard_offset", sa.BigInteger(), nullable=True))
    op.add_column("run_files", sa.Column("shard_length", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("run_files", "shard_length")
    op.drop_column("run_files", "shard_offset")

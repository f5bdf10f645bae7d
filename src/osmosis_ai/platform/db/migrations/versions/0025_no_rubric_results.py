"""no rubric_results: results of `osmosis eval rubric` are local files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the table."""
    op.drop_table("rubric_results")


def downgrade() -> None:
    """Create an empty table, which the previous revision drops."""
    op.create_table("rubric_results", sa.Column("id", sa.String(40), primary_key=True))

"""log_lines: an index of the few lines that are marks on a training run's curves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_OF_MARKS = sa.text("step IN ('plan', 'warning')")


def upgrade() -> None:
    """Take this step."""
    op.create_index(
        "ix_log_lines_marks",
        "log_lines",
        ["subject_id", "step", "id"],
        sqlite_where=_OF_MARKS,
        postgresql_where=_OF_MARKS,
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_index("ix_log_lines_marks", "log_lines")

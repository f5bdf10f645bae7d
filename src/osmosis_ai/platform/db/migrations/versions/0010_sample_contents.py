"""samples: what was asked and answered, what the grader noted, an index for each order; runs: the journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SORTS = {"reward": "reward", "duration": "duration_ms", "tokens": "tokens", "cost": "cost_usd"}


def upgrade() -> None:
    """Take this step."""
    for name in ("input", "output", "notes"):
        op.add_column("samples", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("samples", sa.Column("parts", sa.JSON(), nullable=True))
    for sort, column in _SORTS.items():
        op.create_index(f"ix_samples_run_{sort}", "samples", ["run_id", column, "row_index", "run_index"])
    op.add_column("runs", sa.Column("journal_blob", sa.String(length=255), nullable=True))
    op.add_column("runs", sa.Column("samples_filled_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("runs", "samples_filled_at")
    op.drop_column("runs", "journal_blob")
    for sort in _SORTS:
        op.drop_index(f"ix_samples_run_{sort}", "samples")
    for name in ("parts", "notes", "output", "input"):
        op.drop_column("samples", name)

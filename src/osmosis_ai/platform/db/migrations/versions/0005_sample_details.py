"""samples: what pages and comparisons ask of each; runs: what graded them.

Every column may be NULL and none has a default, so both databases add them without rewriting a row. The indexes come
after: they are what takes time, in proportion to the samples there are. All of it is one transaction, as every step
is: a migration that is interrupted leaves the former schema, and begins anew at the next start.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

logger = logging.getLogger("osmosis_ai.platform.db.migrations")

_COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "boundary": sa.String(length=32),
    "category": sa.String(length=64),
    "error": sa.Text(),
    "prompt_tokens": sa.Integer(),
    "completion_tokens": sa.Integer(),
    "cost_usd": sa.Float(),
    "model_calls": sa.Integer(),
    "model_latency_ms": sa.Float(),
    "lost_attempts": sa.Integer(),
    "row_digest": sa.String(length=32),
}
_INDEXES = {
    "ix_samples_run_category": ["run_id", "category"],
    "ix_samples_run_row_digest": ["run_id", "row_digest"],
}


def upgrade() -> None:
    """Take this step."""
    op.add_column("runs", sa.Column("grader_digest", sa.String(length=64), nullable=True))
    for name, kind in _COLUMNS.items():
        op.add_column("samples", sa.Column(name, kind, nullable=True))
    samples = op.get_bind().scalar(sa.text("SELECT count(*) FROM samples"))
    for number, (name, columns) in enumerate(_INDEXES.items(), start=1):
        if samples:
            logger.info(
                "updating the database: index %d of %d over %d samples", number, len(_INDEXES), samples
            )
        op.create_index(name, "samples", columns, unique=False)


def downgrade() -> None:
    """Take it back."""
    for name in reversed(_INDEXES):
        op.drop_index(name, table_name="samples")
    for name in reversed(_COLUMNS):
        op.drop_column("samples", name)
    op.drop_column("runs", "grader_digest")

"""runs: the numbers they are sorted by; samples: their place in the journal, and their row in other runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis_ai.platform.db.run_numbers import numbers_of

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NUMBERS = ("reward", "pass_rate", "cost_usd", "duration_ms")
_SORTS = {"status": "status", "reward": "reward", "pass_rate": "pass_rate", "cost": "cost_usd"}
_BATCH = 500


def upgrade() -> None:
    """Take this step."""
    for name in _NUMBERS:
        op.add_column("runs", sa.Column(name, sa.Float(), nullable=True))
    _fill(op.get_bind())
    for sort, column in {**_SORTS, "duration": "duration_ms"}.items():
        op.create_index(f"ix_runs_workspace_{sort}", "runs", ["workspace_id", "kind", column, "id"])
    config = ["workspace_id", "kind", "rollout_name", "dataset_name", "created_at", "id"]
    op.create_index("ix_runs_workspace_config", "runs", config)
    op.add_column("samples", sa.Column("position", sa.BigInteger(), nullable=True))
    op.create_index("ix_samples_run_position", "samples", ["run_id", "position"])
    op.create_index("ix_samples_digest", "samples", ["row_digest", "run_id"])
    op.drop_index("ix_samples_run_row_digest", "samples")


def _fill(connection: sa.Connection) -> None:
    runs = sa.table(
        "runs",
        sa.column("id", sa.String()),
        sa.column("results", sa.JSON(none_as_null=True)),
        sa.column("metrics", sa.JSON(none_as_null=True)),
        sa.column("started_at", sa.DateTime(timezone=True)),
        sa.column("completed_at", sa.DateTime(timezone=True)),
        *(sa.column(name, sa.Float()) for name in _NUMBERS),
    )
    asked = sa.select(runs.c.id, runs.c.results, runs.c.metrics, runs.c.started_at, runs.c.completed_at)
    last = ""
    while True:
        found = connection.execute(asked.where(runs.c.id > last).order_by(runs.c.id).limit(_BATCH)).all()
        if not found:
            return
        for id, *known in found:
            values = numbers_of(*known)
            if any(value is not None for value in values.values()):
                connection.execute(sa.update(runs).where(runs.c.id == id).values(**values))
        last = found[-1].id


def downgrade() -> None:
    """Take it back."""
    op.create_index("ix_samples_run_row_digest", "samples", ["run_id", "row_digest"])
    op.drop_index("ix_samples_digest", "samples")
    op.drop_index("ix_samples_run_position", "samples")
    op.drop_column("samples", "position")
    op.drop_index("ix_runs_workspace_config", "runs")
    for sort in ("duration", *_SORTS):
        op.drop_index(f"ix_runs_workspace_{sort}", "runs")
    for name in _NUMBERS:
        op.drop_column("runs", name)

"""run_shards, runs.upload_bytes: shards that are merged while a run goes on, and how much its workers have sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "run_shards",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("merged_into", sa.String(length=255), nullable=True),
        sa.Column("merged_offset", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_run_shards")),
    )
    op.create_index("ix_run_shards_state_run", "run_shards", ["state", "run_id"])
    of_shards = sa.text("shard_offset IS NOT NULL")
    op.create_index(
        "ix_run_files_shard",
        "run_files",
        ["run_id", "blob_key"],
        sqlite_where=of_shards,
        postgresql_where=of_shards,
    )
    op.create_index(
        "ix_run_uploads_open",
        "run_uploads",
        ["run_id"],
        sqlite_where=sa.text("is_stored = 0"),
        postgresql_where=sa.text("NOT is_stored"),
    )
    op.add_column(
        "runs", sa.Column("upload_bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_column("runs", "upload_bytes")
    op.drop_index("ix_run_uploads_open", "run_uploads")
    op.drop_index("ix_run_files_shard", "run_files")
    op.drop_index("ix_run_shards_state_run", "run_shards")
    op.drop_table("run_shards")

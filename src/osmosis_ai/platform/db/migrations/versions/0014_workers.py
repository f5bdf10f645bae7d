"""runs: what workers and the platform agree on; journal segments, uploads of workers, commits as archives."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_OF_RUNS: dict[str, dict[str, Any]] = {
    "pool": {"type_": sa.String(64)},
    "claim_id": {"type_": sa.String(32)},
    "is_claim_answered": {"type_": sa.Boolean(), "nullable": False, "server_default": sa.false()},
    "journal_generation": {"type_": sa.Integer(), "nullable": False, "server_default": "0"},
    "journal_bytes": {"type_": sa.BigInteger(), "nullable": False, "server_default": "0"},
    "log_lines": {"type_": sa.Integer(), "nullable": False, "server_default": "0"},
    "fruitless": {"type_": sa.Integer(), "nullable": False, "server_default": "0"},
    "claimable_at": {"type_": sa.DateTime(timezone=True)},
    "training_state": {"type_": sa.JSON()},
}


def upgrade() -> None:
    """Take this step."""
    for name, described in _OF_RUNS.items():
        op.add_column("runs", sa.Column(name, **described))
    op.create_index("ix_runs_claim_id", "runs", ["claim_id"])
    op.create_table(
        "journal_segments",
        _run_id("journal_segments"),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("blob_key", sa.String(255), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "generation", "seq", name=op.f("pk_journal_segments")),
    )
    op.create_table(
        "run_uploads",
        _run_id("run_uploads"),
        sa.Column("name", sa.String(160), nullable=False),
        sa.Column("upload_id", sa.String(255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("is_stored", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_run_uploads")),
    )
    op.create_table(
        "source_archives",
        sa.Column(
            "workspace_id",
            sa.String(40),
            sa.ForeignKey("workspaces.id", ondelete="CASCADE", name=op.f("fk_source_archives_workspace_id")),
            nullable=False,
        ),
        sa.Column("commit_sha", sa.String(64), nullable=False),
        sa.Column("blob_key", sa.String(255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "commit_sha", name=op.f("pk_source_archives")),
    )


def downgrade() -> None:
    """Take it back."""
    for table in ("source_archives", "run_uploads", "journal_segments"):
        op.drop_table(table)
    op.drop_index("ix_runs_claim_id", "runs")
    for name in reversed(_OF_RUNS):
        op.drop_column("runs", name)


def _run_id(table: str) -> sa.Column[str]:
    key = sa.ForeignKey("runs.id", ondelete="CASCADE", name=op.f(f"fk_{table}_run_id"))
    return sa.Column("run_id", sa.String(40), key, nullable=False)

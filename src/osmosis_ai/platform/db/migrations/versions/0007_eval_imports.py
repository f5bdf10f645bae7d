"""eval_imports: uploads of evaluations that ran elsewhere; runs: where such a one came from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.create_table(
        "eval_imports",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace_id", sa.String(length=40), nullable=False),
        sa.Column("repository_id", sa.String(length=40), nullable=True),
        sa.Column("local_run_id", sa.String(length=32), nullable=False),
        sa.Column("manifest_digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("announced", sa.JSON(), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("creator_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_eval_imports_workspace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name=op.f("fk_eval_imports_repository_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name=op.f("fk_eval_imports_creator_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_eval_imports")),
        sa.UniqueConstraint(
            "workspace_id",
            "local_run_id",
            "manifest_digest",
            name=op.f("uq_eval_imports_workspace_id_local_run_id_manifest_digest"),
        ),
    )
    op.create_index("ix_eval_imports_expires_at", "eval_imports", ["expires_at"])
    op.create_table(
        "eval_import_files",
        sa.Column("import_id", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("blob_key", sa.String(length=255), nullable=False),
        sa.Column("upload", sa.JSON(), nullable=True),
        sa.Column("is_stored", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["import_id"],
            ["eval_imports.id"],
            name=op.f("fk_eval_import_files_import_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("import_id", "path", name=op.f("pk_eval_import_files")),
    )
    op.add_column("runs", sa.Column("imported", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("runs", "imported")
    op.drop_table("eval_import_files")
    op.drop_index("ix_eval_imports_expires_at", table_name="eval_imports")
    op.drop_table("eval_imports")

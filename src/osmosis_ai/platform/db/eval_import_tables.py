"""The uploads of evaluations that ran elsewhere; ``tables.py`` has them, too."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from osmosis_ai.platform.db.base import Base


class DbEvalImport(Base):
    """The upload of an evaluation that ran elsewhere."""

    __tablename__ = "eval_imports"
    __table_args__ = (UniqueConstraint("workspace_id", "local_run_id", "manifest_digest"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    repository_id: Mapped[str | None] = mapped_column(ForeignKey("repositories.id", ondelete="SET NULL"))
    local_run_id: Mapped[str] = mapped_column(String(32))
    manifest_digest: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    announced: Mapped[dict[str, Any]]
    run_id: Mapped[str] = mapped_column(String(40))
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class DbEvalImportFile(Base):
    """A file of such an upload, by its path in the run's directory; ``upload`` is the store's, while it is open."""

    __tablename__ = "eval_import_files"

    import_id: Mapped[str] = mapped_column(
        ForeignKey("eval_imports.id", ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(String(1024), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    blob_key: Mapped[str] = mapped_column(String(255))
    upload: Mapped[dict[str, Any] | None]
    is_stored: Mapped[bool] = mapped_column(default=False)

"""What the platform keeps of runs for their workers: journals as they come, uploads, commits; ``tables.py`` has them, too."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from osmosis_ai.platform.db.base import Base


class WorkedOn:
    """Adds to a run what its workers and the platform agree on."""

    pool: Mapped[str | None] = mapped_column(String(64))
    needs: Mapped[str | None] = mapped_column(Text)
    worker_id: Mapped[str | None] = mapped_column(String(40))
    claim_id: Mapped[str | None] = mapped_column(String(32))
    is_claim_answered: Mapped[bool] = mapped_column(default=False)
    journal_generation: Mapped[int] = mapped_column(Integer, default=0)
    journal_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    log_lines: Mapped[int] = mapped_column(Integer, default=0)
    fruitless: Mapped[int] = mapped_column(Integer, default=0)
    claimable_at: Mapped[datetime | None]
    training_state: Mapped[dict[str, Any] | None]
    upload_bytes: Mapped[int] = mapped_column(BigInteger, default=0)


class DbJournalSegment(Base):
    """A part of the journal of a run that goes on, as it was accepted; ``length`` bytes from ``offset`` on,
    unpacked."""

    __tablename__ = "journal_segments"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    offset: Mapped[int] = mapped_column(BigInteger)
    length: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    content: Mapped[bytes | None] = mapped_column(LargeBinary)
    blob_key: Mapped[str | None] = mapped_column(String(255))


class DbRunUpload(Base):
    """A blob that a worker sends, or has sent, for a run that goes on; ``name`` is its key's end, below the run's."""

    __tablename__ = "run_uploads"
    __table_args__ = (
        Index(
            "ix_run_uploads_open",
            "run_id",
            sqlite_where=text("is_stored = 0"),
            postgresql_where=text("NOT is_stored"),
        ),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    upload_id: Mapped[str] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    is_stored: Mapped[bool] = mapped_column(default=False)


class DbRunShard(Base):
    """A shard of a run, from when its files are told until the run has ended and nothing of it is left to be
    merged."""

    __tablename__ = "run_shards"
    __table_args__ = (Index("ix_run_shards_state_run", "state", "run_id"),)

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(40))
    state: Mapped[str] = mapped_column(String(16))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(String(64))
    merged_into: Mapped[str | None] = mapped_column(String(255))
    merged_offset: Mapped[int | None] = mapped_column(BigInteger)
    changed_at: Mapped[datetime]


class DbSourceArchive(Base):
    """A commit's files as one archive, for workers; made once."""

    __tablename__ = "source_archives"

    workspace_id: Mapped[str] = mapped_column(
        ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True
    )
    commit_sha: Mapped[str] = mapped_column(String(64), primary_key=True)
    blob_key: Mapped[str] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]

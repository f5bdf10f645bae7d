"""Who may work on runs: tokens of machines, tickets for one attempt, the machines that asked, and what they were handed; ``tables.py`` has them, too."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from osmosis_ai.platform.db.base import Base


class DbWorkerToken(Base):
    """What lets a machine take the runs of a pool, of some workspaces or (null) of all; only its SHA-256 is stored."""

    __tablename__ = "worker_tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str | None] = mapped_column(String(255))
    pool: Mapped[str] = mapped_column(String(64))
    workspace_ids: Mapped[list[Any] | None]
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class DbWorkerTicket(Base):
    """What lets one worker claim one attempt of a run; only its SHA-256 is stored."""

    __tablename__ = "worker_tickets"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    attempt: Mapped[int] = mapped_column(Integer)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    claim_id: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[datetime]
    running_at: Mapped[datetime | None]
    synced_at: Mapped[datetime | None]
    withdrawn_at: Mapped[datetime | None]
    refused_at: Mapped[datetime | None]


class DbKnownWorker(Base):
    """A machine that has asked for runs with a worker token, as it described itself; ``id`` is a digest of
    that."""

    __tablename__ = "known_workers"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("worker_tokens.id", ondelete="CASCADE"), index=True)
    pool: Mapped[str] = mapped_column(String(64))
    machine: Mapped[str | None] = mapped_column(String(128))
    labels: Mapped[list[Any]]
    cpus: Mapped[float | None] = mapped_column(Float)
    gpus: Mapped[float | None] = mapped_column(Float)
    memory_gb: Mapped[float | None] = mapped_column(Float)
    sandbox: Mapped[bool | None]
    sandbox_problem: Mapped[str | None] = mapped_column(Text)
    seen_at: Mapped[datetime]
    left_at: Mapped[datetime | None]


class DbSecretHandout(Base):
    """Secrets of a run that a machine was handed, by name; a row for each claim. No key of ``runs``: it outlives its run."""

    __tablename__ = "secret_handouts"
    __table_args__ = (
        UniqueConstraint("run_id", "claim_id"),
        Index("ix_secret_handouts_workspace_created", "workspace_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    run_id: Mapped[str] = mapped_column(String(40))
    run_name: Mapped[str] = mapped_column(String(255))
    attempt: Mapped[int] = mapped_column(Integer)
    claim_id: Mapped[str] = mapped_column(String(32))
    names: Mapped[list[Any]]
    machine: Mapped[str | None] = mapped_column(String(128))
    pool: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]

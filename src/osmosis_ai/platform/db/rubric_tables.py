"""The results of judging sessions (`osmosis eval rubric`) that were uploaded; ``tables.py`` has them, too."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from osmosis_ai.platform.db.base import Base


class DbRubricResult(Base):
    """A result: its document is the blob ``blob_key``, of ``size`` bytes, which never changes.

    The rest is what lists show, sort and filter by, as the document's head says it; NULL where it says nothing.
    Columns are called as those of runs, which stand in the same lists: ``model_path`` is the judge, ``reward`` the mean
    score, ``duration_ms`` how long was judged. ``config`` is the rubric's id. ``created_at``: when it was uploaded;
    ``started_at``: when it was written.
    """

    __tablename__ = "rubric_results"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        Index("ix_rubric_results_workspace", "workspace_id", "id"),
        Index("ix_rubric_results_workspace_created", "workspace_id", "created_at", "id"),
        Index("ix_rubric_results_workspace_status", "workspace_id", "status", "id"),
        Index("ix_rubric_results_workspace_reward", "workspace_id", "reward", "id"),
        Index("ix_rubric_results_workspace_cost", "workspace_id", "cost_usd", "id"),
        Index("ix_rubric_results_workspace_duration", "workspace_id", "duration_ms", "id"),
        Index("ix_rubric_results_workspace_config", "workspace_id", "config", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(255))
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str] = mapped_column(String(255))
    creator_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    status: Mapped[str] = mapped_column(String(16))
    model_path: Mapped[str | None] = mapped_column(String(255))
    dataset_name: Mapped[str | None] = mapped_column(String(255))
    config: Mapped[str | None] = mapped_column(String(255))
    headline: Mapped[dict[str, Any] | None]
    reward: Mapped[float | None] = mapped_column(Float)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    duration_ms: Mapped[float | None] = mapped_column(Float)

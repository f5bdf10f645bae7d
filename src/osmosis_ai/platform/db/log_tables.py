"""The rows of logs: what happened to a dataset or a run, line by line (``platform/logs.py``)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from osmosis_ai.platform.db.base import Base
from osmosis_ai.platform.log_lines import PLAN, WARNED

OF_MARKS = f"step IN ('{PLAN}', '{WARNED}')"
"""Which lines of a log are marks on a run's curves: a few among hundreds of thousands, which have an index of their own."""


class DbLogLine(Base):
    """A line of the log of a dataset or a run (``subject_id``), in the order of ``id``."""

    __tablename__ = "log_lines"
    __table_args__ = (
        Index("ix_log_lines_subject", "subject_id", "id"),
        Index(
            "ix_log_lines_marks",
            "subject_id",
            "step",
            "id",
            sqlite_where=text(OF_MARKS),
            postgresql_where=text(OF_MARKS),
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    subject_id: Mapped[str] = mapped_column(String(40))
    timestamp: Mapped[datetime]
    level: Mapped[str] = mapped_column(String(16))
    step: Mapped[str] = mapped_column(String(64))
    message: Mapped[str] = mapped_column(Text)
    details: Mapped[dict[str, Any] | None]

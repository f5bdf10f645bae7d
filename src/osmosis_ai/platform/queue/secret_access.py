"""The secret access log: which secrets each claim was answered with, by name.

It is kept when the run is deleted, and removed with its workspace. The run's log has the same entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyed_lists import newest_page
from osmosis_ai.platform.db.tables import DbSecretAccess
from osmosis_ai.viewer.source import ItemPage


class SecretAccessLog:
    """The entries of all workspaces, newest first."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def page(self, workspace_id: str, *, limit: int, cursor: str | None) -> ItemPage[DbSecretAccess]:
        """Return a page of a workspace's entries."""
        with self._db.session() as session:

            def entries(ids: Sequence[str]) -> dict[str, DbSecretAccess]:
                found = session.scalars(select(DbSecretAccess).where(DbSecretAccess.id.in_(ids)))
                return {each.id: each for each in found}

            return newest_page(session, DbSecretAccess, workspace_id, entries, limit=limit, cursor=cursor)

    def offset_page(
        self, workspace_id: str, *, limit: int, offset: int
    ) -> tuple[Sequence[DbSecretAccess], int]:
        """Return a page of a workspace's entries by offset, and their number."""
        mine = DbSecretAccess.workspace_id == workspace_id
        newest = DbSecretAccess.created_at.desc(), DbSecretAccess.id.desc()
        with self._db.session() as session:
            total = session.scalar(select(func.count()).select_from(DbSecretAccess).where(mine)) or 0
            rows = select(DbSecretAccess).where(mine).order_by(*newest).limit(limit).offset(offset)
            return list(session.scalars(rows)), total

"""Secret access log: the names of secrets given to each claim, written before the claim is answered.

It is kept when the run is deleted and removed with its workspace. The run's log has the same entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import func, select

from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyed_lists import newest_page
from osmosis_ai.platform.db.tables import DbRun, DbSecretHandout, new_id
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.viewer.source import ItemPage


class SecretHandouts:
    """The hand-outs of all workspaces."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def note(
        self,
        run_id: str,
        attempt: int,
        claim_id: str,
        names: Iterable[str],
        *,
        machine: str | None,
        pool: str | None,
    ) -> None:
        """Record the secrets about to be given to a claim; repeated claims are recorded once."""
        with self._db.transaction() as session:
            # Locked, so that the same claim, made twice at once, is noted once.
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is None:
                raise LeaseLostError("the run was deleted.")
            same = DbSecretHandout.run_id == run_id, DbSecretHandout.claim_id == claim_id
            if session.scalar(select(DbSecretHandout.id).where(*same)) is not None:
                return
            session.add(
                DbSecretHandout(
                    id=new_id("sho"),
                    workspace_id=run.workspace_id,
                    run_id=run_id,
                    run_name=run.name,
                    attempt=attempt,
                    claim_id=claim_id,
                    names=sorted(names),
                    machine=None if machine is None else storable(machine),
                    pool=pool,
                    created_at=self._clock.now(),
                )
            )

    def page(self, workspace_id: str, *, limit: int, cursor: str | None) -> ItemPage[DbSecretHandout]:
        """Return a workspace's from a place on, the newest first."""
        with self._db.session() as session:

            def entries(ids: Sequence[str]) -> dict[str, DbSecretHandout]:
                found = session.scalars(select(DbSecretHandout).where(DbSecretHandout.id.in_(ids)))
                return {each.id: each for each in found}

            return newest_page(session, DbSecretHandout, workspace_id, entries, limit=limit, cursor=cursor)

    def offset_page(
        self, workspace_id: str, *, limit: int, offset: int
    ) -> tuple[Sequence[DbSecretHandout], int]:
        """Return one page of a workspace's, the newest first, and how many there are in all."""
        theirs = DbSecretHandout.workspace_id == workspace_id
        newest = DbSecretHandout.created_at.desc(), DbSecretHandout.id.desc()
        with self._db.session() as session:
            total = session.scalar(select(func.count()).select_from(DbSecretHandout).where(theirs)) or 0
            rows = select(DbSecretHandout).where(theirs).order_by(*newest).limit(limit).offset(offset)
            return list(session.scalars(rows)), total

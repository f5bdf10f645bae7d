"""What has changed for workers that wait: found by two questions for all of them, however many they are."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import or_, select

from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk.claims import Claims, ClaimScope
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.lifecycle import OPEN

_MOST_QUESTIONS = 32
"""Maximum number of single-run queries per round, so that machines asking by run id do not delay others."""
_MOST_NAMED = 500
"""Ids in one question; the engines differ in how many they take."""


@dataclass(frozen=True, slots=True)
class Idler:
    """A worker that waits for a run."""

    offer: WorkerOffer
    scope: ClaimScope


class RunWatch:
    """Looks for what workers wait for."""

    def __init__(self, db: Database, leases: Leases, claims: Claims) -> None:
        self._db = db
        self._leases = leases
        self._claims = claims

    def changed(self, held: Mapping[str, str]) -> set[str]:
        """Return those of runs, each with its owner's token, that are to stop, or have another owner or none."""
        changed: set[str] = set()
        ids = list(held)
        with self._db.session() as session:
            for start in range(0, len(ids), _MOST_NAMED):
                some = ids[start : start + _MOST_NAMED]
                going_on = session.execute(
                    select(DbRun.id, DbRun.lease_token).where(
                        DbRun.id.in_(some),
                        DbRun.status == "running",
                        DbRun.stop_requested_at.is_(None),
                        DbRun.lease_expires_at.is_not(None),
                    )
                )
                changed |= {*some} - {run_id for run_id, token in going_on if held[run_id] == token}
        return changed

    def served(self, idlers: Sequence[Idler]) -> list[Idler]:
        """Return those that may find a run when they ask now: no more of them than there are runs, the first ones first."""
        if not idlers or not self._is_any_open():
            return []
        questions = list({(idler.scope, idler.offer.run_id): None for idler in idlers})
        if len(questions) > _MOST_QUESTIONS:
            questions = random.sample(
                questions, _MOST_QUESTIONS
            )  # the others have their turn at another look
        waiting = {question: self._claims.waiting(*question) for question in questions}
        found: list[Idler] = []
        promised: set[str] = set()
        for idler in idlers:
            offer, scope = idler.offer, idler.scope
            runs = waiting.get((scope, offer.run_id), ())
            free = next(
                (run for run in runs if run.id not in promised and self._claims.suits(run, offer, scope)),
                None,
            )
            if free is not None:
                promised.add(free.id)
                found.append(idler)
        return found

    def _is_any_open(self) -> bool:
        with self._db.session() as session:
            now = self._leases.now(session)
            is_free = or_(
                DbRun.status == "pending", DbRun.lease_expires_at.is_(None), DbRun.lease_expires_at <= now
            )
            return (
                session.scalar(select(DbRun.id).where(DbRun.status.in_(OPEN), is_free).limit(1)) is not None
            )

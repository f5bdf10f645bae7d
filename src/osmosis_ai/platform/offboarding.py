"""Disable and remove users.

Disabling is reversible: it ends sessions permanently and suspends the user's tokens, keys and password. Removing is
final: the account's tokens, memberships and personal secrets are deleted, and its open runs stop, because they may need
them. Datasets, runs, rubric results, adapters and secrets of a workspace remain. At least one administrator can always
sign in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.datasets.store import PendingUpload
from osmosis_ai.platform.db.base import rows_changed
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbMembership, DbRun, DbSecret, DbUser, DbWorkspace
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.queue.phases import RunPhases
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.workspaces import last_owner


@dataclass(frozen=True, slots=True)
class OffboardingReport:
    user: DbUser
    changed: bool = True
    sessions: int = 0
    stopped: Sequence[str] = ()
    still_open: Sequence[str] = ()
    personal_secrets: int = 0


class Offboarding:
    def __init__(self, db: Database, clock: Clock, accounts: AccountStore) -> None:
        self._db = db
        self._clock = clock
        self._accounts = accounts
        self._logs = LogStore(db, clock)
        self._queue = RunPhases(db, clock, self._logs)

    def disable(self, email: str, *, stop_runs: bool = False) -> OffboardingReport:
        """Disable a user; end their sessions, and on request stop their runs."""
        with self._db.transaction() as session:
            user = self._user_for_update(session, email)
            changed = user.disabled_at is None
            if changed:
                _require_another_admin(session, user)
                user.disabled_at = self._clock.now()
            ended = self._accounts.end_sessions(session, user.id)
            open_runs = _open_runs(session, user)
            stopped = self._stop(session, user, open_runs) if stop_runs else []
            still_open = [] if stop_runs else [run.name for run in open_runs]
        return OffboardingReport(user, changed, ended, stopped, still_open)

    def enable(self, email: str) -> OffboardingReport:
        """Enable a disabled user, with the tokens and keys they had."""
        with self._db.transaction() as session:
            user = self._user_for_update(session, email)
            changed = user.disabled_at is not None
            user.disabled_at = None
        return OffboardingReport(user, changed)

    def remove(self, email: str) -> OffboardingReport:
        """Delete a user, their tokens, memberships and personal secrets; their open runs stop."""
        with self._db.transaction() as session:
            user = self._user_for_update(session, email)
            if user.disabled_at is None:
                _require_another_admin(session, user)
            if owned := _owned_alone(session, user):
                raise last_owner(user.email, owned)
            ended = self._accounts.end_sessions(session, user.id, revoke_tokens=True)
            stopped = self._stop(session, user, _open_runs(session, user))
            personal = delete(DbSecret).where(DbSecret.scope == "user", DbSecret.owner_id == user.id)
            secrets = rows_changed(session, personal)
            self._forget_uploads(session, user)
            session.delete(user)
        return OffboardingReport(user, True, ended, stopped, (), secrets)

    def _user_for_update(self, session: Session, email: str) -> DbUser:
        # On an engine with several writers, two administrators must not disable each other.
        admins = select(DbUser.id).where(DbUser.is_admin).order_by(DbUser.id).with_for_update()
        session.execute(admins).all()
        user = session.get(DbUser, self._accounts.find_user(email).id, with_for_update=True)
        if user is None:
            raise NotFoundError(f"there is no user {email} any more.")
        return user

    def _stop(self, session: Session, user: DbUser, runs: Sequence[DbRun]) -> list[str]:
        for run in runs:
            if run.stop_requested_at is not None:
                continue
            line = LogLine(
                f"stopped because the account of its submitter {user.email} was disabled or removed",
                step="run",
            )
            self._logs.add(session, run.id, [line])
            self._queue.request_stop(session, run)
        return [run.name for run in runs]

    def _forget_uploads(self, session: Session, user: DbUser) -> None:
        """Abort the user's uploads; the store deletes unreferenced bytes later."""
        line = LogLine(
            f"aborted because the account of {user.email} was disabled or removed", "warning", "upload"
        )
        for row in session.scalars(select(DbDataset).where(DbDataset.pending_upload.is_not(None))):
            pending = PendingUpload.of(row)
            if pending is None or pending.creator_id != user.id:
                continue
            if pending.etags is not None:  # all bytes are here, so it becomes a dataset
                row.pending_upload = replace(pending, creator_id=None).to_json()
                continue
            row.pending_upload = None
            row.status = "uploaded" if row.blob_key is not None else "cancelled"
            self._logs.add(session, row.id, [line])


def _open_runs(session: Session, user: DbUser) -> Sequence[DbRun]:
    theirs = select(DbRun).where(DbRun.creator_id == user.id, DbRun.status.in_(OPEN))
    return session.scalars(theirs.order_by(DbRun.created_at).with_for_update()).all()


def _require_another_admin(session: Session, user: DbUser) -> None:
    others = select(DbUser.id).where(DbUser.is_admin, DbUser.disabled_at.is_(None), DbUser.id != user.id)
    if user.is_admin and session.scalar(others.limit(1)) is None:
        raise ConflictError(
            f"{user.email} is the last administrator of this platform.",
            hint="add another first: osmosis platform user add EMAIL --admin",
        )


def _owned_alone(session: Session, user: DbUser) -> list[str]:
    """Return the names of the workspaces whose only owner is this user."""
    owners = select(DbMembership.workspace_id).where(DbMembership.role == "owner")
    owned = owners.where(DbMembership.user_id == user.id)
    others = owners.where(DbMembership.user_id != user.id)
    left = select(DbWorkspace.name).where(DbWorkspace.id.in_(owned), DbWorkspace.id.not_in(others))
    return list(session.scalars(left.order_by(DbWorkspace.name)))

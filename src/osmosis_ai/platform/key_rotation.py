"""Rotate the key that seals secrets, safely while the platform runs.

A new key is created, then every value is sealed with it in small transactions, all values staying readable
throughout. An interrupted rotation loses nothing, and the next one finishes it. An old key is deleted when it was
replaced at least a day ago and seals nothing: until then a backup in progress, or a concurrent request, may
need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRolloutServer, DbRun, DbSecret
from osmosis_ai.platform.rollout_servers import server_context
from osmosis_ai.platform.runs.submit.submitter import secrets_context
from osmosis_ai.platform.secrets import secret_context
from osmosis_ai.platform.vault import Vault, VaultError, key_id_of

KEPT_FOR = timedelta(hours=24)
"""How long a replaced key is kept, and longer while it seals something."""

_BATCH = 100


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation has done."""

    resealed: int
    forgotten: int
    damaged: Sequence[str]


@dataclass(frozen=True)
class _SealedColumn:
    """Where sealed values lie: a table, its column, and what a value of one row is bound to."""

    id: InstrumentedAttribute[str]
    sealed: InstrumentedAttribute[bytes] | InstrumentedAttribute[bytes | None]
    context: Callable[[str], str]


_SEALED_COLUMNS = (
    _SealedColumn(DbSecret.id, DbSecret.sealed, secret_context),
    _SealedColumn(DbRun.id, DbRun.sealed_secrets, secrets_context),
    _SealedColumn(DbRolloutServer.id, DbRolloutServer.sealed, server_context),
)


def rotate_secret_key(db: Database, vault: Vault, clock: Clock) -> Rotation:
    """Seal everything with a new key."""
    with _exclusively(vault.key_file):
        vault.rotate(clock.now())
        resealed, damaged = 0, []
        for column in _SEALED_COLUMNS:
            for ids in _batches(db, column):
                done, failed = _reseal(db, vault, column, ids)
                resealed += done
                damaged += failed
        in_use = {key for column in _SEALED_COLUMNS for key in _keys_in_use(db, column)}
        forgotten = vault.forget_replaced_keys(before=clock.now() - KEPT_FOR, in_use=in_use)
        return Rotation(resealed, forgotten, damaged)


@contextmanager
def _exclusively(key_file: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(f"{key_file}.rotation.lock", timeout=0, mode=0o600):
            yield
    except Timeout:
        raise ConflictError(
            "another rotation of the secret key is under way; wait until it has ended."
        ) from None


def _batches(db: Database, column: _SealedColumn) -> Iterator[Sequence[str]]:
    after = ""
    while True:
        with db.session() as session:
            query = select(column.id).where(column.sealed.is_not(None), column.id > after)
            ids = session.scalars(query.order_by(column.id).limit(_BATCH)).all()
        if not ids:
            return
        yield ids
        after = ids[-1]


def _reseal(db: Database, vault: Vault, column: _SealedColumn, ids: Sequence[str]) -> tuple[int, list[str]]:
    done, damaged = 0, []
    table = column.id.class_
    with db.transaction() as session:
        for row in session.scalars(select(table).where(column.id.in_(ids)).with_for_update()):
            sealed, context = getattr(row, column.sealed.key), column.context(row.id)
            # A run may have ended meanwhile, and its values are gone.
            if sealed is None or not vault.is_stale(sealed):
                continue
            try:
                plaintext = vault.open(sealed, context=context)
            except VaultError:
                damaged.append(context)
                continue
            setattr(row, column.sealed.key, vault.seal(plaintext, context=context))
            done += 1
    return done, damaged


def _keys_in_use(db: Database, column: _SealedColumn) -> set[bytes]:
    with db.session() as session:
        rows = session.scalars(select(column.sealed).where(column.sealed.is_not(None)))
        return {key_id_of(sealed) for sealed in rows.yield_per(_BATCH) if sealed is not None}

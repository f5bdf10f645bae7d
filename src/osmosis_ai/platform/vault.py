"""Seal secrets for the database with keys in a separate file, and rotate the key.

A sealed value is bound to its row (its *context*) and does not open in another one. It contains its key's id,
so keys can be rotated: new values use the active key, and old values open with their own key until they are sealed
again. Neither the database nor the key file alone reveals a secret.

Layout of a sealed value: version (1 byte), key id (8), nonce (12), AES-256-GCM ciphertext and tag.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
from sqlalchemy import select

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import is_disk_full, write_json
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, StorageFullError
from osmosis_ai.platform.db.tables import DbRolloutServer, DbRun, DbSecret

KEPT_FOR = timedelta(hours=24)
"""How long a replaced key is kept, for backups and requests that started before; longer while it seals something."""

_VERSION = b"\x01"
_KEY_ID_BYTES = 8
_KEY_BYTES = 32
_NONCE_BYTES = 12
_HEADER_BYTES = len(_VERSION) + _KEY_ID_BYTES
_LOCK_TIMEOUT_S = 30.0
_BATCH = 100
_SEALED_COLUMNS: Sequence[Any] = (DbSecret.sealed, DbRun.sealed_secrets, DbRolloutServer.sealed)
_Identity = tuple[int, int, int]


class VaultError(OsmosisError):
    """The keys cannot be read, or do not open a value."""

    default_code = "INTERNAL"


@dataclass(frozen=True)
class _KeyRing:
    """The keys by id (in hex), the id of the active one, and when the others were replaced: the key file's content."""

    version: Literal[1]
    active: str
    keys: Mapping[str, bytes] = field(repr=False)
    replaced: Mapping[str, datetime]

    def with_new_key(self, now: datetime) -> _KeyRing:
        key_id = secrets.token_hex(_KEY_ID_BYTES)
        replaced = {id: self.replaced.get(id, now) for id in self.keys}
        return _KeyRing(1, key_id, {**self.keys, key_id: secrets.token_bytes(_KEY_BYTES)}, replaced)

    def without(self, key_ids: Collection[str]) -> _KeyRing:
        kept = {id: key for id, key in self.keys.items() if id not in key_ids}
        return _KeyRing(1, self.active, kept, {id: at for id, at in self.replaced.items() if id in kept})

    def is_complete(self) -> bool:
        lengths_fit = all(
            len(bytes.fromhex(id)) == _KEY_ID_BYTES and len(key) == _KEY_BYTES
            for id, key in self.keys.items()
        )
        return self.active in self.keys and lengths_fit


_EMPTY = _KeyRing(1, "", {}, {})


class Vault:
    def __init__(self, key_file: Path) -> None:
        self.key_file = key_file
        # Other processes may rotate and other threads read here, so the ring and the file's identity are set together.
        self._known: tuple[_KeyRing, _Identity | None] | None = None

    def __repr__(self) -> str:
        return f"Vault({str(self.key_file)!r})"

    def seal(self, plaintext: bytes, *, context: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        ring = self._keys()
        header, nonce = _VERSION + bytes.fromhex(ring.active), secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(ring.keys[ring.active]).encrypt(nonce, plaintext, header + context.encode())
        return header + nonce + sealed

    def open(self, sealed: bytes, *, context: str) -> bytes:
        """Return the plaintext of a value that was sealed with this context."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        header, rest = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:]
        if header[:1] != _VERSION or len(rest) < _NONCE_BYTES:
            raise VaultError(f"the sealed value of `{context}` is damaged: its format is unknown.")
        key_id = key_id_of(sealed).hex()
        if (key := self._keys().keys.get(key_id)) is None:
            raise VaultError(
                f"`{context}` was sealed with the key {key_id}, which is not in {self.key_file}.",
                hint="restore that file from the backup that belongs to this database, or set the secrets again",
            )
        try:
            return AESGCM(key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], header + context.encode())
        except InvalidTag:
            raise VaultError(
                f"the sealed value of `{context}` is damaged, or was made for another row.",
                hint="set the secret again, or restore the database from a backup",
            ) from None

    def is_stale(self, sealed: bytes) -> bool:
        """Return whether a value was sealed with a key that has been replaced since."""
        return key_id_of(sealed).hex() != self._keys().active

    def rotate(self, now: datetime) -> None:
        """Create a new active key, also for other processes; values sealed before stay readable."""
        self._update(lambda ring: ring.with_new_key(now))

    def forget_replaced_keys(self, *, before: datetime, in_use: Collection[bytes] = ()) -> int:
        """Delete keys that were replaced before a moment; what they sealed can never be opened again."""
        replaced, used = self._keys().replaced, {id.hex() for id in in_use}
        unneeded = {id for id, at in replaced.items() if at < before and id not in used}
        if unneeded:
            self._update(lambda ring: ring.without(unneeded))
        return len(unneeded)

    def _keys(self) -> _KeyRing:
        """Return the keys as the file has them now; create the first one if there is no file."""
        known = self._known
        if known is not None and known[1] == self._identity():
            return known[0]
        if (ring := self._read()) is not None:
            return ring
        if known is not None:
            return known[0]
        return self._update(lambda ring: ring if ring.keys else ring.with_new_key(SystemClock().now()))

    def _identity(self) -> _Identity | None:
        """Return what differs between versions of the key file, which is only replaced as a whole."""
        try:
            found = self.key_file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _update(self, change: Callable[[_KeyRing], _KeyRing]) -> _KeyRing:
        from filelock import FileLock, Timeout

        try:
            self.key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(f"{self.key_file}.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
                ring = change(self._read() or _EMPTY)
                write_json(self.key_file, msgspec.to_builtins(ring))
                self._known = (ring, self._identity())
                return ring
        except Timeout:
            raise VaultError(f"another process holds {self.key_file}.lock.") from None
        except OSError as error:
            if is_disk_full(error):
                raise StorageFullError(
                    "the platform's disk is full: nothing was saved.",
                    hint=f"make room for {self.key_file}, then try again",
                ) from error
            raise VaultError(f"the key file {self.key_file} cannot be written: {error.strerror}.") from error

    def _read(self) -> _KeyRing | None:
        try:
            if self.key_file.stat().st_mode & 0o007:
                raise VaultError(
                    f"every user of this machine can reach the keys in {self.key_file}.",
                    hint=f"chmod 600 {self.key_file}",
                )
            # Taken before the file is read: a file that is replaced in between is read again next time.
            identity = self._identity()
            ring = msgspec.json.decode(self.key_file.read_bytes(), type=_KeyRing)
            if not ring.is_complete():
                raise ValueError("not a key ring")
            self._known = (ring, identity)
            return ring
        except FileNotFoundError:
            return None
        except OSError as error:
            raise VaultError(f"the key file {self.key_file} cannot be read: {error.strerror}.") from error
        except (ValueError, msgspec.DecodeError):
            # Not chained: a decoder quotes what it read.
            raise VaultError(
                f"the key file {self.key_file} is damaged.", hint="restore it from a backup"
            ) from None


def open_vault(config: PlatformConfig) -> Vault:
    return Vault(config.keys_dir / "vault.json")


def sealing_context(row: DbSecret | DbRun | DbRolloutServer) -> str:
    return f"{row.__tablename__}:{row.id}"


def key_id_of(sealed: bytes) -> bytes:
    """Return the id of the key that a value was sealed with."""
    return sealed[len(_VERSION) : _HEADER_BYTES]


# -- rotation ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of a rotation; ``damaged`` are the contexts of values that could not be opened."""

    resealed: int
    forgotten: int
    damaged: Sequence[str]


def rotate_secret_key(db: Database, vault: Vault, clock: Clock) -> Rotation:
    """Create a new key and seal every value with it, while the platform may be running.

    Values stay readable throughout. An interrupted rotation loses nothing, and the next one finishes it.
    """
    with _exclusively(vault.key_file):
        vault.rotate(clock.now())
        resealed, damaged = 0, []
        for column in _SEALED_COLUMNS:
            ids = db.scalars(select(column.class_.id).where(column.is_not(None)))
            for start in range(0, len(ids), _BATCH):
                done, failed = _reseal(db, vault, column, ids[start : start + _BATCH])
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
        raise ConflictError("another rotation of the secret key is running; wait until it ends.") from None


def _reseal(db: Database, vault: Vault, column: Any, ids: Sequence[str]) -> tuple[int, list[str]]:
    done, damaged = 0, []
    table = column.class_
    with db.transaction() as session:
        for row in session.scalars(select(table).where(table.id.in_(ids)).with_for_update()):
            sealed, context = getattr(row, column.key), sealing_context(row)
            # A run may have ended meanwhile, and its values are gone.
            if sealed is None or not vault.is_stale(sealed):
                continue
            try:
                plaintext = vault.open(sealed, context=context)
            except VaultError:
                damaged.append(context)
                continue
            setattr(row, column.key, vault.seal(plaintext, context=context))
            done += 1
    return done, damaged


def _keys_in_use(db: Database, column: Any) -> set[bytes]:
    with db.session() as session:
        rows = session.scalars(select(column).where(column.is_not(None)))
        return {key_id_of(sealed) for sealed in rows.yield_per(_BATCH)}

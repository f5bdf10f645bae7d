"""Seal secrets for the database with keys in a separate file.

A sealed value is bound to its row (its *context*) and does not open in another one. It contains its key's id,
so keys can be rotated: new values use the active key, and old values open with their own key until they are sealed
again. A replaced key is kept for a day, for backups and requests that started before. Neither the database nor the key
file alone reveals a secret.

Layout of a sealed value: version (1 byte), key id (8), nonce (12), AES-256-GCM ciphertext and tag.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import is_disk_full, write_json
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import StorageFullError

_VERSION = b"\x01"
_KEY_ID_BYTES = 8
_KEY_BYTES = 32
_NONCE_BYTES = 12
_HEADER_BYTES = len(_VERSION) + _KEY_ID_BYTES
_LOCK_TIMEOUT_S = 30.0
_Identity = tuple[int, int, int]


class VaultError(OsmosisError):
    """The keys cannot be read, or do not open what they should."""

    default_code = "INTERNAL"


@dataclass(frozen=True)
class _KeyRing:
    """The keys by id, which of them seals, and since when the others do not."""

    active: bytes
    keys: Mapping[bytes, bytes] = field(repr=False)
    replaced: Mapping[bytes, datetime] = field(default_factory=dict)

    @classmethod
    def new(cls) -> _KeyRing:
        return cls(b"", {}).with_new_key()

    def with_new_key(self, now: datetime | None = None) -> _KeyRing:
        key_id = secrets.token_bytes(_KEY_ID_BYTES)
        replaced = {} if now is None else {id: self.replaced.get(id, now) for id in self.keys}
        return _KeyRing(key_id, {**self.keys, key_id: secrets.token_bytes(_KEY_BYTES)}, replaced)

    def without(self, key_ids: Collection[bytes]) -> _KeyRing:
        kept = {id: key for id, key in self.keys.items() if id not in key_ids}
        return _KeyRing(self.active, kept, {id: at for id, at in self.replaced.items() if id in kept})


class Vault:
    """Seals and opens values."""

    def __init__(self, key_file: Path) -> None:
        self.key_file = key_file
        # With which file it was read from: another process may rotate at any time, and other threads read here, too.
        # So the two are only ever set together.
        self._known: tuple[_KeyRing, _Identity | None] | None = None

    def __repr__(self) -> str:
        return f"Vault({str(self.key_file)!r})"

    def seal(self, plaintext: bytes, *, context: str) -> bytes:
        """Return ``plaintext`` encrypted under the active key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        ring = self._newest_keys()
        header, nonce = _VERSION + ring.active, secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(ring.keys[ring.active]).encrypt(nonce, plaintext, _associated_data(header, context))
        return header + nonce + sealed

    def open(self, sealed: bytes, *, context: str) -> bytes:
        """Return what :meth:`seal` was given."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        header, rest = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:]
        if header[:1] != _VERSION or len(rest) < _NONCE_BYTES:
            raise VaultError(
                f"the sealed value of `{context}` is damaged: it is not one this version writes."
            )
        key = self._key(header[1:], context)
        try:
            return AESGCM(key).decrypt(
                rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _associated_data(header, context)
            )
        except InvalidTag:
            raise VaultError(
                f"the sealed value of `{context}` is damaged, or was made for another row.",
                hint="set the secret again, or restore the database from a backup",
            ) from None

    def is_stale(self, sealed: bytes) -> bool:
        """Tell whether a value was sealed with a key that has been replaced since."""
        return key_id_of(sealed) != self._newest_keys().active

    def rotate(self, now: datetime) -> None:
        """Make a new key the active one, also for processes that run; values sealed before stay readable."""
        self._update(lambda ring: ring.with_new_key(now) if ring else _KeyRing.new())

    def forget_replaced_keys(self, *, before: datetime, in_use: Collection[bytes] = ()) -> int:
        """Forget keys for good: what one of them has sealed can never be opened again."""
        replaced = self._newest_keys().replaced
        unneeded = {id for id, at in replaced.items() if at < before and id not in in_use}
        if unneeded:
            self._update(lambda ring: ring.without(unneeded) if ring else _KeyRing.new())
        return len(unneeded)

    def _keys(self) -> _KeyRing:
        if self._known is not None:
            return self._known[0]
        return self._read() or self._update(lambda ring: ring or _KeyRing.new())

    def _newest_keys(self) -> _KeyRing:
        """Return the keys as the file has them now: what is sealed must never take one that was replaced."""
        if self._known is not None and self._identity() != self._known[1] and (ring := self._read()):
            return ring
        return self._keys()

    def _identity(self) -> _Identity | None:
        """Return what tells one version of the key file from the next; it is only ever replaced as a whole."""
        try:
            found = self.key_file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _key(self, key_id: bytes, context: str) -> bytes:
        ring = self._keys()
        if key_id not in ring.keys:
            # Another process may have rotated since this one read the file.
            ring = self._read() or ring
        try:
            return ring.keys[key_id]
        except KeyError:
            raise VaultError(
                f"`{context}` was sealed with the key {key_id.hex()}, which is not in {self.key_file}.",
                hint="restore that file from the backup that belongs to this database, or set the secrets again",
            ) from None

    def _update(self, change: Callable[[_KeyRing | None], _KeyRing]) -> _KeyRing:
        from filelock import FileLock, Timeout

        try:
            self.key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(f"{self.key_file}.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
                ring = change(self._read())
                write_json(self.key_file, _to_json(ring))
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
            # Noted before it is read: what is replaced in between is read once more next time.
            identity = self._identity()
            ring = _from_json(json.loads(self.key_file.read_bytes()))
            self._known = (ring, identity)
            return ring
        except FileNotFoundError:
            return None
        except OSError as error:
            raise VaultError(f"the key file {self.key_file} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not chained: a decoder quotes what it read.
            raise VaultError(
                f"the key file {self.key_file} is damaged.", hint="restore it from a backup"
            ) from None


def open_vault(config: PlatformConfig) -> Vault:
    """Return the vault that the platform of ``config`` seals its secrets with."""
    return Vault(config.keys_dir / "vault.json")


def key_id_of(sealed: bytes) -> bytes:
    """Return the id of the key that a value was sealed with."""
    return sealed[len(_VERSION) : _HEADER_BYTES]


def _associated_data(header: bytes, context: str) -> bytes:
    return header + context.encode("utf-8")


def _to_json(ring: _KeyRing) -> dict[str, object]:
    keys = {key_id.hex(): base64.b64encode(key).decode("ascii") for key_id, key in ring.keys.items()}
    replaced = {key_id.hex(): at.isoformat() for key_id, at in ring.replaced.items()}
    return {"version": 1, "active": ring.active.hex(), "keys": keys, "replaced": replaced}


def _from_json(document: dict[str, Any]) -> _KeyRing:
    """Raises ValueError, KeyError, TypeError or AttributeError when the document is not a key ring."""
    keys = {
        bytes.fromhex(key_id): base64.b64decode(key, validate=True)
        for key_id, key in document["keys"].items()
    }
    replaced = {
        bytes.fromhex(key_id): datetime.fromisoformat(at) for key_id, at in document["replaced"].items()
    }
    ring = _KeyRing(bytes.fromhex(document["active"]), keys, replaced)
    lengths_fit = all(len(key_id) == _KEY_ID_BYTES and len(key) == _KEY_BYTES for key_id, key in keys.items())
    if document["version"] != 1 or ring.active not in keys or not lengths_fit:
        raise ValueError("not a key ring")
    return ring

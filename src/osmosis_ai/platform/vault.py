"""What is secret lies in the database only sealed; the keys lie in a file outside of it.

A sealed value is bound to the row it was made for (its *context*): moved to another row, it does not open.
It names its key, so keys can be rotated: new values take the active key, and old values open with the key
they were sealed with until they are sealed anew. Neither half alone, a copy of the database or the key
file, gives a secret away.

Layout of a sealed value: version (1 byte), key id (8), nonce (12), AES-256-GCM ciphertext and tag.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_json

_VERSION = b"\x01"
_KEY_ID_BYTES = 8
_KEY_BYTES = 32
_NONCE_BYTES = 12
_HEADER_BYTES = len(_VERSION) + _KEY_ID_BYTES
_LOCK_TIMEOUT_S = 30.0


class VaultError(OsmosisError):
    """The keys cannot be read, or do not open what they should."""

    default_code = "INTERNAL"


@dataclass(frozen=True)
class _KeyRing:
    """The keys by id, and which of them seals."""

    active: bytes
    keys: Mapping[bytes, bytes] = field(repr=False)

    @classmethod
    def new(cls) -> _KeyRing:
        return cls(b"", {}).with_new_key()

    def with_new_key(self) -> _KeyRing:
        key_id = secrets.token_bytes(_KEY_ID_BYTES)
        return _KeyRing(key_id, {**self.keys, key_id: secrets.token_bytes(_KEY_BYTES)})


class Vault:
    """Seals and opens values.

    Args:
        key_file: where the keys are kept, readable by the platform's user alone; made on first use.
    """

    def __init__(self, key_file: Path) -> None:
        self.key_file = key_file
        self._ring: _KeyRing | None = None

    def __repr__(self) -> str:
        return f"Vault({str(self.key_file)!r})"

    def seal(self, plaintext: bytes, *, context: str) -> bytes:
        """Return ``plaintext`` encrypted under the active key.

        Args:
            context: where the sealed value will lie, ``<table>:<row id>``; needed again to open it.

        Raises:
            VaultError: when the key file can be neither read nor made.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        ring = self._keys()
        header, nonce = _VERSION + ring.active, secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(ring.keys[ring.active]).encrypt(nonce, plaintext, _bound_to(header, context))
        return header + nonce + sealed

    def open(self, sealed: bytes, *, context: str) -> bytes:
        """Return what :meth:`seal` was given.

        Raises:
            VaultError: when its key is not in the key file, or it was altered or made for another context.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        header, rest = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:]
        if header[:1] != _VERSION or len(rest) < _NONCE_BYTES:
            raise VaultError(
                f"the sealed value of `{context}` is damaged: it is not one this version writes."
            )
        key = self._key(header[1:], context)
        try:
            return AESGCM(key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bound_to(header, context))
        except InvalidTag:
            raise VaultError(
                f"the sealed value of `{context}` is damaged, or was made for another row.",
                hint="set the secret again, or restore the database from a backup",
            ) from None

    def is_stale(self, sealed: bytes) -> bool:
        """Tell whether a value was sealed with a key that has been replaced since."""
        return sealed[1:_HEADER_BYTES] != self._keys().active

    def rotate(self) -> None:
        """Make a new key the active one; values sealed before stay readable.

        Raises:
            VaultError: when the key file cannot be read or written.
        """
        self._ring = self._update(lambda ring: ring.with_new_key() if ring else _KeyRing.new())

    def forget_replaced_keys(self) -> None:
        """Keep the active key alone. Whatever is still sealed with another one can never be opened again.

        Raises:
            VaultError: when the key file cannot be read or written.
        """
        self._ring = self._update(
            lambda ring: (
                _KeyRing(ring.active, {ring.active: ring.keys[ring.active]}) if ring else _KeyRing.new()
            )
        )

    def _keys(self) -> _KeyRing:
        if self._ring is None:
            self._ring = self._read() or self._update(lambda ring: ring or _KeyRing.new())
        return self._ring

    def _key(self, key_id: bytes, context: str) -> bytes:
        if key_id not in self._keys().keys:
            # Another process may have rotated since this one read the file.
            self._ring = self._read() or self._ring
        try:
            return self._keys().keys[key_id]
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
                return ring
        except Timeout:
            raise VaultError(f"another process holds {self.key_file}.lock.") from None
        except OSError as error:
            raise VaultError(f"the key file {self.key_file} cannot be written: {error.strerror}.") from error

    def _read(self) -> _KeyRing | None:
        try:
            if self.key_file.stat().st_mode & 0o007:
                raise VaultError(
                    f"every user of this machine can reach the keys in {self.key_file}.",
                    hint=f"chmod 600 {self.key_file}",
                )
            return _from_json(json.loads(self.key_file.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise VaultError(f"the key file {self.key_file} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not chained: a decoder quotes what it read.
            raise VaultError(
                f"the key file {self.key_file} is damaged.", hint="restore it from a backup"
            ) from None


def _bound_to(header: bytes, context: str) -> bytes:
    return header + context.encode("utf-8")


def _to_json(ring: _KeyRing) -> dict[str, object]:
    keys = {key_id.hex(): base64.b64encode(key).decode("ascii") for key_id, key in ring.keys.items()}
    return {"version": 1, "active": ring.active.hex(), "keys": keys}


def _from_json(document: dict[str, Any]) -> _KeyRing:
    """Raises ValueError, KeyError, TypeError or AttributeError when the document is not a key ring."""
    keys = {
        bytes.fromhex(key_id): base64.b64decode(key, validate=True)
        for key_id, key in document["keys"].items()
    }
    ring = _KeyRing(bytes.fromhex(document["active"]), keys)
    lengths_fit = all(len(key_id) == _KEY_ID_BYTES and len(key) == _KEY_BYTES for key_id, key in keys.items())
    if document["version"] != 1 or ring.active not in keys or not lengths_fit:
        raise ValueError("not a key ring")
    return ring

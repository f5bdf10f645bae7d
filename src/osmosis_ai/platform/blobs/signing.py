"""Signed URLs that permit exactly one operation until they expire.

The permission (method, blob or part, exact size, file name, expiry) is in the URL itself, with an HMAC
of a platform key. URLs are not stored, so every process with the key can verify them. Changing the key revokes
all URLs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.platform.blobs.store import UrlRefused
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig

BLOBS_PATH = "/blobs"
OCTET_STREAM = "application/octet-stream"
"""What every blob is served as: no browser makes a page of it."""
_KEY_BYTES = 32
# What is signed begins with this, so that the key can never be made to sign anything else.
_PURPOSE = b"osmosis blob url 1\n"
_MAX_TOKEN_CHARS = 4096


@dataclass(frozen=True, slots=True)
class DownloadGrant:
    """May fetch the blob ``key``, or the file ``path`` of the run ``key``, to be saved as ``filename``."""

    key: str
    filename: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class PartGrant:
    """May send exactly ``size`` bytes as one part of an upload."""

    upload_id: str
    part_number: int
    size: int


@dataclass(frozen=True)
class UrlSigner:
    """Makes and checks signed URLs."""

    key: bytes = field(repr=False)
    base_url: str
    clock: Clock

    def sign(self, grant: DownloadGrant | PartGrant, *, ttl: timedelta) -> str:
        """Return the URL that grants ``grant`` until ``ttl`` has passed."""
        expires_at = int((self.clock.now() + ttl).timestamp())
        if isinstance(grant, DownloadGrant):
            claims: list[Any] = [
                "GET",
                expires_at,
                grant.key,
                grant.filename,
                *([grant.path] if grant.path else []),
            ]
        else:
            claims = ["PUT", expires_at, grant.upload_id, grant.part_number, grant.size]
        payload = _encode(json.dumps(claims, ensure_ascii=False, separators=(",", ":")).encode())
        return f"{self.base_url}{BLOBS_PATH}/{payload}.{self._mac(payload)}"

    def download(self, token: str) -> DownloadGrant:
        """Return what the last segment of a URL allows to fetch."""
        return DownloadGrant(*self._claims(token, "GET"))

    def part(self, token: str) -> PartGrant:
        """Return what the last segment of a URL allows to send."""
        upload_id, part_number, size = self._claims(token, "PUT")
        return PartGrant(upload_id, part_number, size)

    def _claims(self, token: str, method: str) -> list[Any]:
        payload, _, mac = token.partition(".")
        if not token.isascii() or len(token) > _MAX_TOKEN_CHARS:
            raise _altered_url()
        if not hmac.compare_digest(mac, self._mac(payload)):
            raise _altered_url()
        # From here on the platform itself wrote it.
        allowed, expires_at, *claims = cast(list[Any], json.loads(_decode(payload)))
        if allowed != method:
            raise UrlRefused(f"this URL allows {allowed}, not {method}.", expired=False)
        if self.clock.now().timestamp() >= expires_at:
            raise UrlRefused("this URL has expired; run the command again for a new one.", expired=True)
        return claims

    def _mac(self, payload: str) -> str:
        return _encode(hmac.new(self.key, _PURPOSE + payload.encode("ascii"), hashlib.sha256).digest())


def url_signer(config: PlatformConfig, clock: Clock) -> UrlSigner:
    """Return what makes and checks the URLs of the platform of ``config``."""
    return UrlSigner(load_signing_key(config.keys_dir / "blob-urls.key"), config.base_url, clock)


def load_signing_key(path: Path) -> bytes:
    """Return the key kept in ``path``; made on first use, readable by the platform's user alone."""
    try:
        if not path.exists():
            _create_key(path)
        if path.stat().st_mode & 0o007:
            raise OsmosisError(
                f"every user of this machine can reach the key in {path}.", hint=f"chmod 600 {path}"
            )
        key = bytes.fromhex(path.read_text("ascii").strip())
    except OSError as error:
        raise OsmosisError(f"the signing key {path} cannot be used: {error.strerror}.") from error
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise OsmosisError(
            f"the signing key {path} is damaged.",
            hint="remove the file; a new key is made, and URLs given out before stop working",
        )
    return key


def _create_key(path: Path) -> None:
    """Write a new key, unless another process is faster."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    write_atomic(draft, f"{secrets.token_hex(_KEY_BYTES)}\n")
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def content_disposition(filename: str) -> str:
    """Return a `Content-Disposition` (RFC 6266): the exact name, and one that any client can read."""
    plain = re.sub(r'[^ -~]|["\\\\%]', "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def _altered_url() -> UrlRefused:
    return UrlRefused("this URL is not one that the platform gave out.", expired=False)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

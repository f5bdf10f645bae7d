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
import re
import secrets
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_new
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.refusals import ApiError

BLOBS_PATH = "/blobs"
OCTET_STREAM = "application/octet-stream"
"""The type that every blob is served as, so that no browser shows it as a page."""
_KEY_BYTES = 32
# The key never signs anything that does not begin with this.
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
    key: bytes = field(repr=False)
    base_url: str
    clock: Clock

    def sign(self, grant: DownloadGrant | PartGrant, *, ttl: timedelta) -> str:
        """Return the URL that grants ``grant`` until ``ttl`` has passed."""
        method = "GET" if isinstance(grant, DownloadGrant) else "PUT"
        claims = [method, int((self.clock.now() + ttl).timestamp()), *astuple(grant)]
        payload = _encode(json.dumps(claims, ensure_ascii=False, separators=(",", ":")).encode())
        return f"{self.base_url}{BLOBS_PATH}/{payload}.{self._mac(payload)}"

    def download(self, token: str) -> DownloadGrant:
        """Return what the last segment of a URL permits to fetch."""
        return DownloadGrant(*self._claims(token, "GET"))

    def part(self, token: str) -> PartGrant:
        """Return what the last segment of a URL permits to send."""
        return PartGrant(*self._claims(token, "PUT"))

    def _claims(self, token: str, method: str) -> list[Any]:
        payload, _, mac = token.partition(".")
        is_possible = token.isascii() and len(token) <= _MAX_TOKEN_CHARS
        if not is_possible or not hmac.compare_digest(mac, self._mac(payload)):
            message = "this URL was altered, or its signing key was replaced."
            raise transfer_refused(403, "BLOB_URL_INVALID", message)
        # From here on the platform itself wrote it.
        padded = payload + "=" * (-len(payload) % 4)
        allowed, expires_at, *claims = cast(list[Any], json.loads(base64.urlsafe_b64decode(padded)))
        if allowed != method:
            raise transfer_refused(403, "BLOB_URL_INVALID", f"this URL allows {allowed}, not {method}.")
        if self.clock.now().timestamp() >= expires_at:
            message = "this URL has expired; run the command again for a new one."
            raise transfer_refused(403, "BLOB_URL_EXPIRED", message)
        return claims

    def _mac(self, payload: str) -> str:
        return _encode(hmac.new(self.key, _PURPOSE + payload.encode("ascii"), hashlib.sha256).digest())


def transfer_refused(status: int, reason: str, message: str) -> ApiError:
    """Return the refusal of a transfer: the client may still be sending, and the rest is not read."""
    return ApiError(status, reason, message, headers={"Connection": "close"})


def url_signer(config: PlatformConfig, clock: Clock) -> UrlSigner:
    return UrlSigner(load_signing_key(config.keys_dir / "blob-urls.key"), config.base_url, clock)


def load_signing_key(path: Path) -> bytes:
    """Return the key in ``path``, which is created on first use and readable by the platform's user alone."""
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Another process may be faster.
            with suppress(FileExistsError):
                write_new(path, f"{secrets.token_hex(_KEY_BYTES)}\n")
        if path.stat().st_mode & 0o007:
            raise OsmosisError(
                f"the key in {path} is accessible to every user of this machine.", hint=f"chmod 600 {path}"
            )
        key = bytes.fromhex(path.read_text("ascii").strip())
    except OSError as error:
        raise OsmosisError(f"the signing key {path} cannot be used: {error.strerror}.") from error
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise OsmosisError(
            f"the signing key {path} is damaged.",
            hint="remove the file; a new key is created, and existing URLs stop working",
        )
    return key


def content_disposition(filename: str) -> str:
    """Return a `Content-Disposition` (RFC 6266): the exact name, and one that any client can read."""
    plain = re.sub(r'[^ -~]|["\\\\%]', "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

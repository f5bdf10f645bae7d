"""CSRF protection by double submit of a secret, masked differently on every page."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from osmosis_ai.platform.services import PlatformServices

MAX_TOKEN_CHARS = 128
"""Of the field ``csrf`` of a form."""
STALE_FORM = "This form was open for too long or did not come from this page. Please try again."

_COOKIE = "osmosis_csrf"
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_BYTES = 32


def csrf_token(request: Request) -> str:
    """Return the token of a page's forms; another one each time."""
    secret = _bytes(_secret_of(request))
    mask = secrets.token_bytes(_BYTES)
    return base64.urlsafe_b64encode(mask + _xor(mask, secret)).decode().rstrip("=")


def keep_secret(request: Request, reply: Response) -> None:
    """Have the browser keep what the page's tokens were made from; nothing for a page without any."""
    secret = getattr(request.state, "csrf_secret", None)
    if secret is None or secret == request.cookies.get(_COOKIE):
        return
    services: PlatformServices = request.app.state.services
    encrypted = services.config.base_url.startswith("https://")
    reply.set_cookie(_COOKIE, secret, httponly=True, samesite="strict", secure=encrypted)


def is_own_form(request: Request, token: str) -> bool:
    """Tell whether a form was sent from a page of ours: by the token in it, and by what the browser says."""
    cookie = request.cookies.get(_COOKIE, "")
    if not _SECRET.fullmatch(cookie) or _says_it_came_from_elsewhere(request):
        return False
    try:
        raw = _bytes(token)
    except (ValueError, binascii.Error):
        return False
    is_whole = len(raw) == 2 * _BYTES
    return is_whole and secrets.compare_digest(_xor(raw[:_BYTES], raw[_BYTES:]), _bytes(cookie))


def _secret_of(request: Request) -> str:
    """Return the browser's secret, or one for it to keep."""
    known: str | None = getattr(request.state, "csrf_secret", None)
    if known is None:
        cookie = request.cookies.get(_COOKIE, "")
        known = cookie if _SECRET.fullmatch(cookie) else secrets.token_urlsafe(_BYTES)
        request.state.csrf_secret = known
    return known


def _says_it_came_from_elsewhere(request: Request) -> bool:
    """Tell what the token cannot: what listens on another port of this host reads and sets the same cookies."""
    site, origin = (request.headers.get(name, "") for name in ("sec-fetch-site", "origin"))
    if site:
        return site not in ("same-origin", "none")
    # Our pages tell nobody where they are (`no-referrer`), and so their forms come from "null".
    if origin in ("", "null"):
        return False
    services: PlatformServices = request.app.state.services
    own = {request.headers.get("host", ""), urlsplit(services.config.base_url).netloc}
    return origin.partition("://")[2] not in own


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))

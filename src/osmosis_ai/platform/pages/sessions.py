"""Browser sessions and the protection of forms.

A session is a token in a cookie, which is valid for pages only and for half a day. Forms are protected against CSRF by
double submit of a secret that is masked differently on every page.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Form, Request
from fastapi.responses import RedirectResponse, Response

from osmosis_ai.platform.accounts import Principal, TokenRejected
from osmosis_ai.platform.db.tables import DbUser, DbWorkspace
from osmosis_ai.platform.http.addresses import is_encrypted, root_path
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import Role

SESSION_TTL = timedelta(hours=12)
SESSION_COOKIE = "osmosis_session"
Csrf = Annotated[str, Form(max_length=128)]
"""The form field with the CSRF token."""
STALE_FORM = "This form has expired or was not sent from this page. Try again."
_CSRF_COOKIE = "osmosis_csrf"
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_SECRET_BYTES = 32


# -- sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visitor:
    """A signed-in user and their workspaces."""

    principal: Principal
    workspaces: Sequence[tuple[DbWorkspace, Role]]

    @property
    def user(self) -> DbUser:
        return self.principal.user

    def workspace(self, name: str) -> tuple[DbWorkspace, Role] | None:
        """Return the visitor's workspace with this name or id."""
        for workspace, role in self.workspaces:
            if name.lower() == workspace.name.lower() or name == workspace.id:
                return workspace, role
        return None


def _visitor(request: Request, services: Services) -> Visitor:
    """Return who has signed in (a dependency)."""
    cookie = request.cookies.get(SESSION_COOKIE, "")
    try:
        principal = services.accounts.authenticate(cookie, kinds=("web",))
    except TokenRejected:
        accept = request.headers.get("accept", "*/*")
        if "text/html" not in accept:
            # The script of a page accepts anything too, but has a session.
            if cookie:
                raise ApiError(401, "SIGN_IN_REQUIRED", "your session has ended: sign in again.") from None
            # Other programs must not get a page.
            if accept != "*/*" or request.url.path.startswith("/api/"):
                raise page_not_found(request) from None
        wanted = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        login = f"{root_path(services)}/login?{urlencode({'next': wanted})}"
        raise ApiError(303, "SIGN_IN_REQUIRED", "sign in first.", headers={"Location": login}) from None
    found = services.workspaces.of_user(principal.user.id)
    return Visitor(principal, [(workspace, role) for workspace, role, _ in found])


SignedIn = Annotated[Visitor, Depends(_visitor)]
"""The signed-in user; others are redirected to the sign-in page."""


def page_not_found(request: Request) -> ApiError:
    """Return the reply to a program that requests a page."""
    return ApiError(404, "ROUTE_NOT_FOUND", f"no route matches {request.method} {request.url.path}.")


def begin_session(services: PlatformServices, user: DbUser, wanted: str) -> Response:
    """Sign a user in, and redirect to the page they wanted."""
    _, plain = services.accounts.create_token(user.id, "web", name="browser", ttl=SESSION_TTL)
    reply = RedirectResponse(root_path(services) + _own_path(wanted), status_code=303)
    reply.set_cookie(
        SESSION_COOKIE,
        plain,
        max_age=int(SESSION_TTL.total_seconds()),
        httponly=True,
        # Not strict: links in mails and chats must work.
        samesite="lax",
        secure=is_encrypted(services),
    )
    return reply


def end_session(services: PlatformServices, visitor: Visitor) -> Response:
    """Sign a user out."""
    services.accounts.revoke_token(visitor.principal.token.id)
    reply = RedirectResponse(f"{root_path(services)}/login", status_code=303)
    reply.delete_cookie(SESSION_COOKIE)
    return reply


def _own_path(wanted: str) -> str:
    """Return a path of this platform: the wanted one, or the first page for anything else."""
    is_own = wanted.startswith("/") and not wanted.startswith("//") and "\\" not in wanted
    return wanted if is_own and wanted.isprintable() and wanted.isascii() else "/"


# -- forms -------------------------------------------------------------------------------------------


def csrf_token(request: Request) -> str:
    """Return a token for the forms of a page, different each time."""
    secret: str | None = getattr(request.state, "csrf_secret", None)
    if secret is None:
        cookie = request.cookies.get(_CSRF_COOKIE, "")
        secret = cookie if _SECRET.fullmatch(cookie) else secrets.token_urlsafe(_SECRET_BYTES)
        request.state.csrf_secret = secret
    mask = secrets.token_bytes(_SECRET_BYTES)
    return base64.urlsafe_b64encode(mask + _xor(mask, _decoded(secret))).decode().rstrip("=")


def set_csrf_cookie(request: Request, reply: Response) -> None:
    """Store the secret of a page's tokens in the browser, if the page has any."""
    secret = getattr(request.state, "csrf_secret", None)
    if secret is not None and secret != request.cookies.get(_CSRF_COOKIE):
        secure = is_encrypted(request.app.state.services)
        reply.set_cookie(_CSRF_COOKIE, secret, httponly=True, samesite="strict", secure=secure)


def is_own_form(request: Request, token: str) -> bool:
    """Whether a form was sent from one of our pages, judged by its token and by the browser's headers."""
    cookie = request.cookies.get(_CSRF_COOKIE, "")
    if not _SECRET.fullmatch(cookie) or _is_cross_site(request):
        return False
    try:
        raw = _decoded(token)
    except (ValueError, binascii.Error):
        return False
    mask, masked = raw[:_SECRET_BYTES], raw[_SECRET_BYTES:]
    return len(masked) == len(mask) and secrets.compare_digest(_xor(mask, masked), _decoded(cookie))


def _is_cross_site(request: Request) -> bool:
    # Servers on other ports of this host share our cookies, so the token alone proves too little.
    site, origin = (request.headers.get(name, "") for name in ("sec-fetch-site", "origin"))
    if site:
        return site not in ("same-origin", "none")
    # Our pages send no referrer, so their forms come from "null".
    if origin in ("", "null"):
        return False
    services: PlatformServices = request.app.state.services
    own = {request.headers.get("host", ""), urlsplit(services.config.base_url).netloc}
    return origin.partition("://")[2] not in own


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))

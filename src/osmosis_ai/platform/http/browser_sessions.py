"""Who looks at a page: the token in a cookie that signing in sets, good for pages alone and for half a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response

from osmosis_ai.platform.accounts import Principal, TokenRejected
from osmosis_ai.platform.db.tables import DbUser, DbWorkspace
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.page_shell import is_encrypted, root_path
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import Role

SESSION_TTL = timedelta(hours=12)
SESSION_COOKIE = "osmosis_session"
_SIGN_IN = "/login"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who has signed in, and the workspaces they are a member of."""

    principal: Principal
    workspaces: Sequence[tuple[DbWorkspace, Role]]

    @property
    def user(self) -> DbUser:
        """Who it is."""
        return self.principal.user

    def workspace(self, name: str) -> DbWorkspace | None:
        """Return the workspace of this name or id; None when there is none that this visitor may see."""
        for workspace, _ in self.workspaces:
            if name.lower() == workspace.name.lower() or name == workspace.id:
                return workspace
        return None


def visitor_of(request: Request, services: Services) -> Visitor:
    """Return who has signed in (a dependency)."""
    cookie = request.cookies.get(SESSION_COOKIE, "")
    try:
        principal = services.accounts.authenticate(cookie, kinds=("web",))
    except TokenRejected:
        # What is no page must not look like one: most of what happens upon these paths is no browser.
        if "text/html" not in request.headers.get("accept", ""):
            raise _script_refused(request, cookie) from None
        wanted = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        raise ApiError(
            303,
            "SIGN_IN_REQUIRED",
            "sign in first.",
            headers={"Location": f"{root_path(services)}{_SIGN_IN}?{urlencode({'next': wanted})}"},
        ) from None
    found = services.workspaces.of_user(principal.user.id)
    return Visitor(principal, [(workspace, role) for workspace, role, _ in found])


SignedIn = Annotated[Visitor, Depends(visitor_of)]
"""Who has signed in; everybody else is sent to do so."""


def _script_refused(request: Request, cookie: str) -> ApiError:
    if not cookie:
        return page_not_found(request)
    return ApiError(401, "SIGN_IN_REQUIRED", "your session has ended: sign in again.")


def page_not_found(request: Request) -> ApiError:
    """Return what a program gets that asks for a page."""
    return ApiError(404, "ROUTE_NOT_FOUND", f"there is nothing at {request.method} {request.url.path}.")


def begin_session(services: PlatformServices, user: DbUser, wanted: str) -> Response:
    """Sign somebody in, and send their browser to where it wanted to go."""
    _, plain = services.accounts.create_token(user.id, "web", name="browser", ttl=SESSION_TTL)
    reply = RedirectResponse(root_path(services) + safe_redirect_path(wanted), status_code=303)
    reply.set_cookie(
        SESSION_COOKIE,
        plain,
        max_age=int(SESSION_TTL.total_seconds()),
        httponly=True,
        # Not strict: a link in a mail or a chat must lead to its page.
        samesite="lax",
        secure=is_encrypted(services),
    )
    return reply


def end_session(services: PlatformServices, visitor: Visitor) -> Response:
    """Sign somebody out."""
    services.accounts.revoke_token(visitor.principal.token.id)
    reply = RedirectResponse(f"{root_path(services)}{_SIGN_IN}", status_code=303)
    reply.delete_cookie(SESSION_COOKIE)
    return reply


def safe_redirect_path(wanted: str) -> str:
    """Return ``wanted`` if it is a path of this platform, else the first page: no link leads elsewhere."""
    is_own = wanted.startswith("/") and not wanted.startswith("//") and "\\" not in wanted
    return wanted if is_own and wanted.isprintable() and wanted.isascii() else "/"

"""Signing in and out in a browser, and `/cli-auth`, where clients of the 0.2 line are let in.

Such a client listens on a port of the browser's own machine and waits there for its token; the token goes
nowhere else, and is good for the one workspace that was chosen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from osmosis_ai.platform.db.tables import DbWorkspace
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.browser_sessions import SignedIn, Visitor, begin_session, end_session
from osmosis_ai.platform.http.page_shell import STALE_FORM, is_own_form, page_router, render_page, source_of
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import TooManyAttempts

router = page_router()

# Where clients of the 0.2 line listen.
_PORT = re.compile(r"897[6-9]|898[0-5]")
_STATE = re.compile(r"[A-Za-z0-9._~-]{1,256}")

Csrf = Annotated[str, Form(max_length=64)]


@router.get("/login", response_class=HTMLResponse, include_in_schema=False)
def login_page(request: Request, services: Services, next: str = "/") -> Response:
    """Ask who it is."""
    return render_page(request, services, "login.html", wanted=next, email="")


@router.post("/login", response_class=HTMLResponse, include_in_schema=False)
def login(
    request: Request,
    services: Services,
    email: Annotated[str, Form(max_length=320)] = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    wanted: Annotated[str, Form(alias="next", max_length=4096)] = "/",
    csrf: Csrf = "",
) -> Response:
    """Sign somebody in and send them on."""
    status, headers = 403, {}
    problem = "This e-mail address and password do not belong together."
    if not is_own_form(request, csrf):
        problem = STALE_FORM
    else:
        try:
            user = services.sign_ins.check(email, password, source=source_of(request))
        except TooManyAttempts as error:
            status, problem = 429, error.message[:1].upper() + error.message[1:]
            headers = {"Retry-After": str(int(error.wait_s) + 1)}
        else:
            if user is not None:
                return begin_session(services, user, wanted)
    reply = render_page(
        request, services, "login.html", status=status, problem=problem, wanted=wanted, email=email
    )
    reply.headers.update(headers)
    return reply


@router.post("/logout", response_class=HTMLResponse, include_in_schema=False)
def logout(request: Request, services: Services, visitor: SignedIn, csrf: Csrf = "") -> Response:
    """Sign somebody out."""
    if not is_own_form(request, csrf):
        return render_page(
            request, services, "message.html", status=403, title="Sign out", problem=STALE_FORM
        )
    return end_session(services, visitor)


@dataclass(frozen=True)
class _Waiting:
    """A client that waits for its token on a port of the browser's machine."""

    state: str
    port: int
    device_name: str

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.port}"

    def answer(self, **values: str) -> Response:
        query = urlencode({**values, "state": self.state})
        return RedirectResponse(f"{self.origin}/callback?{query}", status_code=303)


@router.get("/cli-auth", response_class=HTMLResponse, include_in_schema=False)
def cli_auth_page(
    request: Request,
    services: Services,
    visitor: SignedIn,
    state: str = "",
    port: str = "",
    device_name: str = "",
    redirect_uri: str = "",
) -> Response:
    """Show which device asks, and let its owner choose the workspace."""
    waiting = _waiting(state, port, device_name, redirect_uri)
    if waiting is None:
        return _not_a_client(request, services)
    return _consent(request, services, visitor, waiting)


@router.post("/cli-auth", response_class=HTMLResponse, include_in_schema=False)
def cli_auth(
    request: Request,
    services: Services,
    visitor: SignedIn,
    state: Annotated[str, Form()],
    port: Annotated[str, Form()],
    decision: Annotated[Literal["approve", "deny"], Form()],
    device_name: Annotated[str, Form()] = "",
    workspace: Annotated[str, Form()] = "",
    csrf: Csrf = "",
) -> Response:
    """Send the client its token, or that it gets none."""
    waiting = _waiting(state, port, device_name, "")
    if waiting is None:
        return _not_a_client(request, services)
    if not is_own_form(request, csrf):
        return _consent(request, services, visitor, waiting, problem=STALE_FORM)
    if decision == "deny":
        return waiting.answer(error="access_denied", error_description="the login was denied in the browser")
    chosen = visitor.workspace(workspace)
    if chosen is None:
        return _consent(request, services, visitor, waiting, problem="Choose one of your workspaces.")
    return _let_in(services, visitor, waiting, chosen)


def _let_in(
    services: PlatformServices, visitor: Visitor, waiting: _Waiting, workspace: DbWorkspace
) -> Response:
    """Give the device its token, in place of those it was given before."""
    accounts, user = services.accounts, visitor.user
    earlier = [
        token
        for token, _ in accounts.tokens(user_id=user.id)
        if (token.kind, token.name, token.workspace_id) == ("cli", waiting.device_name, workspace.id)
        and token.revoked_at is None
    ]
    _, plain = accounts.create_token(user.id, name=waiting.device_name, workspace_id=workspace.id)
    for token in earlier:
        accounts.revoke_token(token.id)
    revoked = {"revoked_count": str(len(earlier))} if earlier else {}
    return waiting.answer(token=plain, **revoked)


def _waiting(state: str, port: str, device_name: str, redirect_uri: str) -> _Waiting | None:
    """Return the client that a link speaks of; None when no client made it."""
    if not _STATE.fullmatch(state) or not _PORT.fullmatch(port):
        return None
    name = "".join(c for c in device_name if c.isprintable()).strip()[:100] or "Unknown"
    waiting = _Waiting(state, int(port), name)
    # The token is only ever sent there; a link that names another place is somebody's trap.
    return waiting if redirect_uri in ("", f"{waiting.origin}/callback") else None


def _consent(
    request: Request, services: PlatformServices, visitor: Visitor, waiting: _Waiting, *, problem: str = ""
) -> Response:
    return render_page(
        request,
        services,
        "cli_auth.html",
        status=403 if problem else 200,
        form_leads_to=waiting.origin,
        visitor=visitor,
        waiting=waiting,
        problem=problem,
    )


def _not_a_client(request: Request, services: PlatformServices) -> Response:
    problem = "No client waits here. Start the login again: `osmosis login` prints the link to open."
    return render_page(
        request, services, "message.html", status=400, title="Log in a device", problem=problem
    )

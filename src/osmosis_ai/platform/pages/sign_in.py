"""Signing in and out, and approving the logins of devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.routing import client_address, root_path
from osmosis_ai.platform.pages.shell import (
    STALE_FORM,
    Csrf,
    SignedIn,
    Visitor,
    begin_session,
    end_session,
    is_own_form,
    page_not_found,
    page_router,
    render_page,
)
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import TooManyAttempts
from osmosis_ai.ui.pages import assets

router = page_router()

# The ports and states of clients of the 0.2 line.
_PORT = re.compile(r"897[6-9]|898[0-5]")
_STATE = re.compile(r"[A-Za-z0-9._~-]{1,256}")

_WRONG_PASSWORD = "Incorrect email or password."


@router.get("/assets/{name}", include_in_schema=False)
def asset(request: Request, name: str) -> Response:
    """Return a style sheet or script. No login is needed, since the sign-in page uses them."""
    found = assets().get(name)
    if found is None:
        raise page_not_found(request)
    body, headers = found.reply(request.headers.get("accept-encoding", ""))
    return Response(body, headers=headers)


@router.get("/login", response_class=HTMLResponse, include_in_schema=False)
def login_page(request: Request, next: str = "/") -> Response:
    """Show the sign-in page."""
    return render_page(request, "login.html", wanted=next, email="")


@router.post("/login", response_class=HTMLResponse, include_in_schema=False)
def login(
    request: Request,
    services: Services,
    email: Annotated[str, Form(max_length=320)] = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    wanted: Annotated[str, Form(alias="next", max_length=4096)] = "/",
    csrf: Csrf = "",
) -> Response:
    """Sign a user in."""
    shown: dict[str, Any] = {"wanted": wanted, "email": email}
    problem = STALE_FORM
    if is_own_form(request, csrf):
        try:
            user = services.sign_ins.check(email, password, source=client_address(request))
        except TooManyAttempts as error:
            return _too_many(request, error, "login.html", **shown)
        if user is not None:
            return begin_session(services, user, wanted)
        problem = _WRONG_PASSWORD
    return render_page(request, "login.html", status=403, problem=problem, **shown)


@router.get("/logout", include_in_schema=False)
def after_signing_in_again(services: Services) -> Response:
    """Redirect to the first page: a user whose session had ended before they signed out returns here."""
    return RedirectResponse(f"{root_path(services)}/", status_code=303)


@router.post("/logout", response_class=HTMLResponse, include_in_schema=False)
def logout(request: Request, services: Services, visitor: SignedIn, csrf: Csrf = "") -> Response:
    """Sign the user out."""
    if not is_own_form(request, csrf):
        return render_page(request, "message.html", status=403, title="Sign out", problem=STALE_FORM)
    return end_session(services, visitor)


@dataclass(frozen=True)
class _WaitingClient:
    """A client that waits for its token on a port of the user's machine."""

    state: str
    port: int
    device_name: str

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.port}"

    def answer(self, **values: str) -> Response:
        query = urlencode({**values, "state": self.state})
        # The URL contains the token, so it must not be cached or sent as a referrer.
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return RedirectResponse(f"{self.origin}/callback?{query}", status_code=303, headers=headers)


@router.get("/cli-auth", response_class=HTMLResponse, include_in_schema=False)
def cli_auth_page(
    request: Request,
    visitor: SignedIn,
    state: str = "",
    port: str = "",
    device_name: str = "",
    redirect_uri: str = "",
) -> Response:
    """Ask whether a device may log in, and to which workspace."""
    waiting = _waiting(state, port, device_name, redirect_uri)
    if waiting is None:
        return _not_a_client(request)
    return _consent_page(request, visitor, waiting)


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
    """Send the client its token, or an error; a new token revokes earlier ones of the same device."""
    waiting = _waiting(state, port, device_name, "")
    if waiting is None:
        return _not_a_client(request)
    if not is_own_form(request, csrf):
        return _consent_page(request, visitor, waiting, problem=STALE_FORM)
    if decision == "deny":
        return waiting.answer(error="access_denied", error_description="the login was denied in the browser")
    if (chosen := visitor.workspace(workspace)) is None:
        return _consent_page(request, visitor, waiting, problem="Choose one of your workspaces.")
    accounts, user, workspace_id = services.accounts, visitor.user, chosen[0].id
    earlier = [
        token
        for token, _ in accounts.tokens(user_id=user.id)
        if (token.kind, token.name, token.workspace_id) == ("cli", waiting.device_name, workspace_id)
        and token.revoked_at is None
    ]
    _, plain = accounts.create_token(user.id, name=waiting.device_name, workspace_id=workspace_id)
    for token in earlier:
        accounts.revoke_token(token.id)
    revoked = {"revoked_count": str(len(earlier))} if earlier else {}
    return waiting.answer(token=plain, **revoked)


def _waiting(state: str, port: str, device_name: str, redirect_uri: str) -> _WaitingClient | None:
    """Return the client that a link describes; None if no client created the link."""
    if not _STATE.fullmatch(state) or not _PORT.fullmatch(port):
        return None
    name = "".join(c for c in device_name if c.isprintable()).strip()[:100] or "Unknown"
    waiting = _WaitingClient(state, int(port), name)
    # The token is sent only there. A link with another address is an attack.
    return waiting if redirect_uri in ("", f"{waiting.origin}/callback") else None


def _consent_page(
    request: Request, visitor: Visitor, waiting: _WaitingClient, *, problem: str = ""
) -> Response:
    return render_page(
        request,
        "cli_auth.html",
        status=403 if problem else 200,
        form_leads_to=waiting.origin,
        visitor=visitor,
        waiting=waiting,
        problem=problem,
    )


def _not_a_client(request: Request) -> Response:
    problem = (
        "No client is waiting for this login. Run `osmosis login` again and open the link that it prints."
    )
    return render_page(request, "message.html", status=400, title="Log in a device", problem=problem)


@router.get("/device", response_class=HTMLResponse, include_in_schema=False)
def device_page(request: Request, services: Services, code: str = "") -> HTMLResponse:
    """Ask for the code of a login, or whether to approve it."""
    if not code.strip():
        return render_page(request, "device_code.html", keep=False)
    return _confirm_page(request, services, code)


@router.post("/device", response_class=HTMLResponse, include_in_schema=False)
def decide_device(
    request: Request,
    services: Services,
    code: Annotated[str, Form(max_length=64)],
    decision: Annotated[Literal["approve", "deny"], Form()],
    email: Annotated[str, Form(max_length=320)] = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    csrf: Csrf = "",
) -> HTMLResponse:
    """Approve or deny the login of a device, with the user's password."""
    if not is_own_form(request, csrf):
        return _confirm_page(request, services, code, problem=STALE_FORM, status=403)
    try:
        user = services.sign_ins.check(email, password, source=client_address(request))
    except TooManyAttempts as error:
        return _too_many(request, error, "device_code.html")
    if user is None:
        return _confirm_page(request, services, code, problem=_WRONG_PASSWORD, email=email, status=403)
    if not services.device_logins.decide(code, user.id, approve=decision == "approve"):
        return _no_such_code(request, code)
    return render_page(request, "device_done.html", keep=False, approved=decision == "approve", user=user)


def _confirm_page(
    request: Request,
    services: PlatformServices,
    code: str,
    *,
    problem: str = "",
    email: str = "",
    status: int = 200,
) -> HTMLResponse:
    try:
        services.sign_ins.refuse_guessing(client_address(request))
    except TooManyAttempts as error:
        return _too_many(request, error, "device_code.html")
    login = services.device_logins.find(code)
    if login is None:
        services.sign_ins.record_wrong_guess(client_address(request))
        return _no_such_code(request, code)
    return render_page(
        request, "device_confirm.html", status=status, keep=False, login=login, problem=problem, email=email
    )


def _no_such_code(request: Request, code: str) -> HTMLResponse:
    problem = "No pending login has this code. It may have expired: run `osmosis login` again."
    return render_page(request, "device_code.html", status=404, keep=False, problem=problem, code=code[:16])


def _too_many(request: Request, error: TooManyAttempts, template: str, **shown: Any) -> HTMLResponse:
    problem = error.message[:1].upper() + error.message[1:]
    reply = render_page(request, template, status=429, problem=problem, **shown)
    reply.headers["Retry-After"] = str(int(error.wait_s) + 1)
    return reply

"""The page between the two calls of the device flow, where a person lets a device in.

The approval page asks for a password every time and keeps no session: a device is let in once in months,
and whoever is lured there by a stranger's link has to look at what they approve.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Form, Request
from fastapi.responses import HTMLResponse

from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.page_shell import STALE_FORM, is_own_form, page_router, render_page, source_of
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import TooManyAttempts

router = page_router()


@router.get("/device", response_class=HTMLResponse, include_in_schema=False)
def device_page(request: Request, services: Services, code: str = "") -> HTMLResponse:
    """Ask for the code, or show what is waiting under it."""
    if not code.strip():
        return render_page(request, services, "device_code.html")
    return _confirmation(request, services, code)


@router.post("/device", response_class=HTMLResponse, include_in_schema=False)
def decide(
    request: Request,
    services: Services,
    code: Annotated[str, Form(max_length=64)],
    decision: Annotated[Literal["approve", "deny"], Form()],
    email: Annotated[str, Form(max_length=320)] = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    csrf: Annotated[str, Form(max_length=64)] = "",
) -> HTMLResponse:
    """Let the device in or turn it away, if the person who says so can sign in."""
    if not is_own_form(request, csrf):
        return _confirmation(request, services, code, problem=STALE_FORM, status=403)
    try:
        user = services.sign_ins.check(email, password, source=source_of(request))
    except TooManyAttempts as error:
        return _too_many(request, services, error)
    if user is None:
        problem = "This e-mail address and password do not belong together."
        return _confirmation(request, services, code, problem=problem, email=email, status=403)
    if not services.device_logins.decide(code, user.id, approve=decision == "approve"):
        return _nothing_waits(request, services, code)
    return render_page(request, services, "device_done.html", approved=decision == "approve", user=user)


def _confirmation(
    request: Request,
    services: PlatformServices,
    code: str,
    *,
    problem: str = "",
    email: str = "",
    status: int = 200,
) -> HTMLResponse:
    try:
        services.sign_ins.refuse_guessing(source_of(request))
    except TooManyAttempts as error:
        return _too_many(request, services, error)
    login = services.device_logins.find(code)
    if login is None:
        services.sign_ins.guessed_wrong(source_of(request))
        return _nothing_waits(request, services, code)
    return render_page(
        request, services, "device_confirm.html", status=status, login=login, problem=problem, email=email
    )


def _nothing_waits(request: Request, services: PlatformServices, code: str) -> HTMLResponse:
    problem = "No device waits under this code. It may have expired: start the login again."
    return render_page(request, services, "device_code.html", status=404, problem=problem, code=code[:16])


def _too_many(request: Request, services: PlatformServices, error: TooManyAttempts) -> HTMLResponse:
    problem = error.message[:1].upper() + error.message[1:]
    reply = render_page(request, services, "device_code.html", status=429, problem=problem)
    reply.headers["Retry-After"] = str(int(error.wait_s) + 1)
    return reply

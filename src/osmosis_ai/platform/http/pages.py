"""The pages people open in a browser; they work without scripts and load nothing.

The approval page asks for a password every time and keeps no session: a device is let in once in months,
and whoever is lured there by a stranger's link has to look at what they approve.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Form, Request
from fastapi.responses import HTMLResponse

from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.http.scope import Services
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import TooManyAttempts

if TYPE_CHECKING:
    from jinja2 import Environment

router = api_router()

_TEMPLATES = Path(__file__).with_name("templates")
_CSRF_COOKIE = "osmosis_csrf"
_CSRF_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@router.get("/device", response_class=HTMLResponse, include_in_schema=False)
def device_page(request: Request, services: Services, code: str = "") -> HTMLResponse:
    """Ask for the code, or show what is waiting under it."""
    if not code.strip():
        return _page(request, services, "device_code.html")
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
    if not _CSRF_TOKEN.fullmatch(csrf) or not secrets.compare_digest(csrf, _csrf_cookie(request)):
        problem = "This form was open for too long or did not come from this page. Please try again."
        return _confirmation(request, services, code, problem=problem, status=403)
    try:
        user = services.sign_ins.check(email, password, source=_source(request))
    except TooManyAttempts as error:
        return _too_many(request, services, error)
    if user is None:
        problem = "This e-mail address and password do not belong together."
        return _confirmation(request, services, code, problem=problem, email=email, status=403)
    if not services.device_logins.decide(code, user.id, approve=decision == "approve"):
        return _nothing_waits(request, services, code)
    return _page(request, services, "device_done.html", approved=decision == "approve", user=user)


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
        services.sign_ins.refuse_guessing(_source(request))
    except TooManyAttempts as error:
        return _too_many(request, services, error)
    login = services.device_logins.find(code)
    if login is None:
        services.sign_ins.guessed_wrong(_source(request))
        return _nothing_waits(request, services, code)
    return _page(
        request, services, "device_confirm.html", status=status, login=login, problem=problem, email=email
    )


def _nothing_waits(request: Request, services: PlatformServices, code: str) -> HTMLResponse:
    problem = "No device waits under this code. It may have expired: start the login again."
    return _page(request, services, "device_code.html", status=404, problem=problem, code=code[:16])


def _too_many(request: Request, services: PlatformServices, error: TooManyAttempts) -> HTMLResponse:
    problem = error.message[:1].upper() + error.message[1:]
    reply = _page(request, services, "device_code.html", status=429, problem=problem)
    reply.headers["Retry-After"] = str(int(error.wait_s) + 1)
    return reply


def _page(
    request: Request, services: PlatformServices, template: str, *, status: int = 200, **values: Any
) -> HTMLResponse:
    cookie = _csrf_cookie(request)
    csrf = cookie if _CSRF_TOKEN.fullmatch(cookie) else secrets.token_urlsafe(32)
    style, style_hash = _style()
    text = _environment().get_template(template).render(csrf=csrf, style=style, **values)
    reply = HTMLResponse(text, status_code=status)
    reply.headers.update(
        {
            "Content-Security-Policy": f"default-src 'none'; style-src '{style_hash}'; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
    )
    reply.set_cookie(
        _CSRF_COOKIE,
        csrf,
        httponly=True,
        samesite="strict",
        secure=services.config.base_url.startswith("https://"),
    )
    return reply


def _csrf_cookie(request: Request) -> str:
    return request.cookies.get(_CSRF_COOKIE, "")


def _source(request: Request) -> str:
    return request.client.host if request.client else "unknown"


@lru_cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)


@lru_cache
def _style() -> tuple[str, str]:
    """Return the style sheet and the name by which the policy lets it in."""
    style = (_TEMPLATES / "page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return style, f"sha256-{digest}"

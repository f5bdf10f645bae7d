"""How every page is made: no script, nothing loaded from elsewhere, whatever it shows escaped.

A form that changes something holds the token of a cookie that only this platform's own pages can read back
(double submit), so no other site can send it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Coroutine
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.http.routing import ApiRoute
from osmosis_ai.platform.services import PlatformServices

if TYPE_CHECKING:
    from jinja2 import Environment

logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).with_name("templates")
_CSRF_COOKIE = "osmosis_csrf"
_CSRF_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")

STALE_FORM = "This form was open for too long or did not come from this page. Please try again."


def page_router() -> APIRouter:
    """Return a router of pages: people who ask for what is not there read so on a page."""
    return APIRouter(route_class=_PageRoute, redirect_slashes=False)


class _PageRoute(ApiRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except NotFoundError as error:
                services: PlatformServices = request.app.state.services
                problem = error.message[:1].upper() + error.message[1:]
                return render_page(
                    request, services, "message.html", status=404, title="Not found", problem=problem
                )

        return handle_page


def render_page(
    request: Request,
    services: PlatformServices,
    template: str,
    *,
    status: int = 200,
    form_leads_to: str = "",
    **values: Any,
) -> HTMLResponse:
    """Return a page.

    Args:
        request: what asks for it.
        services: the platform's parts.
        template: a file of ``templates``.
        status: of the reply.
        form_leads_to: an origin that a form of the page redirects to, besides this platform.
        values: what the template shows.
    """
    cookie = _csrf_cookie(request)
    csrf = cookie if _CSRF_TOKEN.fullmatch(cookie) else secrets.token_urlsafe(32)
    style, style_hash = _style()
    shown = {"csrf": csrf, "style": style, "root": root_path(services), **values}
    reply = HTMLResponse(_environment().get_template(template).render(shown), status_code=status)
    targets = " ".join(filter(None, ["'self'", form_leads_to]))
    reply.headers.update(
        {
            "Content-Security-Policy": f"default-src 'none'; style-src '{style_hash}'; form-action {targets}; "
            "base-uri 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
    )
    reply.set_cookie(_CSRF_COOKIE, csrf, httponly=True, samesite="strict", secure=is_encrypted(services))
    return reply


def is_own_form(request: Request, csrf: str) -> bool:
    """Tell whether a form was sent from a page of ours: by the token in it, and by what the browser says."""
    is_ours = bool(_CSRF_TOKEN.fullmatch(csrf)) and secrets.compare_digest(csrf, _csrf_cookie(request))
    return is_ours and not _says_it_came_from_elsewhere(request)


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


def is_encrypted(services: PlatformServices) -> bool:
    """Tell whether browsers reach the platform over TLS."""
    return services.config.base_url.startswith("https://")


def root_path(services: PlatformServices) -> str:
    """Return the path that a proxy puts before all of the platform's; "" when there is none."""
    return urlsplit(services.config.base_url).path


def source_of(request: Request) -> str:
    """Return where a request comes from, as far as guesses are counted by it."""
    services: PlatformServices = request.app.state.services
    if not services.config.trusted_proxies and "x-forwarded-for" in request.headers:
        _warn_of_unnamed_proxy()
    return request.client.host if request.client else "unknown"


@lru_cache
def _warn_of_unnamed_proxy() -> None:
    """Say it once: whoever set the header may be anybody, so it is not read."""
    logger.warning(
        "requests come with X-Forwarded-For, and no proxy is named in OSMOSIS_TRUSTED_PROXIES: everybody behind "
        "it counts as one source of sign-ins"
    )


def _csrf_cookie(request: Request) -> str:
    return request.cookies.get(_CSRF_COOKIE, "")


@lru_cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache
def _style() -> tuple[str, str]:
    """Return the style sheet and the name by which the policy lets it in."""
    style = (_TEMPLATES / "page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return style, f"sha256-{digest}"

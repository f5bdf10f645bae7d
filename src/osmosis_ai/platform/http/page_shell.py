"""How every page of the platform is made: in the viewer's shell, under its policy, whatever it shows escaped."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import lru_cache
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import HTMLResponse
from starlette.responses import Response, StreamingResponse

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.db.tables import DbUser, DbWorkspace
from osmosis_ai.platform.http.csrf import csrf_token, keep_secret
from osmosis_ai.platform.http.errors import ApiError, as_api_error
from osmosis_ai.platform.http.routing import ApiRoute
from osmosis_ai.platform.name_lookup import NoSuchNameError
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.ui.assets import assets
from osmosis_ai.ui.pages import templates
from osmosis_ai.ui.policy import THEME_COOKIE, page_headers, theme_of
from osmosis_ai.ui.shell import NavItem, ShellView
from osmosis_ai.viewer.queries import require_known, word
from osmosis_ai.viewer.rendering import environment

if TYPE_CHECKING:
    from jinja2 import Environment

logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).with_name("templates")
_COMPRESSED_FROM_BYTES = 1024

# The pages of a workspace, in the order of their tabs.
TABS = {
    (): "Runs",
    ("evals",): "Evaluations",
    ("training",): "Training",
    ("datasets",): "Datasets",
    ("models",): "Models",
    ("secrets",): "Secrets",
    ("integrations", "git"): "Repositories",
    ("api-keys",): "Tokens",
    ("members",): "Members",
}


def load_templates() -> None:
    """Read what pages are made of, as long as it is of the release that runs."""
    _environment(), environment(), assets()


def page_router(*, knows_its_words: bool = False) -> APIRouter:
    """Return a router of pages: people who ask for what is not there read so on a page."""
    dependencies = [Depends(_require_declared_words)] if knows_its_words else []
    return APIRouter(route_class=PageRoute, redirect_slashes=False, dependencies=dependencies)


def _require_declared_words(request: Request) -> None:
    require_known(request.query_params, sorted(_declared_words(request.scope["route"].dependant)))
    for name in request.query_params:
        word({name: request.query_params.getlist(name)}, name)


def _declared_words(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _declared_words(each)


class NoSuchWorkspaceError(NoSuchNameError):
    """The visitor is in no workspace of this name, whether or not there is one."""


class PageRoute(ApiRoute):
    """A route whose replies people read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                _refuse_another_s_name(request)
                reply = await handle(request)
            except Exception as error:
                is_for_people = isinstance(error, NotFoundError) or "text/html" in request.headers.get(
                    "accept", ""
                )
                refusal = as_api_error(error, request)
                if not is_for_people or refusal.status == HTTPStatus.SEE_OTHER:
                    raise refusal from error
                reply = _refusal(request, refusal, error)
            keep_secret(request, reply)
            return _compressed(request, reply)

        return handle_page


def _refuse_another_s_name(request: Request) -> None:
    """Refuse page requests under a host name that was pointed at this machine (DNS rebinding)."""
    services: PlatformServices = request.app.state.services
    if is_loopback(urlsplit(services.config.base_url).hostname) and not is_loopback(request.url.hostname):
        raise ApiError(403, "FOREIGN_HOST", f"this platform is at {services.config.base_url}.")


def _refusal(request: Request, refusal: ApiError, error: Exception) -> Response:
    """Return the page that says why there is none, names what is nearest, and leads back."""
    services: PlatformServices = request.app.state.services
    problem = refusal.message[:1].upper() + refusal.message[1:]
    title = HTTPStatus(refusal.status).phrase.capitalize()
    status = refusal.status
    back = _way_back(request, services, error)
    above = (back or "").rstrip("/")
    found = error.nearest if isinstance(error, NoSuchNameError) and back else ()
    shell_under: Callable[[Sequence[str]], ShellView] | None = getattr(request.state, "shell_under", None)
    reply = render_page(
        request,
        services,
        "refusal.html",
        status=status,
        shell=shell_under(_listed(request)) if shell_under is not None else None,
        title=title,
        problem=problem,
        back=back,
        nearest=[(name, f"{above}/{quote(name, safe='')}") for name in found],
    )
    reply.headers.update(refusal.headers)
    return reply


def _way_back(request: Request, services: PlatformServices, error: Exception) -> str | None:
    """Return the path of the list that what was asked for would be in; None where there is none to lead back to."""
    workspace = request.path_params.get("workspace")
    if workspace is None:
        return None
    if isinstance(error, NoSuchWorkspaceError):
        return f"{root_path(services)}/"
    return "/".join([root_path(services), quote(workspace, safe=""), *_listed(request)])


def _listed(request: Request) -> list[str]:
    """Return what stands behind the workspace in the path of the list that a page belongs to, which is its tab."""
    below = request.scope["route"].path.split("/")[2:]
    return list(takewhile(lambda segment: not segment.startswith("{"), below))


def render_page(
    request: Request,
    services: PlatformServices,
    template: str,
    *,
    status: int = 200,
    form_leads_to: str = "",
    keep: bool = True,
    shell: ShellView | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return a page."""
    shell = shell or shell_of(request, services)
    shown = {"shell": shell, "csrf": shell.csrf, "root": shell.root, **values}
    text = _environment().get_template(template).render(shown)
    headers = page_headers(form_leads_to=form_leads_to, keep=keep)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=headers)


def shell_of(
    request: Request,
    services: PlatformServices,
    *,
    user: DbUser | None = None,
    workspace: DbWorkspace | None = None,
    tab: Sequence[str] | None = None,
) -> ShellView:
    """Return what stands around a page: who has signed in, and the tabs of their workspace."""
    root = root_path(services)
    nav = []
    if workspace is not None:
        below = workspace_path(services, workspace)
        current = tuple(tab) if tab is not None else None
        nav = [
            NavItem(name, "/".join([below, *segments]), segments == current)
            for segments, name in TABS.items()
        ]
    return ShellView(
        product=workspace.name if workspace is not None else "Osmosis",
        nav=nav,
        root=root,
        assets=f"{root}/assets",
        user=user.email if user is not None else None,
        sign_out=f"{root}/logout" if user is not None else None,
        csrf=csrf_token(request),
        theme=theme_of(request.cookies.get(THEME_COOKIE)),
    )


def asset_reply(request: Request, name: str) -> Response | None:
    """Return a style sheet or module; None where there is none of this name."""
    asset = assets().get(name)
    if asset is None:
        return None
    body, headers = asset.reply(request.headers.get("accept-encoding", ""))
    return Response(body, headers=headers)


def workspace_path(services: PlatformServices, workspace: DbWorkspace) -> str:
    """Return the path below which a workspace has its pages."""
    return f"{root_path(services)}/{quote(workspace.name, safe='')}"


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


def _compressed(request: Request, reply: Response) -> Response:
    """Return a page compressed, where the browser takes it so and it is worth it."""
    takes_it = "gzip" in request.headers.get("accept-encoding", "").lower()
    is_page = not isinstance(reply, StreamingResponse) and (reply.media_type or "").startswith("text/html")
    if not is_page or not takes_it or len(reply.body) < _COMPRESSED_FROM_BYTES:
        return reply
    reply.body = gzip.compress(bytes(reply.body), compresslevel=5, mtime=0)
    reply.headers.update(
        {"Content-Encoding": "gzip", "Content-Length": str(len(reply.body)), "Vary": "Accept-Encoding"}
    )
    return reply


@lru_cache
def _warn_of_unnamed_proxy() -> None:
    """Log it once: anyone can set the header, so it is ignored."""
    logger.warning(
        "requests come with X-Forwarded-For, and no proxy is named in OSMOSIS_TRUSTED_PROXIES: everybody behind "
        "it counts as one source of sign-ins"
    )


@lru_cache
def _environment() -> Environment:
    return templates(_TEMPLATES)

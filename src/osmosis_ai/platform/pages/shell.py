"""Rendering of pages: the viewer's layout, its security headers, and escaping of all values."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import HTMLResponse
from starlette.responses import Response, StreamingResponse

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.config.issues import nearest
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.db.tables import DbUser, DbWorkspace
from osmosis_ai.platform.http.addresses import root_path, workspace_path
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError, as_api_error
from osmosis_ai.platform.http.routing import ApiRoute
from osmosis_ai.platform.pages.sessions import SignedIn, Visitor, csrf_token, set_csrf_cookie
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import NoSuchNameError, Role
from osmosis_ai.ui.assets import assets
from osmosis_ai.ui.pages import templates
from osmosis_ai.ui.policy import THEME_COOKIE, page_headers, theme_of
from osmosis_ai.ui.shell import NavItem, ShellView
from osmosis_ai.viewer.queries import require_known, word
from osmosis_ai.viewer.rendering import environment

if TYPE_CHECKING:
    from jinja2 import Environment

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
    ("api-keys",): "API keys",
    ("members",): "Members",
}


def load_templates() -> None:
    """Load everything that pages consist of, before an upgrade on the disk could change it."""
    _environment(), environment(), assets()


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
    """Return the layout around a page, with the tabs of the user's workspace."""
    root, nav = root_path(services), []
    if workspace is not None:
        below = workspace_path(services, workspace)
        current = tuple(tab) if tab is not None else None
        nav = [
            NavItem(name, "/".join([below, *segments]), segments == current)
            for segments, name in TABS.items()
        ]
    return ShellView(
        workspace=workspace.name if workspace is not None else "",
        nav=nav,
        root=root,
        assets=f"{root}/assets",
        user=user.email if user is not None else None,
        sign_out=f"{root}/logout" if user is not None else None,
        csrf=csrf_token(request),
        theme=theme_of(request.cookies.get(THEME_COOKIE)),
    )


@lru_cache
def _environment() -> Environment:
    return templates(Path(__file__).with_name("templates"))


# -- workspaces --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkspaceVisit:
    """A visitor's request for a page of a workspace."""

    request: Request
    services: PlatformServices
    visitor: Visitor
    workspace: DbWorkspace
    role: Role

    def href(self, *segments: str) -> str:
        """Return the path of a page of the workspace."""
        below = [quote(segment, safe="") for segment in segments]
        return "/".join([workspace_path(self.services, self.workspace), *below])

    def shell(self, tab: Sequence[str] | None) -> ShellView:
        """Return the layout around a page."""
        return shell_of(
            self.request, self.services, user=self.visitor.user, workspace=self.workspace, tab=tab
        )

    def page(
        self, template: str, tab: Sequence[str], *, status: int = 200, keep: bool = True, **values: Any
    ) -> HTMLResponse:
        """Return a page."""
        shown = {"shell": self.shell(tab), "visit": self, **values}
        return render_page(self.request, self.services, template, status=status, keep=keep, **shown)

    def message(self, title: str, problem: str, *, status: int, tab: Sequence[str]) -> HTMLResponse:
        """Return a page that explains why something was not done."""
        return self.page("message.html", tab, status=status, title=title, problem=problem)


class NoSuchWorkspaceError(NoSuchNameError):
    """The visitor has no workspace of this name, whether or not it exists."""


def workspace_visit(
    request: Request, services: Services, visitor: SignedIn, workspace: str
) -> WorkspaceVisit:
    """Return the visit to a workspace (a dependency)."""
    if (found := visitor.workspace(workspace)) is None:
        names = [each.name for each, _ in visitor.workspaces]
        mine = nearest(workspace[:255], names, most=3, cutoff=0)
        raise NoSuchWorkspaceError(
            f"you are not a member of a workspace named '{workspace[:100]}'.", nearest=mine
        )
    visit = WorkspaceVisit(request, services, visitor, *found)
    request.state.shell_under = visit.shell  # for an error page
    return visit


WorkspacePage = Annotated[WorkspaceVisit, Depends(workspace_visit)]


# -- routes ------------------------------------------------------------------------------------------


def page_router(*, strict: bool = False) -> APIRouter:
    """Return a router of pages; a strict one refuses unknown query parameters."""
    dependencies = [Depends(_require_known_parameters)] if strict else []
    return APIRouter(route_class=PageRoute, redirect_slashes=False, dependencies=dependencies)


def _require_known_parameters(request: Request) -> None:
    require_known(request.query_params, sorted(_parameters(request.scope["route"].dependant)))
    for name in request.query_params:
        word({name: request.query_params.getlist(name)}, name)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _parameters(each)


class PageRoute(ApiRoute):
    """A route whose errors are pages as well."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                _refuse_foreign_host(request)
                reply = await handle(request)
            except Exception as error:
                accepts_pages = "text/html" in request.headers.get("accept", "")
                refusal = as_api_error(error, request)
                if not (accepts_pages or isinstance(error, NotFoundError)) or refusal.status == 303:
                    raise refusal from error
                reply = _error_page(request, refusal, error)
            set_csrf_cookie(request, reply)
            return _compressed(request, reply)

        return handle_page


def _refuse_foreign_host(request: Request) -> None:
    """Refuse requests under a host name that somebody pointed at this machine (DNS rebinding)."""
    services: PlatformServices = request.app.state.services
    if is_loopback(urlsplit(services.config.base_url).hostname) and not is_loopback(request.url.hostname):
        raise ApiError(403, "FOREIGN_HOST", f"this host name is not allowed; use {services.config.base_url}.")


def _error_page(request: Request, refusal: ApiError, error: Exception) -> Response:
    """Return a page with the problem, the nearest names, and a link back to the list."""
    services: PlatformServices = request.app.state.services
    # The segments of the path before a parameter are the tab.
    below = request.scope["route"].path.split("/")[2:]
    tab = list(takewhile(lambda segment: not segment.startswith("{"), below))
    workspace, back = request.path_params.get("workspace"), None
    if isinstance(error, NoSuchWorkspaceError):
        back = f"{root_path(services)}/"
    elif workspace is not None:
        back = "/".join([root_path(services), quote(workspace, safe=""), *tab])
    found = error.nearest if isinstance(error, NoSuchNameError) and back else ()
    shell_under: Callable[[Sequence[str]], ShellView] | None = getattr(request.state, "shell_under", None)
    reply = render_page(
        request,
        services,
        "refusal.html",
        status=refusal.status,
        shell=shell_under(tab) if shell_under is not None else None,
        title=HTTPStatus(refusal.status).phrase.capitalize(),
        problem=refusal.message[:1].upper() + refusal.message[1:],
        back=back,
        nearest=[(name, f"{(back or '').rstrip('/')}/{quote(name, safe='')}") for name in found],
    )
    reply.headers.update(refusal.headers)
    return reply


def _compressed(request: Request, reply: Response) -> Response:
    is_page = not isinstance(reply, StreamingResponse) and (reply.media_type or "").startswith("text/html")
    accepts_gzip = "gzip" in request.headers.get("accept-encoding", "").lower()
    if is_page and accepts_gzip and len(reply.body) >= _COMPRESSED_FROM_BYTES:
        reply.body = gzip.compress(bytes(reply.body), compresslevel=5, mtime=0)
        reply.headers.update(
            {"Content-Encoding": "gzip", "Content-Length": str(len(reply.body)), "Vary": "Accept-Encoding"}
        )
    return reply

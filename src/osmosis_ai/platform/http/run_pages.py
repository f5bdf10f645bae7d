"""The viewer's pages over a workspace's runs: who looks, at what, and with which buttons."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.http.browser_sessions import SESSION_COOKIE
from osmosis_ai.platform.http.page_shell import TABS, PageRoute, page_router, root_path, workspace_path
from osmosis_ai.platform.http.run_buttons import PageActions
from osmosis_ai.platform.http.workspace_visits import WorkspaceVisit, workspace_visit
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.routes import nothing_here, viewer_router


def _viewing(visit: Annotated[WorkspaceVisit, Depends(workspace_visit)]) -> Viewing:
    """Return what a visitor may see of a workspace (a dependency)."""
    services, request = visit.services, visit.request
    path = request.scope["path"].removeprefix(root_path(services))
    segment = (path.split("/", 3)[2:3] or [""])[0]
    cookie = request.cookies.get(SESSION_COOKIE, "")
    return Viewing(
        source=PlatformSource(services, visit.workspace.id, services.sample_counts),
        shell=visit.shell((segment,) if (segment,) in TABS else ()),
        root=workspace_path(services, visit.workspace),
        actions=PageActions(visit),
        visitor=visit.visitor.principal.token.id,
        allowed=partial(_may_look, services, cookie, visit.workspace.id),
    )


def _may_look(services: PlatformServices, cookie: str, workspace_id: str) -> bool:
    """Tell whether a session lasts and its user is in the workspace still."""
    try:
        principal = services.accounts.authenticate(cookie, kinds=("web",))
    except TokenRejected:
        return False
    return services.workspaces.has_member(principal.user.id, workspace_id)


class _AnyPageRoute(PageRoute):
    """Catch-all for browsers. Programs get their 404 from the platform itself."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_page = scope["type"] == "http" and scope["method"] == "GET"
        if not is_page or scope["path"].startswith("/api/"):
            return Match.NONE, {}
        return super().matches(scope) if _is_browser(scope) else (Match.NONE, {})


def _is_browser(scope: Scope) -> bool:
    return "text/html" in Headers(scope=scope).get("accept", "")


def _nothing(request: Request, view: Annotated[Viewing, Depends(_viewing)]) -> Response:
    return nothing_here(view, request.url.path)


def _router() -> APIRouter:
    router = page_router()
    router.include_router(viewer_router(_viewing, home="", route_class=PageRoute), prefix="/{workspace}")
    router.add_api_route(
        "/{workspace}/{path:path}",
        _nothing,
        include_in_schema=False,
        response_model=None,
        route_class_override=_AnyPageRoute,
    )
    return router


router = _router()

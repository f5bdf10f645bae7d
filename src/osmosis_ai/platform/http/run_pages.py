"""The viewer's pages over a workspace's runs: who looks, at what, and with which buttons."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends

from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.http.browser_sessions import SESSION_COOKIE
from osmosis_ai.platform.http.page_shell import TABS, PageRoute, page_router, root_path, workspace_path
from osmosis_ai.platform.http.run_buttons import PageActions
from osmosis_ai.platform.http.workspace_visits import WorkspaceVisit, workspace_visit
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.routes import viewer_router


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


def _router() -> APIRouter:
    router = page_router()
    router.include_router(viewer_router(_viewing, home="", route_class=PageRoute), prefix="/{workspace}")
    return router


router = _router()

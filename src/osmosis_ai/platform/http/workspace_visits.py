"""A visit to a workspace in a browser: who looks, and how its pages are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse

from osmosis_ai.config.issues import nearest
from osmosis_ai.platform.db.tables import DbWorkspace
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.browser_sessions import SignedIn, Visitor
from osmosis_ai.platform.http.page_shell import NoSuchWorkspaceError, render_page, shell_of, workspace_path
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import Role
from osmosis_ai.ui.shell import ShellView


@dataclass(frozen=True)
class WorkspaceVisit:
    """One page of one workspace, as one visitor asked for it."""

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
        """Return what stands around a page under a tab."""
        return shell_of(
            self.request, self.services, user=self.visitor.user, workspace=self.workspace, tab=tab
        )

    def page(
        self, template: str, tab: Sequence[str], *, status: int = 200, keep: bool = True, **values: Any
    ) -> HTMLResponse:
        """Return a page under a tab."""
        shell = self.shell(tab)
        shown = {"visit": self, **values}
        return render_page(
            self.request, self.services, template, status=status, keep=keep, shell=shell, **shown
        )

    def message(self, title: str, problem: str, *, status: int, tab: Sequence[str]) -> HTMLResponse:
        """Return a page that says why something was not done."""
        return self.page("message.html", tab, status=status, title=title, problem=problem)


def workspace_visit(
    request: Request, services: Services, visitor: SignedIn, workspace: str
) -> WorkspaceVisit:
    """Return the visit to a workspace (a dependency)."""
    for found, role in visitor.workspaces:
        if workspace.lower() == found.name.lower() or workspace == found.id:
            visit = WorkspaceVisit(request, services, visitor, found, role)
            request.state.shell_under = visit.shell  # for the page that says that there is none
            return visit
    mine = nearest(workspace[:255], [found.name for found, _ in visitor.workspaces], most=3, cutoff=0)
    raise NoSuchWorkspaceError(f"you are in no workspace called '{workspace[:100]}'.", nearest=mine)


WorkspacePage = Annotated[WorkspaceVisit, Depends(workspace_visit)]
"""A visitor's request for a page of a workspace that they are in."""

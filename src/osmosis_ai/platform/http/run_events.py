"""What is new in a run, told to the command line as to a page: by the same readers, and as long as the token holds."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.http.authentication import (
    GitHeader,
    Services,
    WorkspaceScope,
    bearer_token,
    resolve_scope,
)
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.page_shell import workspace_path
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.ui.shell import ShellView
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.live_routes import live_reply


def add_run_events(router: APIRouter, kind: RunKind) -> None:
    """Add the route of what is new in runs of a kind."""

    @router.get("/{name_or_id}/events", response_model=None)
    async def events(
        request: Request, services: Services, scope: WorkspaceScope, name_or_id: str, git: GitHeader = None
    ) -> Response:
        """Tell how a run stands and, to a client that accepts `text/event-stream`, what is new as it comes."""
        plain = bearer_token(request)
        found = await run_in_threadpool(services.runs_of(kind).get, scope.workspace_id, name_or_id)

        def allowed() -> bool:
            with services.db.session() as session:
                try:
                    now = resolve_scope(session, services.accounts.principal(session, plain), git)
                except (ApiError, TokenRejected):
                    return False
            return now.workspace_id == scope.workspace_id

        view = Viewing(
            PlatformSource(services, scope.workspace_id, services.sample_counts),
            ShellView(),
            root=workspace_path(services, scope.workspace),
            visitor=f"token {scope.principal.token.id}",
            allowed=allowed,
        )
        return await live_reply(request, view, kind, found.run.name or found.run.id)

"""A visitor's own ways in: keys for served models, tokens of devices, sessions of browsers; seen, made and revoked."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Form
from fastapi.responses import RedirectResponse, Response

from osmosis_ai.platform.db.tables import DbToken
from osmosis_ai.platform.http.csrf import MAX_TOKEN_CHARS, STALE_FORM, is_own_form
from osmosis_ai.platform.http.page_shell import page_router, root_path
from osmosis_ai.platform.http.workspace_visits import WorkspacePage, WorkspaceVisit

router = page_router(knows_its_words=True)

_KINDS = {"api_key": "API key", "cli": "command line", "web": "browser"}


@router.get("/{workspace}/api-keys", include_in_schema=False)
def tokens_page(page: WorkspacePage) -> Response:
    """List the visitor's tokens."""
    return _tokens(page)


@router.post("/{workspace}/api-keys", include_in_schema=False)
def change_tokens(
    page: WorkspacePage,
    action: Annotated[Literal["make", "ask", "revoke", "everywhere"], Form()],
    name: Annotated[str, Form(max_length=100)] = "",
    token_id: Annotated[str, Form(max_length=64)] = "",
    csrf: Annotated[str, Form(max_length=MAX_TOKEN_CHARS)] = "",
) -> Response:
    """Make a key and show it, this once; revoke a token; or sign out of every browser."""
    if not is_own_form(page.request, csrf):
        return _tokens(page, problem=STALE_FORM, status=403)
    accounts, user = page.services.accounts, page.visitor.user
    if action == "make":
        label = name.strip() or None
        _, plain = accounts.create_token(user.id, "api_key", name=label, workspace_id=page.workspace.id)
        return _tokens(page, made=plain)
    if action == "everywhere":
        with page.services.db.transaction() as session:
            accounts.end_sessions(session, user.id)
        return RedirectResponse(f"{root_path(page.services)}/login", status_code=303)
    token = next((each for each in _own_tokens(page) if each.id == token_id), None)
    if token is None:
        return _tokens(page, problem="There is no such token of yours.", status=404)
    if action == "ask":
        return page.page("revoke.html", ("api-keys",), token=token, kind=_KINDS[token.kind])
    accounts.revoke_token(token_id, user_id=user.id)
    return RedirectResponse(page.href("api-keys"), status_code=303)


def _tokens(page: WorkspaceVisit, *, made: str = "", problem: str = "", status: int = 200) -> Response:
    return page.page(
        "tokens.html",
        ("api-keys",),
        status=status,
        keep=not made,
        tokens=_own_tokens(page),
        kinds=_KINDS,
        own=page.visitor.principal.token.id,
        made=made,
        problem=problem,
    )


def _own_tokens(page: WorkspaceVisit) -> list[DbToken]:
    """Return what lets the visitor into this workspace, as long as it works."""
    now = page.services.clock.now()
    return [
        token
        for token, _ in page.services.accounts.tokens(user_id=page.visitor.user.id)
        if token.workspace_id in (None, page.workspace.id)
        and token.revoked_at is None
        and (token.expires_at is None or token.expires_at > now)
    ]

"""The pages of a workspace other than its runs: datasets, models, secrets, repositories, tokens, members."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from osmosis_ai.datasets.readers import iter_records
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStoreError
from osmosis_ai.platform.db.tables import DbDataset, DbToken
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.routing import page_url, root_path
from osmosis_ai.platform.pages.runs import PageActions
from osmosis_ai.platform.pages.shell import (
    STALE_FORM,
    Csrf,
    SignedIn,
    WorkspacePage,
    WorkspaceVisit,
    is_own_form,
    page_router,
    render_page,
    shell_of,
)
from osmosis_ai.platform.viewer.runs import saved_adapter
from osmosis_ai.platform.workspaces import ROLES, Role
from osmosis_ai.ui.pages import NavItem
from osmosis_ai.viewer.queries import query_string
from osmosis_ai.viewer.source import ItemPage

logger = logging.getLogger("osmosis_ai.platform.http")
router = page_router(strict=True)

_PER_PAGE = 30
_LOG_LINES = 40
_ROWS_PER_PAGE = 25
_MOST_DIGITS = 12
_MOST_COLUMNS = 50
_CELL_CHARACTERS = 200
_TOKEN_KINDS = {"api_key": "API key", "cli": "command line", "web": "browser"}

RIGHTS: Sequence[tuple[str, Role]] = (
    ("View runs, datasets, models, secret names and members", "member"),
    ("Submit, stop, retry and resume runs", "member"),
    ("Upload datasets, runs and rubric results; register rollout servers", "member"),
    ("Deploy models; undeploy own deployments", "member"),
    ("Delete own runs and datasets", "member"),
    ("Set personal secrets; create API keys", "member"),
    ("Set workspace secrets", "admin"),
    ("Undeploy models, and delete runs and datasets, of other users", "admin"),
)
"""The lowest role for what the REST API permits."""


Cursor = Annotated[str | None, Query()]


@router.get("/", include_in_schema=False)
def first_page(request: Request, services: Services, visitor: SignedIn) -> Response:
    """Redirect to the visitor's workspace, or list several."""
    if len(visitor.workspaces) == 1:
        return RedirectResponse(page_url(services, visitor.workspaces[0][0], "evals"), status_code=303)
    rows = [(workspace, page_url(services, workspace, "evals")) for workspace, _ in visitor.workspaces]
    shell = shell_of(request, user=visitor.user)
    return render_page(request, "workspaces.html", shell=shell, rows=rows)


@router.get("/{workspace}/datasets", include_in_schema=False)
def datasets_page(page: WorkspacePage, cursor: Cursor = None) -> Response:
    """List datasets."""
    found = page.services.datasets.page(page.workspace.id, limit=_PER_PAGE, cursor=cursor)
    return page.page("datasets.html", ("datasets",), **_listed(found, cursor))


@router.get("/{workspace}/datasets/{name}", include_in_schema=False)
def dataset_page(page: WorkspacePage, name: str, rows: Annotated[str, Query()] = "0") -> Response:
    """Show a dataset with some of its rows."""
    first = _number_of_row(rows)
    dataset = page.services.datasets.get(page.workspace.id, name)
    last = max((dataset.row_count or 0) - 1, 0)
    if first > last:
        raise NotFoundError(f"the dataset '{dataset.name}' has no row {first:,} (last row: {last:,}).")
    records, unread = _rows(page, dataset, first)
    found = list(dict.fromkeys(key for each in records for key in each))
    columns = found[:_MOST_COLUMNS]
    return page.page(
        "dataset.html",
        ("datasets",),
        crumbs=[NavItem("Datasets", page.href("datasets"))],
        dataset=dataset,
        columns=[_cell(key) for key in columns],
        more_columns=len(found) - len(columns),
        records=[
            (first + place, [_cell(each.get(key)) for key in columns]) for place, each in enumerate(records)
        ],
        unread=unread,
        previous=max(first - _ROWS_PER_PAGE, 0) if first else None,
        next=first + _ROWS_PER_PAGE if first + _ROWS_PER_PAGE <= last else None,
        first=first,
        last=last,
        log=page.services.logs.page(dataset.id, limit=_LOG_LINES).logs,
    )


@router.get("/{workspace}/models", include_in_schema=False)
def models_page(page: WorkspacePage, cursor: Cursor = None) -> Response:
    """List trained adapters."""
    found = page.services.lora_models.page(page.workspace.id, limit=_PER_PAGE, cursor=cursor)
    return page.page("models.html", ("models",), **_listed(found, cursor))


@router.get("/{workspace}/models/{name}", include_in_schema=False)
def model_page(page: WorkspacePage, name: str) -> Response:
    """Show a trained adapter."""
    found = page.services.lora_models.get(page.workspace.id, name)
    buttons = PageActions(page).adapter_buttons(saved_adapter(found))
    crumbs = [NavItem("Models", page.href("models"))]
    return page.page("model.html", ("models",), crumbs=crumbs, found=found, buttons=buttons)


@router.get("/{workspace}/secrets", include_in_schema=False)
def secrets_page(page: WorkspacePage, cursor: Cursor = None, handed: Cursor = None) -> Response:
    """List the names of secrets, and the secret access log."""
    found = page.services.secrets.page(
        page.workspace.id, page.visitor.user.id, limit=_PER_PAGE, cursor=cursor
    )
    handouts = page.services.secrets.accesses(page.workspace.id, limit=_PER_PAGE, cursor=handed)
    listed = _listed(found, cursor)
    return page.page(
        "secrets.html",
        ("secrets",),
        found=listed["found"],
        address=lambda cursor: query_string({"cursor": cursor, "handed": handed}),
        handouts=_listed(handouts, handed)["found"],
        of_handouts=lambda handed: query_string({"cursor": cursor, "handed": handed}),
    )


@router.get("/{workspace}/integrations/git", include_in_schema=False)
def repositories_page(page: WorkspacePage) -> Response:
    """List connected repositories and their last syncs."""
    found = page.services.workspaces.repositories(page.workspace.id)
    return page.page("repositories.html", ("integrations", "git"), found=found)


@router.get("/{workspace}/members", include_in_schema=False)
def members_page(page: WorkspacePage) -> Response:
    """List the members of the workspace and their permissions."""
    found = page.services.workspaces.members(page.workspace.id)
    order = list(ROLES)
    rights = [(what, [order.index(role) <= order.index(least) for role in order]) for what, least in RIGHTS]
    return page.page("members.html", ("members",), found=found, roles=order, rights=rights)


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
    csrf: Csrf = "",
) -> Response:
    """Create a key and show it once, revoke a token, or sign out of every browser."""
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
        return _tokens(page, problem="Token not found.", status=404)
    if action == "ask":
        return page.page("revoke.html", ("api-keys",), token=token, kind=_TOKEN_KINDS[token.kind])
    accounts.revoke_token(token_id, by=page.visitor.principal)
    return RedirectResponse(page.href("api-keys"), status_code=303)


def _tokens(page: WorkspaceVisit, *, made: str = "", problem: str = "", status: int = 200) -> Response:
    return page.page(
        "tokens.html",
        ("api-keys",),
        status=status,
        keep=not made,
        tokens=_own_tokens(page),
        kinds=_TOKEN_KINDS,
        own=page.visitor.principal.token.id,
        made=made,
        problem=problem,
    )


def _own_tokens(page: WorkspaceVisit) -> list[DbToken]:
    """Return the visitor's valid tokens for this workspace."""
    now = page.services.clock.now()
    return [
        token
        for token, _ in page.services.accounts.tokens(user_id=page.visitor.user.id)
        if token.workspace_id in (None, page.workspace.id)
        and token.revoked_at is None
        and (token.expires_at is None or token.expires_at > now)
    ]


def _listed(found: ItemPage[Any], cursor: str | None) -> dict[str, Any]:
    """Return the values of a list template."""
    if cursor and not found.items:
        raise NotFoundError("this page no longer has any items.")
    return {"found": found, "address": lambda cursor: query_string({"cursor": cursor})}


def _number_of_row(given: str) -> int:
    """Return the first row to show."""
    if not (given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS):
        raise OsmosisError(f"'rows' must be a row number, starting at 0: {given[:40]!r}.")
    return int(given)


def _rows(page: WorkspaceVisit, dataset: DbDataset, start: int) -> tuple[list[Mapping[str, Any]], str]:
    """Return some rows of a dataset, or why they cannot be read."""
    if dataset.status != "uploaded" or dataset.blob_key is None:
        return [], ""
    try:
        with page.services.blobs.local_copy(dataset.blob_key) as file:
            try:
                return [record for _, record in islice(iter_records(file, start=start), _ROWS_PER_PAGE)], ""
            except OsmosisError as error:
                # Paths of the platform are not shown to visitors.
                said = error.message.replace(str(file), f"{dataset.name}.{dataset.extension}")
                return [], f"The rows cannot be read: {said}"
    except BlobStoreError as error:
        # Only the operator sees where the files are.
        logger.error("%s", error.message)
        return (
            [],
            "The rows cannot be read: the platform's file store is unavailable. Try again later.",
        )
    except OSError as error:
        logger.error("%s", error)
        return [], f"The rows cannot be read: {error.strerror or 'disk error'}."
    except OsmosisError as error:
        return [], f"The rows cannot be read: {error.message}"


def _cell(value: Any) -> str:
    """Format a cell of a dataset in one line."""
    text = "–" if value is None else str(value)
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 1]}…"

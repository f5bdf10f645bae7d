"""The pages of a workspace other than its runs: datasets, models, secrets, repositories, tokens, members."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import File, Form, Query, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from osmosis_ai.api.git_identity import identify_origin
from osmosis_ai.api.models.datasets import CompletedPart, DatasetCreateRequest
from osmosis_ai.datasets.readers import iter_records
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.store import BlobStoreError
from osmosis_ai.platform.db.tables import DbDataset, DbToken
from osmosis_ai.platform.gitsync.git import parse_clone_url
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import page_url, root_path
from osmosis_ai.platform.pages.runs import PageActions, problem_of
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
from osmosis_ai.platform.secrets import SecretScope
from osmosis_ai.platform.viewer.runs import saved_adapter
from osmosis_ai.platform.workspaces import ROLES, Role, checked_clone_url
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
    ("Add members and change their roles", "owner"),
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
    return _datasets(page, cursor)


def _datasets(page: WorkspaceVisit, cursor: str | None, problem: str = "", status: int = 200) -> Response:
    found = page.services.datasets.page(page.workspace.id, limit=_PER_PAGE, cursor=cursor)
    listed = _listed(found, cursor)
    # Pages may not connect to a bucket, only to this server.
    by_parts = page.href("datasets", "uploads") if isinstance(page.services.blobs, LocalBlobStore) else ""
    return page.page(
        "datasets.html", ("datasets",), status=status, problem=problem, by_parts=by_parts, **listed
    )


@router.post("/{workspace}/datasets", include_in_schema=False)
def upload_dataset(
    page: WorkspacePage, file: Annotated[UploadFile | None, File()] = None, csrf: Csrf = ""
) -> Response:
    """Store a dataset file; larger ones than a request's body may be are for the command line."""

    def store() -> None:
        if file is None or not file.filename:
            raise OsmosisError("choose a file.")
        request = _announced(file.filename, file.size or 0)
        page.services.datasets.store(page.workspace.id, page.visitor.user.id, request, file.file)

    return _changed(
        page, csrf, store, ("datasets",), lambda problem, status: _datasets(page, None, problem, status)
    )


def _announced(filename: str, size: int) -> DatasetCreateRequest:
    name, _, extension = filename.rpartition(".")
    return DatasetCreateRequest(file_name=name, file_size=size, extension=extension)


@router.post("/{workspace}/datasets/uploads", include_in_schema=False)
def start_upload(
    page: WorkspacePage,
    filename: Annotated[str, Form()] = "",
    size: Annotated[int, Form()] = 0,
    csrf: Csrf = "",
) -> Response:
    """Start an upload by the page's script: return where to finish it, and the URL and size of each part."""

    def start() -> Response:
        row, sent = page.services.datasets.create(
            page.workspace.id, page.visitor.user.id, _announced(filename, size)
        )
        parts = [(part.presigned_url, part.size) for part in sent.presigned_urls]
        return JSONResponse(
            {
                "finish": page.href("datasets", "uploads", row.id),
                "parts": parts or [(sent.presigned_url, size)],
            }
        )

    return _replied(page, csrf, start)


@router.post("/{workspace}/datasets/uploads/{dataset_id}", include_in_schema=False)
def finish_upload(
    page: WorkspacePage, dataset_id: str, etag: Annotated[tuple[str, ...], Form()] = (), csrf: Csrf = ""
) -> Response:
    """Complete the upload with the ETag of each part; without any, abort it."""

    def finish() -> Response:
        store = page.services.datasets
        if etag:
            parts = [CompletedPart(PartNumber=number, ETag=each) for number, each in enumerate(etag, 1)]
            store.complete(
                page.workspace.id, dataset_id, store.get(page.workspace.id, dataset_id).extension, parts
            )
        elif (row := store.get(page.workspace.id, dataset_id)).creator_id == page.visitor.user.id:
            store.abort(page.workspace.id, row.id)
        return Response(status_code=204)

    return _replied(page, csrf, finish)


def _replied(page: WorkspaceVisit, csrf: str, change: Callable[[], Response]) -> Response:
    """Return the reply to a script, or the problem as text."""
    if not is_own_form(page.request, csrf):
        return PlainTextResponse(STALE_FORM, 403)
    try:
        return change()
    except (ApiError, OsmosisError) as error:
        return PlainTextResponse(*problem_of(error))


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
    return _secrets(page, cursor, handed)


@router.post("/{workspace}/secrets", include_in_schema=False)
def set_secret(
    page: WorkspacePage,
    name: Annotated[str, Form(max_length=255)] = "",
    value: Annotated[str, Form(max_length=65_536)] = "",
    scope: Annotated[SecretScope, Form()] = "user",
    csrf: Csrf = "",
) -> Response:
    """Store a secret, or replace its value."""

    def put() -> None:
        if scope == "workspace" and page.role == "member":
            raise ApiError(403, "FORBIDDEN", "only an admin or owner can set a workspace secret.")
        page.services.secrets.put(page.workspace.id, page.visitor.user.id, name.strip(), value, scope)

    return _changed(
        page, csrf, put, ("secrets",), lambda problem, status: _secrets(page, problem=problem, status=status)
    )


def _changed(
    page: WorkspaceVisit,
    csrf: str,
    change: Callable[[], object],
    tab: Sequence[str],
    refused: Callable[[str, int], Response],
) -> Response:
    """Make a change that a list's form asks for, and return to the list; ``refused`` is the list with a problem."""
    if not is_own_form(page.request, csrf):
        return refused(STALE_FORM, 403)
    try:
        change()
    except (ApiError, OsmosisError) as error:
        problem, status = problem_of(error)
        return refused(problem, status)
    return RedirectResponse(page.href(*tab), status_code=303)


def _secrets(
    page: WorkspaceVisit,
    cursor: str | None = None,
    handed: str | None = None,
    *,
    problem: str = "",
    status: int = 200,
) -> Response:
    found = page.services.secrets.page(
        page.workspace.id, page.visitor.user.id, limit=_PER_PAGE, cursor=cursor
    )
    handouts = page.services.secrets.accesses(page.workspace.id, limit=_PER_PAGE, cursor=handed)
    listed = _listed(found, cursor)
    return page.page(
        "secrets.html",
        ("secrets",),
        status=status,
        problem=problem,
        found=listed["found"],
        address=lambda cursor: query_string({"cursor": cursor, "handed": handed}),
        handouts=_listed(handouts, handed)["found"],
        of_handouts=lambda handed: query_string({"cursor": cursor, "handed": handed}),
    )


@router.get("/{workspace}/integrations/git", include_in_schema=False)
def repositories_page(page: WorkspacePage) -> Response:
    """List connected repositories and their last syncs."""
    return _repositories(page)


@router.post("/{workspace}/integrations/git", include_in_schema=False)
def connect_repository(
    page: WorkspacePage, clone_url: Annotated[str, Form(max_length=2000)] = "", csrf: Csrf = ""
) -> Response:
    """Connect a repository that can be cloned over HTTPS or SSH."""

    def connect() -> None:
        if not page.visitor.user.is_admin:
            raise ApiError(
                403, "FORBIDDEN", "only an administrator of the platform can connect a repository."
            )
        # A path would be one of the platform's machine.
        if parse_clone_url(clone_url).transport not in ("https", "ssh"):
            raise OsmosisError("the clone URL must begin with https:// or ssh://.")
        address = checked_clone_url(clone_url)
        identity = identify_origin(address).identity
        page.services.mirrors.probe(identity, address)
        page.services.workspaces.connect_repository(page.workspace.id, identity, address)

    tab = ("integrations", "git")
    return _changed(page, csrf, connect, tab, lambda problem, status: _repositories(page, problem, status))


def _repositories(page: WorkspaceVisit, problem: str = "", status: int = 200) -> Response:
    found = page.services.workspaces.repositories(page.workspace.id)
    return page.page(
        "repositories.html",
        ("integrations", "git"),
        status=status,
        found=found,
        may_connect=page.visitor.user.is_admin,
        problem=problem,
    )


@router.get("/{workspace}/members", include_in_schema=False)
def members_page(page: WorkspacePage) -> Response:
    """List the members of the workspace and their permissions."""
    return _members(page)


@router.post("/{workspace}/members", include_in_schema=False)
def add_member(
    page: WorkspacePage,
    email: Annotated[str, Form(max_length=320)] = "",
    role: Annotated[Role, Form()] = "member",
    csrf: Csrf = "",
) -> Response:
    """Add a user to the workspace, or change a member's role."""

    def add() -> None:
        if page.role != "owner":
            raise ApiError(403, "FORBIDDEN", "only an owner of the workspace can add members.")
        user = page.services.accounts.find_user(email)
        if user.id == page.visitor.user.id:
            raise ConflictError("you cannot change your own role.")
        page.services.workspaces.add_member(page.workspace.id, user.id, role)

    return _changed(page, csrf, add, ("members",), lambda problem, status: _members(page, problem, status))


def _members(page: WorkspaceVisit, problem: str = "", status: int = 200) -> Response:
    order = list(ROLES)
    return page.page(
        "members.html",
        ("members",),
        status=status,
        problem=problem,
        found=page.services.workspaces.members(page.workspace.id),
        roles=order,
        rights=[
            (what, [order.index(role) <= order.index(least) for role in order]) for what, least in RIGHTS
        ],
        may_add=page.role == "owner",
    )


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
        return ([], "The rows cannot be read: the platform's file store is unavailable. Try again later.")
    except OSError as error:
        logger.error("%s", error)
        return [], f"The rows cannot be read: {error.strerror or 'disk error'}."
    except OsmosisError as error:
        return [], f"The rows cannot be read: {error.message}"


def _cell(value: Any) -> str:
    """Format a cell of a dataset in one line."""
    text = "–" if value is None else str(value)
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 1]}…"

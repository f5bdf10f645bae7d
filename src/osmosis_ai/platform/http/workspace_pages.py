"""What else a workspace has, behind the links that commands print: datasets, models, secrets, repositories, members."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from osmosis_ai.datasets.readers import iter_records
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStoreError
from osmosis_ai.platform.db.tables import DbDataset
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.browser_sessions import SignedIn
from osmosis_ai.platform.http.page_links import page_url
from osmosis_ai.platform.http.page_shell import page_router, render_page, shell_of
from osmosis_ai.platform.http.run_buttons import PageActions
from osmosis_ai.platform.http.workspace_visits import WorkspacePage, WorkspaceVisit
from osmosis_ai.platform.viewer.run_details import saved_adapter
from osmosis_ai.platform.workspaces import ROLES, Role
from osmosis_ai.ui.shell import NavItem
from osmosis_ai.viewer.queries import query_string
from osmosis_ai.viewer.source import ItemPage

logger = logging.getLogger("osmosis_ai.platform.http")
router = page_router(knows_its_words=True)

_PER_PAGE = 30
_LOG_LINES = 40
_ROWS_PER_PAGE = 25
_MOST_DIGITS = 12
_MOST_COLUMNS = 50
_CELL_CHARACTERS = 200

RIGHTS: Sequence[tuple[str, Role]] = (
    ("See runs, datasets, models, names of secrets, members", "member"),
    ("Submit, stop, retry, resume and submit runs again", "member"),
    ("Upload datasets, runs and rubric results; connect rollout servers", "member"),
    ("Deploy models, and take back what they deployed themselves", "member"),
    ("Delete what they made themselves", "member"),
    ("Set personal secrets, make API keys", "member"),
    ("Set secrets of the workspace", "admin"),
    ("Take back or delete what others made", "admin"),
)
"""What the REST API asks of whom: the lowest role that may."""


Cursor = Annotated[str | None, Query()]


@router.get("/", include_in_schema=False)
def first_page(request: Request, services: Services, visitor: SignedIn) -> Response:
    """Lead to the visitor's workspace, or show what there is to choose from."""
    if len(visitor.workspaces) == 1:
        return RedirectResponse(page_url(services, visitor.workspaces[0][0], "evals"), status_code=303)
    rows = [(workspace, page_url(services, workspace, "evals")) for workspace, _ in visitor.workspaces]
    shell = shell_of(request, services, user=visitor.user)
    return render_page(request, services, "workspaces.html", shell=shell, rows=rows)


@router.get("/{workspace}/datasets", include_in_schema=False)
def datasets_page(page: WorkspacePage, cursor: Cursor = None) -> Response:
    """List datasets."""
    found = page.services.datasets.page(page.workspace.id, limit=_PER_PAGE, cursor=cursor)
    return page.page("datasets.html", ("datasets",), **_listed(found, cursor))


@router.get("/{workspace}/datasets/{name}", include_in_schema=False)
def dataset_page(page: WorkspacePage, name: str, rows: Annotated[str, Query()] = "0") -> Response:
    """Show a dataset, with rows of it from one on."""
    first = _number_of_row(rows)
    record = page.services.datasets.get(page.workspace.id, name)
    dataset = record.row
    last = max((dataset.row_count or 0) - 1, 0)
    if first > last:
        raise NotFoundError(f"the dataset '{dataset.name}' has no row {first:,}: its last is {last:,}.")
    records, unread = _rows(page, dataset, first)
    found = list(dict.fromkeys(key for each in records for key in each))
    columns = found[:_MOST_COLUMNS]
    return page.page(
        "dataset.html",
        ("datasets",),
        crumbs=[NavItem("Datasets", page.href("datasets"))],
        record=record,
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
    buttons = PageActions(page).adapter_buttons(saved_adapter(found.model))
    crumbs = [NavItem("Models", page.href("models"))]
    return page.page("model.html", ("models",), crumbs=crumbs, found=found, buttons=buttons)


@router.get("/{workspace}/secrets", include_in_schema=False)
def secrets_page(page: WorkspacePage, cursor: Cursor = None, handed: Cursor = None) -> Response:
    """List the names of secrets, and which of them workers were handed; nobody sees a value again."""
    found = page.services.secrets.page(
        page.workspace.id, page.visitor.user.id, limit=_PER_PAGE, cursor=cursor
    )
    handouts = page.services.secret_access.page(page.workspace.id, limit=_PER_PAGE, cursor=handed)
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
    """List connected repositories, and how the last syncs went."""
    found = page.services.workspaces.repositories(page.workspace.id)
    return page.page("repositories.html", ("integrations", "git"), found=found)


@router.get("/{workspace}/members", include_in_schema=False)
def members_page(page: WorkspacePage) -> Response:
    """List the members of the workspace and their permissions."""
    found = page.services.workspaces.members(page.workspace.id)
    order = list(ROLES)
    rights = [(what, [order.index(role) <= order.index(least) for role in order]) for what, least in RIGHTS]
    return page.page("members.html", ("members",), found=found, roles=order, rights=rights)


def _listed(found: ItemPage[Any], cursor: str | None) -> dict[str, Any]:
    """Return what a list shows, and what leads to the pages around it."""
    if cursor and not found.items:
        raise NotFoundError("nothing stands in the list any more where this page began.")
    return {"found": found, "address": lambda cursor: query_string({"cursor": cursor})}


def _number_of_row(given: str) -> int:
    """Return the row that an address begins with."""
    if not (given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS):
        raise OsmosisError(f"'rows' is the number of a row, from 0 on, and not {given[:40]!r}.")
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
                # Where it lies on the platform's disk is nothing to a visitor.
                said = error.message.replace(str(file), f"{dataset.name}.{dataset.extension}")
                return [], f"Its rows cannot be read: {said}"
    except BlobStoreError as error:
        # Where the files are is the operator's alone.
        logger.error("%s", error.message)
        return (
            [],
            "Its rows cannot be read now: the platform cannot get at its stored files; try again a little later.",
        )
    except OSError as error:
        logger.error("%s", error)
        return [], f"Its rows cannot be read: {error.strerror or 'the disk does not answer'}."
    except OsmosisError as error:
        return [], f"Its rows cannot be read: {error.message}"


def _cell(value: Any) -> str:
    """Return a cell of a dataset in a line."""
    text = "–" if value is None else str(value)
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 1]}…"

"""The pages behind the links that commands print: the lists of a workspace, and what is in them.

They read and never change anything, but for the API keys, which only a person can be given. What is not the
visitor's to see is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.db.tables import DbDataset, DbRun, DbWorkspace
from osmosis_ai.platform.http import page_contents as contents
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.browser_sessions import SignedIn, Visitor
from osmosis_ai.platform.http.page_links import RUN_PAGES, page_url
from osmosis_ai.platform.http.page_shell import STALE_FORM, is_own_form, page_router, render_page
from osmosis_ai.platform.http.paging import PageParams
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.read.merging import family_of, merge
from osmosis_ai.platform.runs.read.training_curves import read_curves
from osmosis_ai.platform.secrets import SECRET_SCOPES
from osmosis_ai.platform.services import PlatformServices

router = page_router()

_PER_PAGE = 30
_LOG_LINES = 40
_LAST_PAGE = 10**9
# The pages of a workspace, in the order of their tabs.
_TABS = {
    ("evals",): "Evaluations",
    ("training",): "Training",
    ("datasets",): "Datasets",
    ("models",): "Models",
    ("secrets",): "Secrets",
    ("integrations", "git"): "Repositories",
    ("api-keys",): "API keys",
}


@dataclass(frozen=True)
class _WorkspacePage:
    """One page of one workspace, as one visitor asked for it."""

    request: Request
    services: PlatformServices
    visitor: Visitor
    workspace: DbWorkspace

    def listed(self, tab: tuple[str, ...], table: contents.PageTable, **values: Any) -> Response:
        """Return the page of a tab."""
        shown = {"table": table, "page": 0, "more": False, **values}
        return self._page("list.html", tab, title=_TABS[tab], **shown)

    def described(self, tab: tuple[str, ...], thing: contents.Described) -> Response:
        """Return the page of something under a tab."""
        return self._page("described.html", tab, title=thing.title, thing=thing)

    def _page(self, template: str, tab: tuple[str, ...], **values: Any) -> Response:
        return render_page(
            self.request,
            self.services,
            template,
            visitor=self.visitor,
            workspace=self.workspace,
            tabs=_TABS,
            tab=tab,
            link=lambda segments: page_url(self.services, self.workspace, *segments),
            **values,
        )


class _NoSuchPage(NotFoundError):
    """Nothing the visitor may see is at this path."""


def _workspace_page(
    request: Request, services: Services, visitor: SignedIn, workspace: str
) -> _WorkspacePage:
    found = visitor.workspace(workspace)
    if found is None:
        raise _NoSuchPage(f"you are in no workspace called '{workspace[:100]}'.")
    return _WorkspacePage(request, services, visitor, found)


WorkspacePage = Annotated[_WorkspacePage, Depends(_workspace_page)]


async def _page_params(page: Annotated[int, Query(ge=0, le=_LAST_PAGE)] = 0) -> PageParams:
    return PageParams(_PER_PAGE, page * _PER_PAGE)


Paging = Annotated[PageParams, Depends(_page_params)]


def _pager(paging: PageParams, total: int, shown: int) -> dict[str, Any]:
    return {"page": paging.offset // _PER_PAGE, "more": paging.offset + shown < total}


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
def first_page(request: Request, services: Services, visitor: SignedIn) -> Response:
    """Lead to the visitor's workspace, or show what there is to choose from."""
    if len(visitor.workspaces) == 1:
        return RedirectResponse(page_url(services, visitor.workspaces[0][0], "evals"), status_code=303)
    rows = [(workspace, page_url(services, workspace, "evals")) for workspace, _ in visitor.workspaces]
    return render_page(request, services, "workspaces.html", visitor=visitor, rows=rows)


@router.get("/{workspace}", response_class=HTMLResponse, include_in_schema=False)
def workspace_first_page(page: WorkspacePage) -> Response:
    """Lead to the first list."""
    return RedirectResponse(page_url(page.services, page.workspace, "evals"), status_code=303)


@router.get("/{workspace}/evals", response_class=HTMLResponse, include_in_schema=False)
def eval_runs_page(page: WorkspacePage, paging: Paging) -> Response:
    """List evaluation runs."""
    return _runs_page(page, "eval", paging)


@router.get("/{workspace}/evals/{name}", response_class=HTMLResponse, include_in_schema=False)
def eval_run_page(page: WorkspacePage, name: str) -> Response:
    """Show an evaluation run."""
    found = page.services.eval_runs.get(page.workspace.id, name)
    log = page.services.logs.page(found.run.id, limit=_LOG_LINES).logs
    family = family_of(page.services.db, found.run)
    related: list[tuple[str, contents.Cell]] = []
    if found.run.retry_of_id is not None or family.retries:
        related += contents.retry_facts(found.run, family, merge(page.services.db, family))
    return page.described(
        ("evals",),
        contents.described_run(found, log=log, has_dataset=_has_dataset(page, found.run), related=related),
    )


@router.get("/{workspace}/training", response_class=HTMLResponse, include_in_schema=False)
def training_runs_page(page: WorkspacePage, paging: Paging) -> Response:
    """List training runs."""
    return _runs_page(page, "training", paging)


@router.get("/{workspace}/training/{name}", response_class=HTMLResponse, include_in_schema=False)
def training_run_page(page: WorkspacePage, name: str) -> Response:
    """Show a training run."""
    found = page.services.training_runs.get(page.workspace.id, name)
    log = page.services.logs.page(found.run.id, limit=_LOG_LINES).logs
    curves = read_curves(page.services.db, found.run.id)
    resumable = page.services.resumption.resumable(found.run)
    thing = contents.described_run(
        found, log=log, curves=curves, resumable=resumable, has_dataset=_has_dataset(page, found.run)
    )
    return page.described(("training",), thing)


@router.get("/{workspace}/datasets", response_class=HTMLResponse, include_in_schema=False)
def datasets_page(page: WorkspacePage, paging: Paging) -> Response:
    """List datasets."""
    found, total = page.services.datasets.list(page.workspace.id, limit=paging.limit, offset=paging.offset)
    return page.listed(("datasets",), contents.datasets_table(found), **_pager(paging, total, len(found)))


@router.get("/{workspace}/datasets/{name}", response_class=HTMLResponse, include_in_schema=False)
def dataset_page(page: WorkspacePage, name: str) -> Response:
    """Show a dataset."""
    record = page.services.datasets.get(page.workspace.id, name)
    log = page.services.logs.page(record.row.id, limit=_LOG_LINES).logs
    return page.described(("datasets",), contents.described_dataset(record, log=log))


@router.get("/{workspace}/models", response_class=HTMLResponse, include_in_schema=False)
def models_page(page: WorkspacePage, paging: Paging) -> Response:
    """List trained adapters."""
    found, total, _ = page.services.lora_models.page(
        page.workspace.id, limit=paging.limit, offset=paging.offset
    )
    return page.listed(("models",), contents.models_table(found), **_pager(paging, total, len(found)))


@router.get("/{workspace}/models/{name}", response_class=HTMLResponse, include_in_schema=False)
def model_page(page: WorkspacePage, name: str) -> Response:
    """Show a trained adapter."""
    found = page.services.lora_models.get(page.workspace.id, name)
    return page.described(("models",), contents.described_model(found))


@router.get("/{workspace}/secrets", response_class=HTMLResponse, include_in_schema=False)
def secrets_page(page: WorkspacePage, paging: Paging) -> Response:
    """List the names of secrets."""
    found, total = page.services.secrets.page(
        page.workspace.id, page.visitor.user.id, SECRET_SCOPES, limit=paging.limit, offset=paging.offset
    )
    return page.listed(("secrets",), contents.secrets_table(found), **_pager(paging, total, len(found)))


@router.get("/{workspace}/integrations/git", response_class=HTMLResponse, include_in_schema=False)
def repositories_page(page: WorkspacePage) -> Response:
    """List connected repositories."""
    found = page.services.workspaces.repositories(page.workspace.id)
    return page.listed(("integrations", "git"), contents.repositories_table(found))


@router.get("/{workspace}/api-keys", response_class=HTMLResponse, include_in_schema=False)
def api_keys_page(page: WorkspacePage) -> Response:
    """List the visitor's keys for served models."""
    return _keys(page)


@router.post("/{workspace}/api-keys", response_class=HTMLResponse, include_in_schema=False)
def change_api_keys(
    page: WorkspacePage,
    action: Annotated[Literal["make", "revoke"], Form()],
    name: Annotated[str, Form(max_length=100)] = "",
    token_id: Annotated[str, Form(max_length=64)] = "",
    csrf: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """Make a key and show it, this once; or revoke one."""
    if not is_own_form(page.request, csrf):
        return _keys(page, problem=STALE_FORM)
    accounts, user = page.services.accounts, page.visitor.user
    if action == "revoke":
        if token_id not in {token.id for token in _own_keys(page)}:
            return _keys(page, problem="There is no such key of yours.")
        accounts.revoke_token(token_id, user_id=user.id)
        return _keys(page)
    _, plain = accounts.create_token(
        user.id, "api_key", name=name.strip() or None, workspace_id=page.workspace.id
    )
    return _keys(page, made=plain)


def _runs_page(page: _WorkspacePage, kind: RunKind, paging: PageParams) -> Response:
    found, total = page.services.runs_of(kind).page(
        page.workspace.id, limit=paging.limit, offset=paging.offset
    )
    table = contents.runs_table(kind, found)
    return page.listed((RUN_PAGES[kind],), table, **_pager(paging, total, len(found)))


def _has_dataset(page: _WorkspacePage, run: DbRun) -> bool:
    """Tell whether the dataset of a run is still there."""
    with page.services.db.session() as session:
        return run.dataset_id is not None and session.get(DbDataset, run.dataset_id) is not None


def _keys(page: _WorkspacePage, *, made: str = "", problem: str = "") -> Response:
    keys = _own_keys(page)
    return page.listed(
        ("api-keys",),
        contents.keys_table(keys),
        keys=keys,
        made=made,
        problem=problem,
    )


def _own_keys(page: _WorkspacePage) -> list[Any]:
    now = page.services.clock.now()
    return [
        token
        for token, _ in page.services.accounts.tokens(user_id=page.visitor.user.id)
        if token.kind == "api_key"
        and token.workspace_id in (None, page.workspace.id)
        and token.revoked_at is None
        and (token.expires_at is None or token.expires_at > now)
    ]

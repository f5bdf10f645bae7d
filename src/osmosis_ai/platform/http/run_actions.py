"""What the buttons of a run's page lead to: the page that asks, and the POST that does it."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.http.action_proposals import (
    ActionProposal,
    note_in_log,
    propose,
    repository_of,
    scope_of,
)
from osmosis_ai.platform.http.csrf import MAX_TOKEN_CHARS, STALE_FORM, is_own_form
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.models import deploy_lora_model, undeploy_lora_model
from osmosis_ai.platform.http.page_shell import page_router
from osmosis_ai.platform.http.run_buttons import ACTION_TEXTS, RUN_ACTIONS, RunAction
from osmosis_ai.platform.http.workspace_visits import WorkspacePage, WorkspaceVisit
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.viewer.access import SECTIONS

router = page_router(knows_its_words=True)

_REMEMBERED_FORMS = 1000

Csrf = Annotated[str, Form(max_length=MAX_TOKEN_CHARS)]
Once = Annotated[str, Form(max_length=64)]


class _SentForms:
    """What forms have done, so that one that is sent twice does nothing more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[str, threading.Lock | str] = OrderedDict()

    def once(self, form: str, call: Callable[[], str]) -> str:
        """Return what ``call`` gave for this form, now or before; who sends it meanwhile waits."""
        with self._lock:
            working = self._results.setdefault(form, threading.Lock())
            while len(self._results) > _REMEMBERED_FORMS:
                self._results.popitem(last=False)
        if isinstance(working, str):
            return working
        with working:
            known = self._results.get(form)
            if isinstance(known, str):
                return known
            result = call()
            with self._lock:
                self._results[form] = result
            return result


_sent = _SentForms()


def _asking(kind: RunKind, action: RunAction) -> Callable[..., Response]:
    def ask(page: WorkspacePage, name: str) -> Response:
        """Say what a button would do."""
        run = page.services.runs_of(kind).get(page.workspace.id, name).run
        try:
            return _confirm(page, run, action, propose(page, run, action))
        except (ApiError, OsmosisError) as error:
            return _confirm(page, run, action, None, problem=_problem(error), status=_status(error))

    return ask


def _doing(kind: RunKind, action: RunAction) -> Callable[..., Response]:
    def do(page: WorkspacePage, name: str, csrf: Csrf = "", once: Once = "") -> Response:
        """Do it, and lead to the run that it is about."""
        run = page.services.runs_of(kind).get(page.workspace.id, name).run
        if not is_own_form(page.request, csrf) or not once:
            return _confirm(page, run, action, None, problem=STALE_FORM, status=403)
        form = f"{page.visitor.principal.token.id} {run.id} {action} {once}"
        try:
            led_to = _sent.once(form, lambda: (propose(page, run, action).do() or run).name)
        except NotFoundError:
            raise
        except (ApiError, OsmosisError) as error:
            return _confirm(page, run, action, None, problem=_problem(error), status=_status(error))
        return RedirectResponse(page.href(SECTIONS[kind], led_to), status_code=303)

    return do


for _kind, _actions in RUN_ACTIONS.items():
    for _action in _actions:
        _path = f"/{{workspace}}/{SECTIONS[_kind]}/{{name}}/{_action}"
        router.add_api_route(_path, _asking(_kind, _action), methods=["GET"], include_in_schema=False)
        router.add_api_route(_path, _doing(_kind, _action), methods=["POST"], include_in_schema=False)


@router.get("/{workspace}/models/{name}/deploy", include_in_schema=False)
@router.get("/{workspace}/models/{name}/undeploy", include_in_schema=False)
def where_the_buttons_are(page: WorkspacePage, name: str) -> Response:
    """Lead to the adapter: who has to sign in after pressing one of its buttons comes back to this address."""
    return RedirectResponse(page.href("models", name), status_code=303)


@router.post("/{workspace}/models/{name}/deploy", include_in_schema=False)
def deploy(page: WorkspacePage, name: str, csrf: Csrf = "") -> Response:
    """Have an adapter served; once more changes nothing."""
    return _change_deployment(page, name, "deploy", csrf)


@router.post("/{workspace}/models/{name}/undeploy", include_in_schema=False)
def undeploy(page: WorkspacePage, name: str, csrf: Csrf = "") -> Response:
    """Have an adapter served no longer; once more changes nothing."""
    return _change_deployment(page, name, "undeploy", csrf)


def _change_deployment(
    page: WorkspaceVisit, name: str, action: Literal["deploy", "undeploy"], csrf: str
) -> Response:
    found = page.services.lora_models.get(page.workspace.id, name)
    if not is_own_form(page.request, csrf):
        return page.message("Models", STALE_FORM, status=403, tab=("models",))
    was_active = found.model.deployment_status == "active"
    try:
        change = deploy_lora_model if action == "deploy" else undeploy_lora_model
        change(page.services, scope_of(page, repository_of(page, None)), name)
    except (ApiError, OsmosisError) as error:
        return page.message("Models", _problem(error), status=_status(error), tab=("models",))
    if was_active != (action == "deploy"):
        note_in_log(page, found.model.run_id, f"{action}ed `{name}`")
    return RedirectResponse(page.href("models", name), status_code=303)


def _confirm(
    page: WorkspaceVisit,
    run: DbRun,
    action: RunAction,
    proposal: ActionProposal | None,
    *,
    problem: str = "",
    status: int = 200,
) -> HTMLResponse:
    section = SECTIONS["eval" if run.kind == "eval" else "training"]
    return page.page(
        "confirm.html",
        (section,),
        status=status,
        title=f"{ACTION_TEXTS[action]}: {run.name}",
        action_text=ACTION_TEXTS[action],
        proposal=proposal,
        problem=problem,
        once=secrets.token_hex(16),
        back=page.href(section, run.name),
    )


def _status(error: ApiError | OsmosisError) -> int:
    """Return 403 for missing permissions, as the API does, and 409 for everything that is currently impossible."""
    return 403 if isinstance(error, ApiError) and error.status == 403 else 409


def _problem(error: ApiError | OsmosisError) -> str:
    message = str(error.message)
    issues = [
        issue if isinstance(issue, str) else f"{issue['key']}: {issue['message']}"
        for issue in getattr(error, "issues", ())
    ]
    hint = getattr(error, "hint", None)
    return " ".join(
        filter(None, [message[:1].upper() + message[1:], "; ".join(issues), f"({hint})" if hint else ""])
    )

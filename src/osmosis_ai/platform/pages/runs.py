"""The pages of runs: the viewer's pages over a workspace's runs, and the actions behind their buttons.

A button links to a page that describes the action and asks for confirmation. The form on that page performs the action.
Both use the functions of the REST API's routes.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope as AsgiScope

from osmosis_ai.api.models.runs import EvalRetry
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.http.authentication import Scope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import root_path, workspace_path
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.pages.shell import (
    STALE_FORM,
    TABS,
    Csrf,
    PageRoute,
    WorkspacePage,
    WorkspaceVisit,
    is_own_form,
    page_router,
    workspace_visit,
)
from osmosis_ai.platform.routes.eval_runs import plan_retry
from osmosis_ai.platform.routes.models import deploy_lora_model, undeploy_lora_model
from osmosis_ai.platform.routes.runs import refusals
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, OPEN, UNFINISHED, RunKind
from osmosis_ai.platform.runs.requests import EvalRequest, TrainingRequest
from osmosis_ai.platform.runs.submitter import CheckedSubmission
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.training.runs.curves import SavedAdapter
from osmosis_ai.ui.numbers import money
from osmosis_ai.ui.run_numbers import execution_rows
from osmosis_ai.viewer.access import SECTIONS, RunButton, Viewing
from osmosis_ai.viewer.routes import nothing_here, viewer_router
from osmosis_ai.viewer.source import RunEntry

RunAction = Literal["stop", "retry", "resume", "resubmit"]
ACTION_TEXTS: Mapping[RunAction, str] = {
    "stop": "Stop",
    "retry": "Retry failed",
    "resume": "Resume",
    "resubmit": "Submit again",
}
RUN_ACTIONS: Mapping[RunKind, Sequence[RunAction]] = {
    "eval": ("stop", "retry", "resubmit"),
    "training": ("stop", "resume", "resubmit"),
}
_REMEMBERED_FORMS = 1000
Once = Annotated[str, Form(max_length=64)]

actions = page_router(strict=True)


# -- buttons -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageActions:
    """The buttons of the viewer's pages: what a visitor may do, and why not the rest."""

    visit: WorkspaceVisit

    @cached_property
    def _deployers(self) -> Mapping[str, str | None]:
        # Few adapters are deployed at a time.
        return self.visit.services.lora_models.deployers(self.visit.workspace.id)

    def buttons(self, run: RunEntry) -> Sequence[RunButton]:
        """Return the buttons of a run."""
        if run.kind == "rubric":
            return ()
        return [
            RunButton(
                ACTION_TEXTS[name],
                self.visit.href(SECTIONS[run.kind], run.name, name),
                self._refused(name, run),
            )
            for name in RUN_ACTIONS[run.kind]
        ]

    def _refused(self, action: RunAction, run: RunEntry) -> str | None:
        """Return why an action makes no sense for a run, or is impossible now."""
        if action == "resubmit":
            return None
        ended = run.status not in OPEN
        if action == "stop":
            if ended:
                return f"the run has ended ({run.status})"
            return "the run is stopping" if run.stopping else None
        if not ended or (action == "resume" and run.status not in UNFINISHED):
            return f"the run is {run.status}"
        line, services = run.headline, self.visit.services
        if action == "retry" and line is not None and line.scored + line.skipped >= line.planned > 0:
            return "every attempt has a score"
        try:
            if action == "resume":
                services.reopener.plan_resume(services.runs.get(self.visit.workspace.id, "training", run.id))
            else:
                services.reopener.require_retryable(run.id)
        except OsmosisError as error:
            return error.message
        return None

    def adapter_buttons(self, adapter: SavedAdapter) -> Sequence[RunButton]:
        """Return the buttons of an adapter."""
        name = "undeploy" if adapter.deployment == "active" else "deploy"
        refused = None
        is_own = self._deployers.get(adapter.name) == self.visit.visitor.user.id
        if name == "undeploy" and self.visit.role == "member" and not is_own:
            refused = "another user deployed it; undeploying requires the role 'admin'"
        return [
            RunButton(name.capitalize(), self.visit.href("models", adapter.name, name), refused, posts=True)
        ]


# -- confirmations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confirmation:
    """The effect of an action; ``do`` does it, and returns the run to show if that is another one."""

    sentence: str
    facts: Sequence[tuple[str, Any]] = ()
    config: Sequence[tuple[str, Any]] = ()
    do: Callable[[], object] = field(default=lambda: None, repr=False)


def _stop(page: WorkspaceVisit, run: DbRun) -> Confirmation:
    if run.status not in OPEN:
        raise ConflictError(f"the run '{run.name}' has already ended ({run.status}).")
    done = run.progress or {}
    facts = [("Progress", f"{done['completed']:,} of {done.get('total') or 0:,} attempts")] if done else []
    after = (
        "You can resume the run from its last checkpoint, if it has one."
        if run.kind == "training"
        else "A retry runs the missing attempts."
    )
    stop = partial(page.services.runs.stop, page.workspace.id, run.kind, run.id, by=_by(page))
    return Confirmation(f"The results so far are kept. {after}", facts, do=stop)


def _retry(page: WorkspaceVisit, run: DbRun) -> Confirmation:
    scope = scope_of(page, run)
    with refusals(page.services, scope):
        planned = plan_retry(page.services, scope, run.id, EvalRetry())

    def retry() -> DbRun:
        with refusals(page.services, scope):
            return page.services.reopener.retry(planned, by=_by(page))

    repeated = planned.repeated
    failed = sum(repeated.failed.values())
    facts = [
        ("Attempts to repeat", f"{repeated.samples:,} of {repeated.planned:,}"),
        (
            "Reasons",
            f"{failed:,} failed, {repeated.no_reward:,} without a reward, {repeated.missing:,} not started",
        ),
        ("Commit", run.commit_sha),
        *execution_rows(run.request.get("advanced_config"), planned.budget),
        ("Estimated maximum cost", _cost(run, repeated.samples)),
    ]
    return Confirmation(
        "Attempts without a score run again on the same commit and rows. "
        "Their new results replace the old ones.",
        facts,
        do=retry,
    )


def _resume(page: WorkspaceVisit, run: DbRun) -> Confirmation:
    step, _ = page.services.reopener.plan_resume(run)

    def resume() -> None:
        with refusals(page.services, scope_of(page, run)):
            page.services.reopener.resume(run, by=_by(page))

    return Confirmation(
        f"The run resumes from its last checkpoint (step {step}). Later steps are repeated.", do=resume
    )


def _resubmit(page: WorkspaceVisit, run: DbRun) -> Confirmation:
    if run.imported is not None:
        raise ConflictError(
            f"the run '{run.name}' was imported: submit its config with `{COMMAND_GROUPS[run.kind]} submit`."
        )
    scope = scope_of(page, run)
    with refusals(page.services, scope):
        checked = page.services.submitter.check(run.kind, scope.repository, scope.user, run.request)

    def resubmit() -> DbRun:
        with refusals(page.services, scope):
            new = page.services.submitter.create(checked)
        _log(page, new.id, f"resubmitted {run.name}")
        _log(page, run.id, f"resubmitted this run as {new.name}")
        return new

    config = [
        (f"{section.removesuffix('_config')}.{key}", value if isinstance(value, str) else repr(value))
        for section, keys in run.request.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    ]
    return Confirmation(
        "Submits a new run with the same configuration, on the current commit and dataset.",
        _new_run_facts(run, checked),
        config,
        do=resubmit,
    )


def _new_run_facts(run: DbRun, checked: CheckedSubmission) -> list[tuple[str, Any]]:
    rows = len(checked.rows.rows())
    change = "unchanged" if checked.commit_sha == run.commit_sha else "changed"
    facts: list[tuple[str, Any]] = [
        ("Commit", f"{checked.commit_sha} ({change})"),
        ("Rows", f"{rows:,} of {checked.rows.total_rows:,}"),
        *execution_rows(run.request.get("advanced_config")),
    ]
    if isinstance(checked.request, EvalRequest):
        samples = rows * checked.request.evaluation.n
        facts += [("Attempts", f"{samples:,}"), ("Estimated maximum cost", _cost(run, samples))]
    elif isinstance(checked.request, TrainingRequest):
        settings = checked.request.settings
        steps = settings.total_epochs * math.ceil(rows / settings.rollout_batch_size)
        steps = min(steps, settings.max_steps or steps)
        samples = steps * settings.rollout_batch_size * settings.n_samples_per_prompt
        facts += [
            ("Maximum steps", f"{steps:,}"),
            ("Maximum training attempts", f"{samples:,} (without validations)"),
            ("Cost", "unknown (the platform serves the model; costs of other models are not counted)"),
        ]
    return facts


def _cost(run: DbRun, samples: int) -> str:
    """Estimate the cost of samples from the mean of a run's; failed samples count in full."""
    cost = ((run.metrics or {}).get("estimates") or {}).get("cost_usd") or {}
    total, known = cost.get("total"), cost.get("known_samples")
    if total is None or not known:
        return "unknown (the run recorded no prices)"
    return f"{money(total / known * samples)}, based on the mean of {known:,} attempts of {run.name}"


def scope_of(page: WorkspaceVisit, run: DbRun | None) -> Scope:
    """Return the scope of the REST API for a run's repository, or for any of the workspace's."""
    for repository in page.services.workspaces.repositories(page.workspace.id):
        if run is None or repository.id == run.repository_id:
            return Scope(page.visitor.principal, page.workspace, repository, page.role)
    raise ConflictError(
        "the repository is no longer connected.", hint="connect it with `osmosis platform connect`"
    )


def _by(page: WorkspaceVisit) -> str:
    return f"{page.visitor.user.email} (on the run's page)"


def _log(page: WorkspaceVisit, run_id: str, what: str) -> None:
    page.services.logs.append(
        run_id, [LogLine(f"{page.visitor.user.email} {what} (on the run's page)", step="run")]
    )


# -- actions -----------------------------------------------------------------------------------------


class _SentForms:
    """The results of forms, so that sending one twice does nothing more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[str, threading.Lock | str] = OrderedDict()

    def once(self, form: str, call: Callable[[], str]) -> str:
        """Return the result of ``call`` for this form; concurrent senders wait for it."""
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
_DESCRIBE: Mapping[RunAction, Callable[[WorkspaceVisit, DbRun], Confirmation]] = {
    "stop": _stop,
    "retry": _retry,
    "resume": _resume,
    "resubmit": _resubmit,
}


def _add_action(kind: RunKind, action: RunAction) -> None:
    describe = _DESCRIBE[action]
    path = f"/{{workspace}}/{SECTIONS[kind]}/{{name}}/{action}"

    @actions.get(path, include_in_schema=False)
    def ask(page: WorkspacePage, name: str) -> Response:
        run = page.services.runs.get(page.workspace.id, kind, name)
        try:
            return _confirm(page, run, action, describe(page, run))
        except (ApiError, OsmosisError) as error:
            return _confirm(page, run, action, error)

    @actions.post(path, include_in_schema=False)
    def do(page: WorkspacePage, name: str, csrf: Csrf = "", once: Once = "") -> Response:
        run = page.services.runs.get(page.workspace.id, kind, name)
        if not is_own_form(page.request, csrf) or not once:
            return _confirm(page, run, action, ApiError(403, "STALE_FORM", STALE_FORM))

        def act() -> str:
            shown = describe(page, run).do()
            return shown.name if isinstance(shown, DbRun) else run.name

        try:
            shown = _sent.once(f"{page.visitor.principal.token.id} {run.id} {action} {once}", act)
        except NotFoundError:
            raise
        except (ApiError, OsmosisError) as error:
            return _confirm(page, run, action, error)
        return RedirectResponse(page.href(SECTIONS[kind], shown), status_code=303)


for _run_kind, _names in RUN_ACTIONS.items():
    for _name in _names:
        _add_action(_run_kind, _name)


@actions.get("/{workspace}/models/{name}/deploy", include_in_schema=False)
@actions.get("/{workspace}/models/{name}/undeploy", include_in_schema=False)
def deployment_page(page: WorkspacePage, name: str) -> Response:
    """Redirect to the adapter: a user who must sign in after pressing a button returns to this address."""
    return RedirectResponse(page.href("models", name), status_code=303)


@actions.post("/{workspace}/models/{name}/deploy", include_in_schema=False)
@actions.post("/{workspace}/models/{name}/undeploy", include_in_schema=False)
def change_deployment(page: WorkspacePage, name: str, csrf: Csrf = "") -> Response:
    """Deploy or undeploy an adapter; repeating it changes nothing."""
    action = page.request.url.path.rpartition("/")[2]
    found = page.services.lora_models.get(page.workspace.id, name)
    if not is_own_form(page.request, csrf):
        return page.message("Models", STALE_FORM, status=403, tab=("models",))
    was_active = found.deployment_status == "active"
    try:
        change = deploy_lora_model if action == "deploy" else undeploy_lora_model
        change(page.services, scope_of(page, None), name)
    except (ApiError, OsmosisError) as error:
        problem, status = problem_of(error)
        return page.message("Models", problem, status=status, tab=("models",))
    if was_active != (action == "deploy"):
        _log(page, found.run_id, f"{action}ed `{name}`")
    return RedirectResponse(page.href("models", name), status_code=303)


def _confirm(
    page: WorkspaceVisit, run: DbRun, action: RunAction, shown: Confirmation | ApiError | OsmosisError
) -> HTMLResponse:
    problem, status = ("", 200) if isinstance(shown, Confirmation) else problem_of(shown)
    section = SECTIONS[run.kind]
    return page.page(
        "confirm.html",
        (section,),
        status=status,
        title=f"{ACTION_TEXTS[action]}: {run.name}",
        action_text=ACTION_TEXTS[action],
        confirmation=shown if isinstance(shown, Confirmation) else None,
        problem=problem,
        once=secrets.token_hex(16),
        back=page.href(section, run.name),
    )


def problem_of(error: ApiError | OsmosisError) -> tuple[str, int]:
    """Return an error's text and status: 403 for missing permissions, 409 for everything that is now impossible."""
    message = str(error.message)
    issues = [
        issue if isinstance(issue, str) else f"{issue['key']}: {issue['message']}"
        for issue in getattr(error, "issues", ())
    ]
    hint = getattr(error, "hint", None)
    parts = [message[:1].upper() + message[1:], "; ".join(issues), f"({hint})" if hint else ""]
    is_forbidden = isinstance(error, ApiError) and error.status == 403
    return " ".join(filter(None, parts)), 403 if is_forbidden else 409


# -- the viewer's pages ------------------------------------------------------------------------------


def _viewing(visit: Annotated[WorkspaceVisit, Depends(workspace_visit)]) -> Viewing:
    """Return what a visitor may see of a workspace (a dependency)."""
    services = visit.services
    path = visit.request.scope["path"].removeprefix(root_path(services))
    segment = (path.split("/", 3)[2:3] or [""])[0]

    return Viewing(
        source=PlatformSource(services, visit.workspace.id),
        shell=visit.shell((segment,) if (segment,) in TABS else ()),
        root=workspace_path(services, visit.workspace),
        actions=PageActions(visit),
    )


class _AnyPageRoute(PageRoute):
    """Catch-all for browsers; programs get their 404 from the platform itself."""

    def matches(self, scope: AsgiScope) -> tuple[Match, AsgiScope]:
        is_page = scope["type"] == "http" and scope["method"] == "GET"
        if not is_page or scope["path"].startswith("/api/"):
            return Match.NONE, {}
        is_browser = "text/html" in Headers(scope=scope).get("accept", "")
        return super().matches(scope) if is_browser else (Match.NONE, {})


def _nothing(request: Request, view: Annotated[Viewing, Depends(_viewing)]) -> Response:
    return nothing_here(view, request.url.path)


router = page_router()
router.include_router(actions)
router.include_router(
    viewer_router(_viewing, home="", has_rubrics=False, route_class=PageRoute), prefix="/{workspace}"
)
router.add_api_route(
    "/{workspace}/{path:path}",
    _nothing,
    include_in_schema=False,
    response_model=None,
    route_class_override=_AnyPageRoute,
)

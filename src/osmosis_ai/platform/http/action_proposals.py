"""What a button of a run would do, said before it is done: by the functions that the REST API's routes call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.api.wire.runs import EvalRetry
from osmosis_ai.config.execution import read_execution
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.tables import DbRepository, DbRun
from osmosis_ai.platform.http.authentication import Scope
from osmosis_ai.platform.http.eval_retries import plan_retry
from osmosis_ai.platform.http.run_buttons import RunAction
from osmosis_ai.platform.http.runs import refusals, stop_run
from osmosis_ai.platform.http.workspace_visits import WorkspaceVisit
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, OPEN, RunKind
from osmosis_ai.platform.runs.submit.submitter import CheckedSubmission, RunSubmission
from osmosis_ai.platform.runs.submit.training_request import TrainingRequest
from osmosis_ai.ui.numbers import money


@dataclass(frozen=True)
class ActionProposal:
    """What an action would do."""

    sentence: str
    facts: Sequence[tuple[str, Any]] = ()
    config: Sequence[tuple[str, Any]] = ()
    do: Callable[[], DbRun | None] = field(default=lambda: None, repr=False)


def propose(page: WorkspaceVisit, run: DbRun, action: RunAction) -> ActionProposal:
    """Return what an action would do now."""
    kind: RunKind = "eval" if run.kind == "eval" else "training"
    if action == "stop":
        return _stopping(page, run, kind)
    if action == "retry":
        return _retrying(page, run)
    if action == "resume":
        return _resuming(page, run)
    return _resubmitting(page, run, kind)


def _stopping(page: WorkspaceVisit, run: DbRun, kind: RunKind) -> ActionProposal:
    def stop() -> None:
        stop_run(page.services.runs_of(kind), page.workspace.id, run.id, by=_by(page))

    if run.status not in OPEN:
        raise ConflictError(f"the run {run.name} has ended already: {run.status}.")
    done = run.progress or {}
    facts = [("Done so far", f"{done['completed']:,} of {done.get('total') or 0:,} samples")] if done else []
    after = (
        "It can be resumed from its last checkpoint, if it has stored one by then."
        if kind == "training"
        else "A retry continues with what is missing."
    )
    return ActionProposal(f"What it has done stays. {after}", facts, do=stop)


def _retrying(page: WorkspaceVisit, run: DbRun) -> ActionProposal:
    scope = scope_of(page, repository_of(page, run))
    with refusals(page.services, scope):
        planned = plan_retry(page.services, scope, run.id, EvalRetry())
    left = planned.left

    def retry() -> DbRun:
        with refusals(page.services, scope):
            return page.services.eval_retries.reopen(planned, by=_by(page))

    failed = sum(left.failed.values())
    facts = [
        ("Attempts to repeat", f"{left.count:,} of {planned.planned:,}"),
        ("Of these", f"{failed:,} failed, {left.no_reward:,} without a reward, {left.missing:,} never made"),
        ("Commit", run.commit_sha),
        ("Cost, at most about", _bound(run, left.count)),
    ]
    return ActionProposal(
        "The attempts without a score run again in this run, on the same commit and rows. "
        "Their new results replace the old ones.",
        facts,
        do=retry,
    )


def _resuming(page: WorkspaceVisit, run: DbRun) -> ActionProposal:
    step, _ = page.services.resumption.plan(run)

    def resume() -> None:
        scope = scope_of(page, repository_of(page, run))
        with refusals(page.services, scope):
            page.services.resumption.resume(page.workspace.id, run.id, by=_by(page))

    return ActionProposal(
        f"It resumes from its last checkpoint, of step {step}; later steps are repeated.",
        do=resume,
    )


def _resubmitting(page: WorkspaceVisit, run: DbRun, kind: RunKind) -> ActionProposal:
    if run.imported is not None:
        raise ConflictError(
            f"the run '{run.name}' was imported: submit its config with `{COMMAND_GROUPS[kind]} submit`."
        )
    scope = scope_of(page, repository_of(page, run))
    submission = RunSubmission(
        kind, page.workspace.id, scope.repository, page.visitor.user, dict(run.request)
    )
    with refusals(page.services, scope):
        checked = page.services.submitter.check(submission)

    def resubmit() -> DbRun:
        with refusals(page.services, scope):
            made = page.services.submitter.create(checked)
        note_in_log(page, made.id, f"submitted {run.name} again")
        note_in_log(page, run.id, f"submitted it again as {made.name}")
        return made

    config = [
        (f"{section.removesuffix('_config')}.{key}", value if isinstance(value, str) else repr(value))
        for section, keys in run.request.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    ]
    return ActionProposal(
        "A new run of the same config, on what its branch and dataset are now.",
        _new_run_facts(run, checked),
        config,
        do=resubmit,
    )


def _new_run_facts(run: DbRun, checked: CheckedSubmission) -> list[tuple[str, Any]]:
    rows = len(checked.rows.rows())
    facts: list[tuple[str, Any]] = [
        (
            "Commit",
            f"{checked.commit_sha} ({'as before' if checked.commit_sha == run.commit_sha else 'it was another'})",
        ),
        ("Rows", f"{rows:,} of {checked.rows.total_rows:,}"),
    ]
    if run.kind == "eval":
        attempts = getattr(getattr(checked.request, "evaluation", None), "n", 1)
        facts += [
            ("Samples", f"{rows * attempts:,}"),
            ("Cost, at most about", _bound(run, rows * attempts)),
        ]
    elif isinstance(checked.request, TrainingRequest):
        facts += _training_facts(checked.request.settings, rows)
    return facts


def _training_facts(settings: TrainingSettings, rows: int) -> list[tuple[str, Any]]:
    steps = settings.total_epochs * math.ceil(rows / settings.rollout_batch_size)
    steps = min(steps, settings.max_steps or steps)
    samples = steps * settings.rollout_batch_size * settings.n_samples_per_prompt
    return [
        ("Steps, at most", f"{steps:,}"),
        ("Samples to train on, at most", f"{samples:,}; those of its validations are beside them"),
        (
            "Cost",
            "not known: the model is this platform's own, and what agent and graders ask of others is not counted",
        ),
    ]


def _bound(run: DbRun, samples: int) -> str:
    """Return what so many samples cost, if each costs what those of ``run`` did on average; failed ones count in full."""
    cost = ((run.metrics or {}).get("estimates") or {}).get("cost_usd") or {}
    total, known = cost.get("total"), cost.get("known_samples")
    if total is None or not known:
        return "unknown: the run recorded no prices"
    asked = read_execution(run.request.get("advanced_config"))
    budget = f"; it ends at {money(asked.max_cost)}" if asked.max_cost is not None else ""
    return f"{money(total / known * samples)}, at the mean of {known:,} samples of {run.name}{budget}"


def scope_of(page: WorkspaceVisit, repository: DbRepository) -> Scope:
    """Return the visitor as the REST API knows somebody."""
    return Scope(page.visitor.principal, page.workspace, repository, page.role)


def repository_of(page: WorkspaceVisit, run: DbRun | None) -> DbRepository:
    """Return the repository of a run; without one, any of the workspace's."""
    for repository in page.services.workspaces.repositories(page.workspace.id):
        if run is None or repository.id == run.repository_id:
            return repository
    raise ConflictError(
        "its repository is not connected any more.", hint="connect it with `osmosis platform connect`"
    )


def _by(page: WorkspaceVisit) -> str:
    return f"{page.visitor.user.email}, on the run's page,"


def note_in_log(page: WorkspaceVisit, run_id: str, what: str) -> None:
    line = LogLine(f"{page.visitor.user.email} {what}, on the run's page", step="run")
    page.services.logs.append(run_id, [line])

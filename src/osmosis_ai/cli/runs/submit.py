"""How a run of any kind is submitted, and submitted again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import NOUNS
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import Block, OperationResult, Row, Styled, Table, Text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.models.runs import SubmittedRun
    from osmosis_ai.cli.runs.view import RunView
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.runs.secrets import RunSecret
    from osmosis_ai.services.runs.submit import PreparedResubmit, PreparedSubmit


WatchOption = Annotated[bool, typer.Option("--watch", help="Follow the run to its end and show how it went.")]
CheckOption = Annotated[
    bool,
    typer.Option("--check", help="Do everything but submit; for CI. Exits 1 when something is wrong."),
]
SecretsFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-",
        help="NAME=value lines for [secrets].required, for this run only; - reads stdin.",
        show_default=False,
    ),
]

_SOURCES = {
    "run": "Run",
    "user_override": "Personal (overrides workspace)",
    "user": "Personal",
    "workspace": "Workspace",
    "unknown": "–",
}


def submit_run(
    view: RunView[Any],
    config: Path,
    *,
    check: bool,
    watch: bool,
    secrets_file: str | None,
    yes: bool,
) -> OperationResult:
    from osmosis_ai.config.checks import EVAL, TRAINING
    from osmosis_ai.services.runs.submit import prepare_submission
    from osmosis_ai.workspace.config_files import require_config_file
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    kind = view.kind
    if check and watch:
        raise OsmosisError("--check and --watch are mutually exclusive.")
    output = current()
    require_config_file(config, EVAL if kind == "eval" else TRAINING)
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        submission = prepare_submission(context, kind, config, secret_values=values, tell=output.note)
        output.show(*_tables(submission))
        if check:
            return _check(output, context, submission)
        if yes:
            warn_without_panel(output, submission.warnings)
        output.confirm(
            f"Submit this {NOUNS[kind]} run?",
            yes=yes,
            default=True,
            summary=_summary(submission),
            notes=submission.notes,
            warnings=submission.warnings,
        )
        return _submit(output, context, submission, view, watch=watch)


def next_steps_structured(group: str, name: str | None, platform_url: str | None) -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = [{"action": f"{group}_info", "name": name}, {"action": f"{group}_list"}]
    return [*steps, {"action": "open_url", "url": platform_url}] if platform_url else steps


def _check(output: OutputContext, context: PlatformContext, submission: PreparedSubmit) -> OperationResult:
    from osmosis_ai.services.datasets import dataset_item
    from osmosis_ai.services.runs.submit import CHECKS, check_dataset, in_words, require_import

    require_import(submission)
    with output.status("Checking the dataset"):
        dataset = check_dataset(context, submission)
    warn_without_panel(output, submission.warnings)
    shown, kind = _shown(submission, context), submission.kind
    unchecked, name = (
        [each for each in submission.unchecked if each != "dataset"],
        submission.config.path.name,
    )
    checked = [each for each in CHECKS if each not in unchecked]
    resource = {**submission.resource(), "checked": checked, "unchecked": unchecked}
    return OperationResult(
        operation=f"{kind}.check",
        message=f"Nothing is wrong with {name} as far as was checked."
        if unchecked
        else f"{name} can be submitted.",
        resource={**resource, "dataset": dataset_item(dataset), **context.resource()},
        next_steps=[
            f"Checked: {in_words(checked)}",
            *([f"Not checked: {in_words(unchecked)}"] if unchecked else []),
            f"Submit it: osmosis {kind} submit {shown}",
        ],
        next_steps_structured=[{"action": f"{kind}_submit", "config": shown}],
    )


def warn_without_panel(output: OutputContext, warnings: Sequence[str]) -> None:
    """Say what may be wrong where no panel has said it."""
    if output.mode != "rich":
        for warning in warnings:
            output.warn(warning)


def run_again_fields(run: SubmittedRun) -> dict[str, Any]:
    """Return what scripts see first of a run that another one's config was submitted for."""
    known = run.model_dump(mode="json", include={"id", "name", "status", "created_at"})
    return {**known, "url": run.platform_url} if run.platform_url else known


def _submit(
    output: OutputContext,
    context: PlatformContext,
    submission: PreparedSubmit,
    view: RunView[Any],
    *,
    watch: bool,
) -> OperationResult:
    from osmosis_ai.services.runs.submit import post_run

    kind, noun = submission.kind, NOUNS[submission.kind]
    with output.status(f"Submitting {noun} run"):
        run = post_run(context.client, kind, submission.body)
    result = OperationResult(
        operation=f"{kind}.submit",
        message=f"{noun.title()} run submitted: {run.name}",
        resource=_resource(run, submission, context.resource()),
        next_steps=_next_steps(run, submission),
        next_steps_structured=next_steps_structured(kind, run.name, run.platform_url),
    )
    return view.submitted(context.client, run, result, watch=watch)


def _resource(run: SubmittedRun, submission: PreparedSubmit, extra: Mapping[str, Any]) -> dict[str, Any]:
    described = submission.described()
    known = run.model_dump(mode="json")
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "model_name": described["model"],
        "dataset_name": described["dataset"],
        "created_at": known["created_at"],
        **({"url": run.platform_url} if run.platform_url else {}),
        **extra,
        "config": described,
    }


def _next_steps(run: SubmittedRun, submission: PreparedSubmit) -> list[str]:
    kind, experiment = submission.kind, submission.config.experiment
    return [
        f"Status: {run.status}",
        f"Rollout: {experiment.rollout}",
        f"Model: {experiment.model_path}",
        f"Dataset: {experiment.dataset}",
        f"View: {run.platform_url}" if run.platform_url else f"View: osmosis {kind} info {run.name}",
        f"Follow: osmosis {kind} watch {run.name}",
    ]


def _tables(submission: PreparedSubmit) -> list[Block]:
    title = f"{NOUNS[submission.kind].title()} Run"
    blocks: list[Block] = [Table(("", ""), _rows(submission), title=title)]
    return [
        *blocks,
        *closing_blocks(submission.config.env, submission.secrets, submission.notes, submission.warnings),
    ]


def closing_blocks(
    env: Mapping[str, str], secrets: Sequence[RunSecret], notes: Sequence[str], warnings: Sequence[str]
) -> Iterator[Block]:
    """Yield what people see of any submit after its own facts: variables, secrets, what to know before."""
    if env:
        yield Table(("Name", "Value"), sorted(env.items()), title=f"Env Vars ({len(env)})")
    if secrets:
        yield Table(("Name", "Scope"), secret_rows(secrets), title=f"Secrets ({len(secrets)})")
    lines = [*notes, *(f"⚠ {warning}" for warning in warnings)]
    unpushed = any("does not see" in warning for warning in warnings)
    title = "Push before submitting" if unpushed else "Before you submit"
    yield Text("\n".join(lines), title=title, tone="warn" if unpushed else None)


def secret_rows(secrets: Sequence[RunSecret]) -> list[tuple[str, str]]:
    return [(secret.name, _SOURCES[secret.source]) for secret in secrets]


def _rows(submission: PreparedSubmit) -> list[Row]:
    from osmosis_ai.ui.run_numbers import execution_rows

    experiment = submission.config.experiment
    rows: list[Row] = [
        ("Rollout", experiment.rollout),
        ("Entrypoint", experiment.entrypoint),
        ("Model", experiment.model_path),
        ("Dataset", experiment.dataset),
    ]
    drawn = submission.rows_drawn
    if drawn is not None:
        rows.append(("Rows", drawn))
    if experiment.branch:
        rows.append(("Branch", experiment.branch))
    if experiment.commit_sha:
        rows.append(("Commit", experiment.commit_sha))
    return [*rows, *execution_rows(submission.config.advanced)]


def _summary(submission: PreparedSubmit) -> dict[str, str]:
    rows = {label: str(value) for label, value in _rows(submission)}
    env = {f"env.{name}": value for name, value in sorted(submission.config.env.items())}
    return {**rows, **env, **{f"secret.{name}": scope for name, scope in secret_rows(submission.secrets)}}


def _shown(submission: PreparedSubmit, context: PlatformContext) -> str:
    return submission.config.path.relative_to(context.workspace.root).as_posix()


def resubmit_run(
    view: RunView[Any], name: str, *, watch: bool, secrets_file: str | None, yes: bool
) -> OperationResult:
    from osmosis_ai.services.runs.submit import post_run, prepare_resubmit
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    output, kind, noun = current(), view.kind, NOUNS[view.kind]
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        with output.status("Looking for what has changed"):
            prepared = prepare_resubmit(context, kind, name, values)
        output.show(*_blocks(prepared))
        if yes:
            warn_without_panel(output, prepared.warnings)
        output.confirm(
            f'Submit {noun} run "{prepared.name}" again?',
            yes=yes,
            default=True,
            summary={change.label: change.words for change in prepared.changes},
            warnings=prepared.warnings,
        )
        with output.status(f"Submitting {noun} run"):
            made = post_run(context.client, kind, prepared.body)
        result = OperationResult(
            operation=f"{kind}.resubmit",
            message=f"{noun.title()} run submitted: {made.name}, of the config of {prepared.name}",
            resource={**_resubmitted(made, prepared), **context.resource()},
            next_steps=[f"Follow: osmosis {kind} watch {made.name}"],
            next_steps_structured=[{"action": f"{kind}_info", "name": made.name}, {"action": f"{kind}_list"}],
        )
        return view.submitted(context.client, made, result, watch=watch)


def _resubmitted(made: SubmittedRun, prepared: PreparedResubmit) -> dict[str, Any]:
    return {
        **run_again_fields(made),
        "resubmit_of": {"id": prepared.run.id, "name": prepared.name},
        "changes": [asdict(change) for change in prepared.changes],
    }


def _blocks(prepared: PreparedResubmit) -> list[Block]:
    rows = [
        (
            change.label,
            change.before or "not recorded",
            Styled(change.now or "known to the platform only", "warn") if change.changed else change.now,
        )
        for change in prepared.changes
    ]
    blocks: list[Block] = [Table(("", "Then", "Now"), rows, title=f"{prepared.name}, again")]
    if prepared.warnings:
        blocks.append(Text("\n".join(f"⚠ {warning}" for warning in prepared.warnings), tone="warn"))
    return blocks

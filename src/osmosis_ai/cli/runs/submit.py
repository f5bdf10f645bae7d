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
from osmosis_ai.cli.output.results import Block, OperationResult, Styled, Table, Text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.models.runs import SubmittedRun
    from osmosis_ai.cli.runs.view import RunView
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.runs.secrets import RunSecret
    from osmosis_ai.services.runs.submit import PreparedSubmit


WatchOption = Annotated[
    bool, typer.Option("--watch", help="Follow the run until it ends and show its results.")
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Do everything but submit; for CI. Exits 1 when something is wrong.")
]
SecretsFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-", help="NAME=value lines for [secrets].required, for this run only; - reads stdin."
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
    view: RunView[Any], config: Path, *, check: bool, watch: bool, secrets_file: str | None, yes: bool
) -> OperationResult:
    from osmosis_ai.config.checks import EVAL, TRAINING
    from osmosis_ai.services.runs.submit import post_run, prepare_submission
    from osmosis_ai.ui.run_numbers import execution_rows
    from osmosis_ai.workspace.config_files import require_config_file
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    kind, noun = view.kind, NOUNS[view.kind]
    if check and watch:
        raise OsmosisError("--check and --watch are mutually exclusive.")
    output = current()
    require_config_file(config, EVAL if kind == "eval" else TRAINING)
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        submission = prepare_submission(context, kind, config, secret_values=values, tell=output.note)
        experiment, described = submission.config.experiment, submission.described()
        facts: list[tuple[str, str | None]] = [
            ("Rollout", experiment.rollout),
            ("Entrypoint", experiment.entrypoint),
            ("Model", experiment.model_path),
            ("Dataset", experiment.dataset),
            ("Rows", submission.rows_drawn),
            ("Branch", experiment.branch),
            ("Commit", experiment.commit_sha),
            *execution_rows(submission.config.advanced),
        ]
        rows = [(label, value) for label, value in facts if value]
        env, secrets = submission.config.env, submission.secrets
        notes, warnings = submission.notes, submission.warnings
        output.show(
            Table(("", ""), rows, title=f"{noun.title()} Run"), *closing_blocks(env, secrets, notes, warnings)
        )
        if check:
            return _check(output, context, submission)
        confirm_submit(output, noun, dict(rows), env, secrets, notes=notes, warnings=warnings, yes=yes)
        with output.status(f"Submitting {noun} run"):
            run = post_run(context.client, kind, submission.body)
        own = run_again_fields(run)
        result = OperationResult(
            operation=f"{kind}.submit",
            message=f"{noun.title()} run submitted: {run.name}",
            resource={
                **own,
                "model_name": experiment.model_path,
                "dataset_name": experiment.dataset,
                **context.resource(),
                "config": described,
            },
            next_steps=[
                f"Status: {run.status}",
                f"Rollout: {experiment.rollout}",
                f"Model: {experiment.model_path}",
                f"Dataset: {experiment.dataset}",
                f"View: {run.platform_url or f'osmosis {kind} info {run.name}'}",
                f"Follow: osmosis {kind} watch {run.name}",
            ],
            next_steps_structured=next_steps_structured(kind, run.name, run.platform_url),
        )
        return view.submitted(context.client, run, result, watch=watch)


def _check(output: OutputContext, context: PlatformContext, submission: PreparedSubmit) -> OperationResult:
    from osmosis_ai.services.datasets import dataset_item
    from osmosis_ai.services.runs.submit import CHECKS, check_dataset, require_import

    require_import(submission)
    with output.status("Checking the dataset"):
        dataset = check_dataset(context, submission)
    _warn_without_panel(output, submission.warnings)
    kind, path = submission.kind, submission.config.path
    shown = path.relative_to(context.workspace.root).as_posix()
    unchecked = [each for each in submission.unchecked if each != "dataset"]
    checked = [each for each in CHECKS if each not in unchecked]
    resource = {**submission.resource(), "checked": checked, "unchecked": unchecked}
    correct = f"{path.name} can be submitted."
    names = {"Checked": checked, "Not checked": unchecked}
    return OperationResult(
        operation=f"{kind}.check",
        message=f"Nothing is wrong with {path.name} as far as was checked." if unchecked else correct,
        resource={**resource, "dataset": dataset_item(dataset), **context.resource()},
        next_steps=[
            *(
                f"{label}: {', '.join(CHECKS[each] for each in some)}"
                for label, some in names.items()
                if some
            ),
            f"Submit it: osmosis {kind} submit {shown}",
        ],
        next_steps_structured=[{"action": f"{kind}_submit", "config": shown}],
    )


def _warn_without_panel(output: OutputContext, warnings: Sequence[str]) -> None:
    if output.mode != "rich":
        for warning in warnings:
            output.warn(warning)


def confirm_submit(
    output: OutputContext,
    noun: str,
    facts: Mapping[str, str],
    env: Mapping[str, str],
    secrets: Sequence[RunSecret],
    *,
    notes: Sequence[str],
    warnings: Sequence[str],
    yes: bool,
) -> None:
    if yes:
        _warn_without_panel(output, warnings)
    variables = {f"env.{name}": value for name, value in sorted(env.items())}
    sources = {f"secret.{name}": source for name, source in _secret_rows(secrets)}
    output.confirm(
        f"Submit this {noun} run?",
        yes=yes,
        default=True,
        summary={**facts, **variables, **sources},
        notes=notes,
        warnings=warnings,
    )


def closing_blocks(
    env: Mapping[str, str], secrets: Sequence[RunSecret], notes: Sequence[str], warnings: Sequence[str]
) -> Iterator[Block]:
    """Yield variables, secrets, notes and warnings of a submit."""
    if env:
        yield Table(("Name", "Value"), sorted(env.items()), title=f"Env Vars ({len(env)})")
    if secrets:
        yield Table(("Name", "Scope"), _secret_rows(secrets), title=f"Secrets ({len(secrets)})")
    lines = [*notes, *(f"⚠ {warning}" for warning in warnings)]
    unpushed = any("does not see" in warning for warning in warnings)
    title = "Push before submitting" if unpushed else "Before you submit"
    yield Text("\n".join(lines), title=title, tone="warn" if unpushed else None)


def _secret_rows(secrets: Sequence[RunSecret]) -> list[tuple[str, str]]:
    return [(secret.name, _SOURCES[secret.source]) for secret in secrets]


def next_steps_structured(group: str, name: str | None, platform_url: str | None) -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = [{"action": f"{group}_info", "name": name}, {"action": f"{group}_list"}]
    return [*steps, {"action": "open_url", "url": platform_url}] if platform_url else steps


def run_again_fields(run: SubmittedRun) -> dict[str, Any]:
    """Return the first fields of a submitted run in JSON."""
    known = run.model_dump(mode="json", include={"id", "name", "status", "created_at"})
    return {**known, "url": run.platform_url} if run.platform_url else known


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
        rows = [
            (
                change.label,
                change.before or "not recorded",
                Styled(change.now or "known to the platform only", "warn") if change.changed else change.now,
            )
            for change in prepared.changes
        ]
        output.show(Table(("", "Then", "Now"), rows, title=f"{prepared.name}, again"))
        if prepared.warnings:
            output.show(Text("\n".join(f"⚠ {warning}" for warning in prepared.warnings), tone="warn"))
        if yes:
            _warn_without_panel(output, prepared.warnings)
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
            resource={
                **run_again_fields(made),
                "resubmit_of": {"id": prepared.run.id, "name": prepared.name},
                "changes": [asdict(change) for change in prepared.changes],
                **context.resource(),
            },
            next_steps=[f"Follow: osmosis {kind} watch {made.name}"],
            next_steps_structured=next_steps_structured(kind, made.name, None),
        )
        return view.submitted(context.client, made, result, watch=watch)

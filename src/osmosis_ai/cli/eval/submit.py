"""`osmosis eval submit`: an evaluation on the platform."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import Block, OperationResult, Row, Table, Text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.runs import SubmittedRun
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.eval_submit import Submission

_SOURCES = {
    "run": "Run",
    "user_override": "Personal (overrides workspace)",
    "user": "Personal",
    "workspace": "Workspace",
    "unknown": "–",
}


def submit(
    config: Annotated[Path, typer.Argument(help="A TOML file of configs/eval/.", show_default=False)],
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the run to its end and show the results.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Do everything but submit; for CI. Exits 1 when something is wrong."),
    ] = False,
    secrets_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="NAME=value lines for [secrets].required, for this run only; - reads stdin.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> OperationResult:
    """Submit an evaluation to the platform.

    The code is what the platform fetches from the repository; the config is read from this machine. Secrets
    travel as names, unless a --secrets-file supplies values.
    """
    from osmosis_ai.services.eval_submit import prepare_submission
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    if check and watch:
        raise OsmosisError("--check and --watch are mutually exclusive.")
    output = current()
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        submission = prepare_submission(context, config, secret_values=values, tell=output.note)
        output.show(*_tables(submission))
        if check:
            return _check(output, context, submission)
        summary = _summary(submission)
        if yes:
            _warn(output, submission)
        output.confirm(
            "Submit this evaluation run?",
            yes=yes,
            default=True,
            summary=summary,
            notes=submission.notes,
            warnings=submission.warnings,
        )
        return _submit(output, context, submission, watch=watch)


def _check(output: OutputContext, context: PlatformContext, submission: Submission) -> OperationResult:
    from osmosis_ai.services.datasets import dataset_item
    from osmosis_ai.services.eval_submit import check_dataset

    with output.status("Checking the dataset"):
        dataset = check_dataset(context, submission)
    _warn(output, submission)
    return OperationResult(
        operation="eval.check",
        message=f"{submission.config.path.name} can be submitted.",
        resource={**submission.resource(), "dataset": dataset_item(dataset), **context.resource()},
        next_steps=[f"Submit it: osmosis eval submit {_shown(submission, context)}"],
        next_steps_structured=[{"action": "eval_submit", "config": _shown(submission, context)}],
    )


def _warn(output: OutputContext, submission: Submission) -> None:
    """Say what may be wrong where no panel has said it."""
    if output.mode != "rich":
        for warning in submission.warnings:
            output.warn(warning)


def _submit(
    output: OutputContext, context: PlatformContext, submission: Submission, *, watch: bool
) -> OperationResult:
    from osmosis_ai.services.eval_submit import submit as submit_run

    with output.status("Submitting evaluation run"):
        run = submit_run(context, submission)
    resource = _resource(run, submission, context.resource())
    if not watch:
        return OperationResult(
            operation="eval.submit",
            message=f"Evaluation run submitted: {run.name}",
            resource=resource,
            next_steps=_next_steps(run, submission),
            next_steps_structured=_next_steps_structured(run),
        )
    from osmosis_ai.cli.eval import following, platform_tables

    output.note(f"Evaluation run submitted: {run.name}")
    described = following.follow(context.client, run.id)
    numbers = platform_tables.numbers(described.metrics)
    return OperationResult(
        operation="eval.submit",
        status="success" if described.run.status == "finished" else "partial",
        message=following.ending(described),
        resource={**resource, **following.outcome(described)},
        blocks=numbers,
        next_steps=[
            *platform_tables.hints(described),
            *([f"Conversations: osmosis eval download {run.name}"] if numbers else []),
        ],
        next_steps_structured=_next_steps_structured(run),
    )


def _resource(run: SubmittedRun, submission: Submission, extra: Mapping[str, Any]) -> dict[str, Any]:
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


def _next_steps(run: SubmittedRun, submission: Submission) -> list[str]:
    experiment = submission.config.experiment
    return [
        f"Status: {run.status}",
        f"Rollout: {experiment.rollout}",
        f"Model: {experiment.model_path}",
        f"Dataset: {experiment.dataset}",
        f"View: {run.platform_url}" if run.platform_url else f"View: osmosis eval info {run.name}",
        f"Follow: osmosis eval watch {run.name}",
    ]


def _next_steps_structured(run: SubmittedRun) -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = [{"action": "eval_info", "name": run.name}, {"action": "eval_list"}]
    return [*steps, {"action": "open_url", "url": run.platform_url}] if run.platform_url else steps


def _tables(submission: Submission) -> list[Block]:
    """Return what is about to be submitted, for people."""
    blocks: list[Block] = [Table(("", ""), _rows(submission), title="Evaluation Run")]
    env = submission.config.env
    if env:
        blocks.append(Table(("Name", "Value"), sorted(env.items()), title=f"Env Vars ({len(env)})"))
    if submission.secrets:
        secrets = [(secret.name, _SOURCES[secret.source]) for secret in submission.secrets]
        blocks.append(Table(("Name", "Scope"), secrets, title=f"Secrets ({len(secrets)})"))
    lines = [*submission.notes, *(f"⚠ {warning}" for warning in submission.warnings)]
    unpushed = any("not pushed" in warning or "not committed" in warning for warning in submission.warnings)
    title = "Push before submitting" if unpushed else "Before you submit"
    return [*blocks, Text("\n".join(lines), title=title, tone="warn" if unpushed else None)]


def _rows(submission: Submission) -> list[Row]:
    experiment = submission.config.experiment
    rows: list[Row] = [
        ("Rollout", experiment.rollout),
        ("Entrypoint", experiment.entrypoint),
        ("Model", experiment.model_path),
        ("Dataset", experiment.dataset),
    ]
    if experiment.branch:
        rows.append(("Branch", experiment.branch))
    if experiment.commit_sha:
        rows.append(("Commit", experiment.commit_sha))
    return rows


def _summary(submission: Submission) -> dict[str, str]:
    rows = {label: str(value) for label, value in _rows(submission)}
    env = {f"env.{name}": value for name, value in sorted(submission.config.env.items())}
    return {**rows, **env, **{f"secret.{s.name}": _SOURCES[s.source] for s in submission.secrets}}


def _shown(submission: Submission, context: PlatformContext) -> str:
    return submission.config.path.relative_to(context.workspace.root).as_posix()

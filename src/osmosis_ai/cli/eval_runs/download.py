"""`osmosis eval download`: a run's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import OperationResult

if TYPE_CHECKING:
    from osmosis_ai.services.eval_runs.download import DownloadOutcome, DownloadPlan

_SHOWN_FAILURES = 20


def download(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The run's directory (default: .osmosis/evals/RUN).", show_default=False
        ),
    ] = None,
    types: Annotated[
        str, typer.Option("--type", help="Of metrics, trajectories, artifacts, logs; or all.")
    ] = "metrics,trajectories",
    rows: Annotated[
        str | None, typer.Option(help='Of these dataset rows only: "3,7,10-20".', show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Fetch again what is there.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a large download.")] = False,
) -> OperationResult:
    """Download the files of a run. What is there already is not fetched again.

    Examples:
        osmosis eval download amber-otter-42
        osmosis eval download amber-otter-42 --type metrics --rows 0-9
    """
    from osmosis_ai.services.eval_runs.download import plan_download, run_download
    from osmosis_ai.services.runs.files import check_rows, parse_types

    asked, selected = parse_types(types), check_rows(rows)
    out = current()
    with platform_context() as context:
        with out.status("Fetching the list of files"):
            plan = plan_download(
                context.client,
                context.client.eval_runs.get(run).eval_run,
                types=asked,
                workspace=context.workspace,
                rows=selected,
                output=output,
                overwrite=overwrite,
            )
        confirm_size(out, plan, yes=yes)
        with out.progress("Downloading", total=plan.pending_bytes, unit="bytes") as shown:
            outcome = run_download(context.client, plan, progress=shown.update)
        return _operation(outcome, context.resource())


def confirm_size(out: OutputContext, plan: DownloadPlan, *, yes: bool) -> None:
    """Ask before much is downloaded."""
    from osmosis_ai.services.eval_runs.download import ASK_FROM_BYTES

    if plan.pending_bytes <= ASK_FROM_BYTES:
        return
    count, size = formats.count(len(plan.pending)), formats.size(plan.pending_bytes)
    out.confirm(
        f"Download {count} files, {size}?",
        yes=yes,
        default=False,
        summary={"Files": count, "Download size": size, "Destination": str(plan.directory)},
    )


def _operation(outcome: DownloadOutcome, extra: Mapping[str, Any]) -> OperationResult:
    from osmosis_ai.cli.output.formats import shown_path

    plan, failures = outcome.plan, outcome.failures
    parts = [f"{formats.count(len(outcome.fetched))} files to {shown_path(plan.directory)}"]
    if plan.skipped:
        parts.append(f"{formats.count(len(plan.skipped))} were there already")
    if failures:
        parts.append(f"{formats.count(len(failures))} failed")
    steps = [f"Failed: {failed.path} — {failed.error}" for failed in failures[:_SHOWN_FAILURES]]
    if len(failures) > _SHOWN_FAILURES:
        steps.append(f"and {formats.count(len(failures) - _SHOWN_FAILURES)} more")
    if failures:
        steps.append("Run the same command again to fetch what is missing.")
    elif plan.run.status == "running":
        steps.append("The run goes on: run the same command again when it has ended.")
    return OperationResult(
        operation="eval.download",
        status="partial" if failures else "success",
        message=f"Downloaded {', '.join(parts)}.",
        resource={**outcome.resource(), **extra},
        next_steps=steps,
    )

"""A run's files fetched, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.runs import Run
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.runs.download import DownloadOutcome, FileLayout

OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Download existing files again.")]
DownloadYesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip the confirmation of a large download.")
]

_SHOWN_FAILURES = 20


def download_run(
    layout: FileLayout,
    find: Callable[[PlatformClient], Run],
    *,
    operation: str,
    types: str,
    rows: str | None = None,
    output: Path | None,
    overwrite: bool,
    yes: bool,
) -> OperationResult:
    """Download the files of a run, asking before a large download."""
    from osmosis_ai.services.runs.download import parse_types

    asked = parse_types(types, layout)
    with platform_context() as context:
        outcome = fetch_files(
            context,
            lambda client: (find(client), asked),
            layout=layout,
            rows=rows,
            output=output,
            overwrite=overwrite,
            yes=yes,
        )
        return _result(outcome, operation, context.resource())


def fetch_files(
    context: PlatformContext,
    find: Callable[[PlatformClient], tuple[Run, Sequence[str]]],
    *,
    yes: bool,
    **options: Any,
) -> DownloadOutcome:
    """Download the files of the types that ``find`` returns with a run; ``options`` are those of ``plan_download``."""
    from osmosis_ai.services.runs.download import ASK_FROM_BYTES, plan_download, run_download

    out = current()
    with out.status("Fetching the list of files"):
        run, types = find(context.client)
        plan = plan_download(context.client, run, types=types, workspace=context.workspace, **options)
    if plan.pending_bytes > ASK_FROM_BYTES:
        count, size = formats.count(len(plan.pending)), formats.size(plan.pending_bytes)
        out.confirm(
            f"Download {count} files, {size}?",
            yes=yes,
            default=False,
            summary={"Files": count, "Download size": size, "Destination": str(plan.directory)},
        )
    with out.progress("Downloading", total=plan.pending_bytes, unit="bytes") as shown:
        return run_download(context.client, plan, progress=shown.update)


def _result(outcome: DownloadOutcome, operation: str, extra: Mapping[str, Any]) -> OperationResult:
    from osmosis_ai.cli.output.formats import shown_path

    plan, failures = outcome.plan, outcome.failures
    fetched = len(outcome.fetched)
    parts = [f"{formats.count(fetched)} file{'' if fetched == 1 else 's'} to {shown_path(plan.directory)}"]
    if plan.skipped:
        parts.append(
            f"{formats.count(len(plan.skipped))} {'was' if len(plan.skipped) == 1 else 'were'} there already"
        )
    if failures:
        parts.append(f"{formats.count(len(failures))} failed")
    steps = [f"Failed: {failed.path} — {failed.error}" for failed in failures[:_SHOWN_FAILURES]]
    if len(failures) > _SHOWN_FAILURES:
        steps.append(f"and {formats.count(len(failures) - _SHOWN_FAILURES)} more")
    if plan.types_without_rows:
        steps.append(f"The run has no {' or '.join(plan.types_without_rows)} of rows {plan.rows}.")
    if failures:
        steps.append("Run the same command again to fetch what is missing.")
    elif plan.run.status == "running":
        steps.append("The run is still running: run the same command again when it has ended.")
    return OperationResult(
        operation=operation,
        status="partial" if failures else "success",
        message=f"Downloaded {', '.join(parts)}.",
        resource={**outcome.resource(), **extra},
        next_steps=steps,
    )

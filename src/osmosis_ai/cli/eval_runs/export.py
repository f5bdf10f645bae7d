"""`osmosis eval export`: a run for other tools."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import NotFoundError, OsmosisError


class FormatChoice(str, Enum):
    """What other tools read."""

    inspect = "inspect"
    jsonl = "jsonl"
    parquet = "parquet"


def export(
    run: Annotated[
        str,
        typer.Argument(
            help="Name of a run of this machine, or its directory; or a run of the platform, by name or id.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
    export_format: Annotated[
        FormatChoice,
        typer.Option(
            "--format",
            help="inspect: a log for inspect_ai; jsonl, parquet: a flat record a sample, for pandas and DuckDB.",
        ),
    ] = FormatChoice.jsonl,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write (default: RUN.<format>).", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a large download.")] = False,
) -> OperationResult:
    """Write a run's samples, conversations included, for other tools. A platform's run is downloaded first.

    Examples:
        osmosis eval export amber-otter-42 --format inspect
    """
    from osmosis_ai.services.eval_runs.export import export_run

    directory = _directory(run, yes=yes)
    done = export_run(directory, export_format.value, target=output, overwrite=overwrite)
    if done.progress != "finished":
        current().warn(f"the run is {done.progress}: what it has so far was exported")
    count = f"{done.samples:,} sample{'' if done.samples == 1 else 's'}"
    return OperationResult(
        operation="eval.export",
        message=f"Exported {count} of {done.run} to {shown_path(done.path)}",
        resource={
            "run": done.run,
            "format": done.format,
            "path": str(done.path),
            "samples": done.samples,
            "progress": done.progress,
        },
    )


def _directory(run: str, *, yes: bool) -> Path:
    from osmosis_ai.services.eval_runs.export import find_run_directory
    from osmosis_ai.services.eval_runs.resolver import name_elsewhere
    from osmosis_ai.services.eval_runs.watch import run_nowhere

    try:
        return find_run_directory(run)
    except NotFoundError as missing:
        name = name_elsewhere(run, missing)
        try:
            return _download(name, yes=yes)
        except OsmosisError as error:
            raise run_nowhere(name, missing, error) from None


def _download(run: str, *, yes: bool) -> Path:
    """Fetch what an export needs of a platform's run, where it is not there yet."""
    from osmosis_ai.cli.runs.download import confirm_size
    from osmosis_ai.services.eval_runs.export import needed_types
    from osmosis_ai.services.runs.download import plan_download, run_download

    out = current()
    with platform_context() as context:
        with out.status("Fetching the list of files"):
            found = context.client.eval_runs.get(run).eval_run
            plan = plan_download(
                context.client, found, types=needed_types(context.client), workspace=context.workspace
            )
        confirm_size(out, plan, yes=yes)
        with out.progress("Downloading", total=plan.pending_bytes, unit="bytes") as shown:
            outcome = run_download(context.client, plan, progress=shown.update)
    if outcome.failures:
        raise OsmosisError(
            f"{len(outcome.failures)} files of `{run}` could not be downloaded: {outcome.failures[0].path} "
            f"{outcome.failures[0].error}.",
            hint=f"run `osmosis eval download {run}`, then export again",
        )
    return plan.directory

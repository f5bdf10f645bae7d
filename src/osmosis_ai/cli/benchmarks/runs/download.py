"""`osmosis benchmark runs download`: a run's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.runs.download import DownloadYesOption, OverwriteOption, download_run

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.benchmarks import BenchmarkRun


def download(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The run's directory (default: .osmosis/benchmarks/RUN).",
            show_default=False,
        ),
    ] = None,
    types: Annotated[
        str, typer.Option("--type", help="Of summary, results, artifacts, logs; or all.")
    ] = "summary,results",
    overwrite: OverwriteOption = False,
    yes: DownloadYesOption = False,
) -> OperationResult:
    """Download the files of a benchmark run. What is there already is not fetched again.

    Examples:
        osmosis benchmark runs download amber-otter-42 --type all
    """
    from osmosis_ai.services.runs.files import BENCHMARK_FILES

    def find(client: PlatformClient) -> BenchmarkRun:
        from osmosis_ai.services.benchmarks.runs import run_name

        found = client.benchmark_runs.get(run).benchmark_run
        return found.model_copy(update={"name": run_name(found)})

    return download_run(
        BENCHMARK_FILES,
        find,
        operation="benchmark.download",
        types=types,
        output=output,
        overwrite=overwrite,
        yes=yes,
    )

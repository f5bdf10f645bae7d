"""`osmosis benchmark info`: one benchmark, its leaderboard and its runs."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.name_completion import complete_benchmark
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult


def info(
    key: Annotated[
        str,
        typer.Argument(
            help="A benchmark's key, as the list shows it; its name or its id.",
            show_default=False,
            autocompletion=complete_benchmark,
        ),
    ],
    limit: LimitOption = 50,
    everything: AllOption = False,
) -> DetailResult:
    """Show a benchmark: its tasks, its leaderboard, and the workspace's runs on it, which --limit and --all are about.

    Examples:
        osmosis benchmark info swe-bench-lite
    """
    from osmosis_ai.cli.benchmarks.tables import benchmark_blocks, benchmark_rows
    from osmosis_ai.services.benchmarks.catalog import describe_benchmark

    with platform_context() as context:
        with current().status("Fetching benchmark"):
            described = describe_benchmark(context.client, key, limit=limit, everything=everything)
        url = described.benchmark.platform_url
        return DetailResult(
            data={**described.data(), **context.resource()},
            title=described.benchmark.name,
            rows=list(benchmark_rows(described.benchmark)),
            blocks=list(benchmark_blocks(described)),
            hints=[
                *([f"View: {url}"] if url else []),
                "Run agents on it: osmosis benchmark submit configs/benchmark/CONFIG.toml",
            ],
        )

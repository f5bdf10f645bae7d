"""`osmosis benchmark runs info`: one run, agent by agent."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult


def info(run: RunArgument) -> DetailResult:
    """Show a benchmark run: how far it is, how it was configured, what each agent has come to.

    Examples:
        osmosis benchmark runs info amber-otter-42
    """
    from osmosis_ai.cli.benchmarks.tables import configuration_sections, run_blocks, run_hints, run_rows
    from osmosis_ai.services.benchmarks.runs import run_data

    with platform_context() as context:
        with current().status("Fetching benchmark run"):
            detail = context.client.benchmark_runs.get(run)
        data = run_data(detail)
        return DetailResult(
            data={**data, **context.resource()},
            title="Benchmark Run",
            rows=list(run_rows(detail, data)),
            sections=list(configuration_sections(data["configuration"])),
            blocks=list(run_blocks(data)),
            hints=list(run_hints(detail.benchmark_run)),
        )

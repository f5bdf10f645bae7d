"""`osmosis benchmark runs stop`: end a run."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def stop(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Stop a pending or running benchmark run; the results that are in are kept.

    Examples:
        osmosis benchmark runs stop amber-otter-42
    """
    from osmosis_ai.services.benchmarks.runs import run_name, stop_run

    output = current()
    with platform_context() as context:
        found = context.client.benchmark_runs.get(run).benchmark_run
        name = run_name(found) or found.id
        output.confirm(
            f'Stop benchmark run "{name}"?', yes=yes, default=False, summary={"Run": name, "Id": found.id}
        )
        with output.status("Stopping benchmark run"):
            stopped = stop_run(context.client, found)
    came = f"had ended before: {stopped.ended}" if stopped.ended else "stopped"
    return OperationResult(
        operation="benchmark.stop",
        status="noop" if stopped.ended else "success",
        message=f'Benchmark run "{name}" {came}.',
        resource={**stopped.resource(), **context.resource()},
    )

"""`osmosis test`: run an agent loop on rows of a file."""

from __future__ import annotations

from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.options import parse_duration
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, OperationResult, OperationStatus, Table
from osmosis_ai.errors import InteractiveRequiredError
from osmosis_ai.evaluation.agent_loop.inputs import DEFAULT_MAX_TURNS, DEFAULT_MODEL
from osmosis_ai.files import expanded
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.services.agent_loops import AgentTestOutcome, AgentTestRequest

MODEL, ROWS, STEPS = "Model", "Rows and results", "Interactive session"
_MAX_FAILURES = 20


def try_agent(
    module: Annotated[
        str, typer.Option("--module", "-m", "--agent", help="Agent loop, as module:attribute.")
    ],
    dataset: Annotated[
        Path, typer.Option("--dataset", "-d", help="Dataset: a .jsonl, .json or .parquet file.")
    ],
    model: Annotated[
        str, typer.Option(help="Model: provider/model, or its name at --base-url.", rich_help_panel=MODEL)
    ] = DEFAULT_MODEL,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="URL of an OpenAI-compatible endpoint; needs no key.", metavar="URL", rich_help_panel=MODEL
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key of the model; other users of this machine can see it, so prefer the provider's variable.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature, passed to the agent.", rich_help_panel=MODEL)
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum tokens per model call, passed to the agent.", rich_help_panel=MODEL),
    ] = None,
    no_probe: Annotated[
        bool,
        typer.Option(
            "--no-probe",
            help="Skip the request that checks the model before the first row.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    max_turns: Annotated[
        int, typer.Option(help="Maximum turns per row, passed to the agent.")
    ] = DEFAULT_MAX_TURNS,
    timeout: Annotated[
        str, typer.Option(help="Time limit of a row: 90, 90s, 10m, 2h; not with --interactive.")
    ] = "10m",
    limit: Annotated[
        int | None, typer.Option(help="Maximum number of rows (default: all).", rich_help_panel=ROWS)
    ] = None,
    offset: Annotated[
        int, typer.Option(help="Number of rows to skip at the start.", rich_help_panel=ROWS)
    ] = 0,
    batch_size: Annotated[int, typer.Option(help="Number of concurrent rows.", rich_help_panel=ROWS)] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Path of a JSON file for the results.", rich_help_panel=ROWS),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", "-i", help="Pause after each reply of the model.", rich_help_panel=STEPS
        ),
    ] = False,
    row: Annotated[
        int | None, typer.Option(help="Index of the first row, from 0.", rich_help_panel=STEPS)
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show logs, and write events to ./test_debug/, one file per row.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> OperationResult:
    """Run an agent loop on rows of a file.

    The agent runs in this process and needs no workspace, login or config. The exit code is 1 if a row failed, and 0 after an
    interactive session.

    Examples:
        osmosis test -m server:agent_loop -d test_data.jsonl --limit 3
        osmosis test -m server:agent_loop -d test_data.jsonl --interactive
    """
    from osmosis_ai.cli.agent_loops.screens import show_logs
    from osmosis_ai.services.agent_loops import AgentTestRequest

    request = AgentTestRequest(
        module=module,
        dataset=expanded(dataset),
        model=model,
        base_url=base_url,
        api_key=api_key,
        max_turns=max_turns,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        offset=offset,
        batch_size=batch_size,
        timeout_s=parse_duration(timeout, "--timeout"),
        output=expanded(output).absolute() if output is not None else None,
        debug=debug,
        probe=not no_probe,
        interactive=interactive,
        row=row,
    )
    # The output of the user's code is not part of the result.
    with show_logs(current(), enabled=debug), redirect_stdout(current().stderr):
        outcome = _step_through(request) if interactive else _run_rows(request, quiet=quiet)
    if quiet and current().mode != "json":
        raise typer.Exit(0 if interactive or _status(outcome) == "success" else 1)
    return _result(request, outcome)


def _run_rows(request: AgentTestRequest, *, quiet: bool) -> AgentTestOutcome:
    from osmosis_ai import event_loop
    from osmosis_ai.cli.agent_loops.screens import LiveRows
    from osmosis_ai.services.agent_loops import prepare_agent_test, run_agent_test

    prepared = prepare_agent_test(request)
    if not quiet:
        current().note(
            f"Testing agent '{prepared.agent.name}' on {formats.count(prepared.total)} "
            f"row{'s' if prepared.total > 1 else ''} of {request.dataset} with {request.model}"
        )
    with LiveRows(current(), quiet=quiet, timeout_s=request.timeout_s) as live:
        return event_loop.run(run_agent_test(prepared, live))


def _step_through(request: AgentTestRequest) -> AgentTestOutcome:
    import asyncio

    from osmosis_ai import event_loop
    from osmosis_ai.cli.agent_loops.screens import SessionScreen
    from osmosis_ai.services.agent_loops import prepare_agent_test, run_session

    output = current()
    prepared = prepare_agent_test(request)
    if output.mode == "json" or not formats.is_terminal(output.stdin):
        raise InteractiveRequiredError(
            "'--interactive' needs a terminal and cannot be combined with '--json'.",
            details={"flags": ["--interactive"]},
        )
    output.note(
        f"Interactive session with agent '{prepared.agent.name}' and {request.model}. Type ? for help."
    )
    try:
        return event_loop.run(SessionScreen(output).show(lambda screen: run_session(prepared, screen)))
    except asyncio.CancelledError:
        # Ctrl-C before the session started, while the model was probed.
        raise KeyboardInterrupt from None


def _status(outcome: AgentTestOutcome) -> OperationStatus:
    if outcome.pending:
        return "partial"
    return "failed" if outcome.failures else "success"


def _result(request: AgentTestRequest, outcome: AgentTestOutcome) -> OperationResult:
    total = len(outcome.rows)
    status: OperationStatus = "success" if request.interactive else _status(outcome)
    pending = f", {outcome.pending} not run" if outcome.pending else ""
    summary: tuple[tuple[str, int | str], ...] = (
        ("Total", total),
        ("Passed", outcome.passed),
        ("Failed", len(outcome.failures)),
        ("Duration", formats.duration(outcome.duration_ms / 1000)),
        ("Total tokens", numbers.partial_count(outcome.total_tokens, outcome.uncounted, total, "rows")),
        *((f"Rows with a {word} reply", count) for word, count in sorted(outcome.affected.items())),
    )
    blocks = [Table(["", Column("", right=True)], summary, title="Summary", in_plain=True)]
    if outcome.failures:
        left = len(outcome.failures) - _MAX_FAILURES
        more = f"{formats.count(left)} more; use '-o FILE' to write all" if left > 0 else None
        shown = outcome.failures[:_MAX_FAILURES]
        blocks.append(Table(["Failed row", "Error"], shown, note=more, in_plain=True))
    return OperationResult(
        operation="agent.test",
        status=status,
        message=f"{outcome.passed} of {total} rows passed{pending}.",
        resource=outcome.to_json(),
        next_steps=[f"Results: {request.output}"] if request.output is not None and outcome.rows else [],
        blocks=blocks,
    )

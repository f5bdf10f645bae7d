"""The commands of agent loops: `osmosis serve`, `validate`, `test` and `eval -m`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai.cli.options import NoPreviewsOption, ServersOption, parse_duration
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import (
    Column,
    DetailResult,
    OperationResult,
    OperationStatus,
    Row,
    StreamResult,
    Table,
)
from osmosis_ai.cli.root import TWO_FORMS
from osmosis_ai.errors import InteractiveRequiredError
from osmosis_ai.evaluation.agent_loop.inputs import DEFAULT_MAX_TURNS, DEFAULT_MODEL
from osmosis_ai.files import expanded
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.rollout.server.serve import AgentServer
    from osmosis_ai.services.agent_loops import AgentTestOutcome, AgentTestRequest

_MAX_FAILURES = 20
NO_SANDBOX = (
    "'osmosis eval -m' runs an agent loop without a sandbox. To use one, write a workflow with a config file and run "
    "'osmosis eval run CONFIG --isolate'."
)

ModuleOption = Annotated[str, typer.Option("--module", "-m", help="Agent loop, as module:attribute.")]
DatasetOption = Annotated[
    Path, typer.Option("--dataset", "-d", help="Dataset: a .jsonl, .json or .parquet file.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        help="API key of the model; other users of this machine can see it, so prefer the provider's variable."
    ),
]
TemperatureOption = Annotated[float | None, typer.Option(help="Sampling temperature, passed to the agent.")]
MaxTokensOption = Annotated[
    int | None, typer.Option(help="Maximum tokens per model call, passed to the agent.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Path of a JSON file for the results.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
OffsetOption = Annotated[int, typer.Option(help="Number of rows to skip at the start.")]


def serve(
    module: ModuleOption,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 9000,
    host: Annotated[str, typer.Option("--host", "-H", help="Address to listen on.")] = "0.0.0.0",
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Skip the check of the agent.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a file below this directory changes.")
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        typer.Option(help="Level of the log on stderr."),
    ] = "info",
    skip_register: Annotated[
        bool, typer.Option("--skip-register", help="Do not register with the platform; needs no login.")
    ] = False,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            "--local-debug",
            help="Accept requests without a key and do not register with the platform.",
        ),
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(help="API key that callers must send (default: a generated one, which is printed)."),
    ] = None,
    public_host: Annotated[
        str | None,
        typer.Option(
            help="Address under which the platform reaches this machine (default: detected from the network)."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Directory for the agent's events, one file per rollout.")
    ] = None,
) -> StreamResult:
    """Serve an agent loop over HTTP until Ctrl-C.

    `POST /v1/rollout/init` starts a rollout, and a callback reports its result. Until it stops, the server is registered
    with your platform. Rollouts interrupted by the stop are reported as failed.

    Examples:
        osmosis serve -m server:agent_loop --port 9000
    """
    from osmosis_ai.rollout.server.serve import ServeOptions
    from osmosis_ai.services.agent_loops import prepare

    options = ServeOptions(
        host=host,
        port=port,
        validate_agent=not no_validate,
        log_level=log_level,
        reload=reload,
        skip_register=skip_register,
        api_key=api_key,
        local_debug=local,
        debug_dir=log,
        public_host=public_host,
    )
    return StreamResult(items=_serve(prepare(module, options)), columns=[Column("", "message")])


def _serve(server: AgentServer) -> Iterator[dict[str, Any]]:
    """Yield the address of the server, then serve until it stops."""
    options = server.options
    ready = OperationResult(
        operation="serve",
        message=f"Serving {server.agent.name} at {server.url}",
        resource={
            "agent_loop": server.agent.name,
            "url": server.url,
            "host": options.host,
            "port": options.port,
            "api_key": options.api_key if server.generated_key else None,
            "registers_with": server.credentials and server.credentials.platform_url,
            "debug_dir": options.debug_dir and str(options.debug_dir),
        },
    )
    yield ready.envelope()
    output = current()
    for name, value in server.facts():
        output.note(f"{name}: {value}")
    server.run(say=output.note)


def validate(
    module: ModuleOption,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also list the warnings.")] = False,
    run: Annotated[
        bool,
        typer.Option("--run", help="Also run the agent for one turn on the built-in model osmosis/tiny."),
    ] = False,
) -> DetailResult:
    """Check the name, tools and `run` method of an agent loop.

    The agent runs only with `--run`.

    Examples:
        osmosis validate -m server:agent_loop
    """
    from osmosis_ai.services.agent_loops import validate as validate_agent

    agent = validate_agent(module, run=run)
    name, warnings, trial = agent["agent_name"], agent["warnings"], agent["run"]
    rows: list[Row] = [("Name", name), ("Tools", agent["tool_count"]), ("Warnings", len(warnings))]
    if verbose:
        rows += [(f"  {each['code']}", f"{each['field']}: {each['message']}") for each in warnings]
    if trial is not None:
        calls = "1 call" if trial["model_calls"] == 1 else f"{trial['model_calls']} calls"
        rows.append(("Run", f"ended with {trial['finish_reason']!r} after {calls} of {trial['model']}"))
    return DetailResult(data=agent, title=f"Agent loop '{name}' is valid", rows=rows)


def try_agent(
    module: Annotated[
        str, typer.Option("--module", "-m", "--agent", help="Agent loop, as module:attribute.")
    ],
    dataset: DatasetOption,
    model: Annotated[
        str, typer.Option(help="Model: provider/model, or its name at --base-url.")
    ] = DEFAULT_MODEL,
    base_url: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible endpoint; needs no key.", metavar="URL")
    ] = None,
    api_key: ApiKeyOption = None,
    temperature: TemperatureOption = None,
    max_tokens: MaxTokensOption = None,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Skip the request that checks the model before the first row.")
    ] = False,
    max_turns: Annotated[
        int, typer.Option(help="Maximum turns per row, passed to the agent.")
    ] = DEFAULT_MAX_TURNS,
    timeout: Annotated[
        str, typer.Option(help="Time limit of a row: 90, 90s, 10m, 2h; not with --interactive.")
    ] = "10m",
    limit: Annotated[int | None, typer.Option(help="Maximum number of rows (default: all).")] = None,
    offset: OffsetOption = 0,
    batch_size: Annotated[int, typer.Option(help="Number of concurrent rows.")] = 1,
    output: OutputOption = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pause after each reply of the model.")
    ] = False,
    row: Annotated[int | None, typer.Option(help="Index of the first row, from 0.")] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show logs, and write events to ./test_debug/, one file per row.")
    ] = False,
    quiet: QuietOption = False,
) -> OperationResult:
    """Run an agent loop on rows of a file.

    The agent runs in this process and needs no workspace, login or config. The exit code is 1 if a row failed, and 0 after an
    interactive session.

    Examples:
        osmosis test -m server:agent_loop -d test_data.jsonl --limit 3
        osmosis test -m server:agent_loop -d test_data.jsonl --interactive
    """
    from osmosis_ai.cli.agent_loop_runs import show_logs
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
        raise typer.Exit(0 if interactive or _test_status(outcome) == "success" else 1)
    return _tested(request, outcome)


def _run_rows(request: AgentTestRequest, *, quiet: bool) -> AgentTestOutcome:
    from osmosis_ai import event_loop
    from osmosis_ai.cli.agent_loop_runs import LiveRows
    from osmosis_ai.services.agent_loops import prepare_agent_test, run_agent_test

    prepared = prepare_agent_test(request)
    if not quiet:
        current().note(
            f"Testing agent '{prepared.agent.name}' on {formats.count(prepared.total)} "
            f"row{'s' if prepared.total > 1 else ''} of {request.dataset} with {request.model}"
        )
    with LiveRows(current(), quiet=quiet, timeout_s=request.timeout_s) as live:
        return event_loop.run(run_agent_test(prepared, live, row_ended=live.row_ended))


def _step_through(request: AgentTestRequest) -> AgentTestOutcome:
    import asyncio

    from osmosis_ai import event_loop
    from osmosis_ai.cli.agent_loop_runs import SessionScreen
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


def _test_status(outcome: AgentTestOutcome) -> OperationStatus:
    if outcome.pending:
        return "partial"
    return "failed" if outcome.failures else "success"


def _tested(request: AgentTestRequest, outcome: AgentTestOutcome) -> OperationResult:
    total = len(outcome.rows)
    status: OperationStatus = "success" if request.interactive else _test_status(outcome)
    pending = f", {outcome.pending} not run" if outcome.pending else ""
    summary: tuple[tuple[str, int | str], ...] = (
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


def _refuse_isolation(context: typer.Context, isolate: bool) -> None:
    if isolate:
        context.fail(NO_SANDBOX)


def eval_classic(
    context: typer.Context,
    module: ModuleOption,
    dataset: DatasetOption,
    model: Annotated[
        str,
        typer.Option(
            help="Model: with --base-url its name at that endpoint, otherwise a LiteLLM name such as openai/gpt-5-mini."
        ),
    ],
    eval_fn: Annotated[list[str], typer.Option(help="Eval function, as module:function; repeatable.")],
    base_url: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible endpoint.")] = None,
    api_key: ApiKeyOption = None,
    temperature: TemperatureOption = None,
    max_tokens: MaxTokensOption = None,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Send the model one request before the first run.")
    ] = True,
    n: Annotated[int, typer.Option(help="Number of runs per row.")] = 1,
    pass_threshold: Annotated[float, typer.Option(help="Lowest score that passes.")] = 1.0,
    k: Annotated[list[int] | None, typer.Option(help="Additional k for pass@k; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of rows.")] = None,
    offset: OffsetOption = 0,
    max_turns: Annotated[int, typer.Option(help="Maximum turns per run, passed to the agent.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Number of concurrent runs.")] = 1,
    servers: ServersOption = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="Time limit of a run, and again of its eval functions: 90, 90s, 10m (default: 1h and 10m)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the evaluation.")] = 0,
    max_cost: Annotated[
        float | None, typer.Option(help="Budget in US dollars: start no more runs once it is spent.")
    ] = None,
    max_total_tokens: Annotated[
        int | None, typer.Option(help="Token budget: start no more runs once it is spent.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(help="Time budget: start no more runs after 90, 90s, 10m, 2h.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; an existing run of that name continues.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an existing run is archived.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Also retry failed runs.")] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Drop the damaged lines of a journal and repeat their runs.")
    ] = False,
    output: OutputOption = None,
    no_previews: NoPreviewsOption = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Write the agent's events to ./local_debug/, one file per run.")
    ] = False,
    quiet: QuietOption = False,
    _isolate: Annotated[
        bool, typer.Option("--isolate", hidden=True, is_eager=True, callback=_refuse_isolation)
    ] = False,
) -> OperationResult:
    """Evaluate an agent loop on a dataset with eval functions.

    The same command continues an interrupted run. Runs are stored in .osmosis/evals/ of the current directory.

    Examples:
        osmosis eval -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward --model openai/gpt-5-mini
    """
    from osmosis_ai.processes.privacy import disable_inspection

    # First, because the agent is another program of this user and must not read the keys of this process.
    disable_inspection(os.environ)
    from osmosis_ai import event_loop
    from osmosis_ai.cli import agent_loop_runs
    from osmosis_ai.controller.server_process import default_servers
    from osmosis_ai.evaluation.spec import Budget, EvalRunOptions
    from osmosis_ai.services.classic_eval import ClassicEvalRequest, prepare_classic_eval, run_classic_eval

    if context.args:
        context.fail(f"'{context.command_path}' takes no argument '{context.args[0]}'. {TWO_FORMS}")
    request = ClassicEvalRequest(
        module=module,
        dataset=expanded(dataset),
        model=model,
        eval_fns=tuple(eval_fn),
        n=n,
        pass_threshold=pass_threshold,
        batch_size=batch_size,
        max_turns=max_turns,
        temperature=temperature,
        max_tokens=max_tokens,
        api_key=api_key,
        base_url=base_url,
        limit=limit,
        offset=offset,
        output=expanded(output) if output else None,
        debug=debug,
        ks=tuple(k or ()),
        timeout_s=parse_duration(timeout, "--timeout") if timeout else None,
        probe=probe,
        options=EvalRunOptions(
            name=name,
            fresh=fresh,
            retry_failed=retry_failed,
            salvage=salvage,
            servers=servers or default_servers(),
            preflight=False,
            seed=seed,
            budget=Budget(
                max_cost,
                max_total_tokens,
                parse_duration(max_time, "--max-time") if max_time else None,
                tokens_option="--max-total-tokens",
            ),
            previews=not no_previews,
        ),
    )
    prepared = prepare_classic_eval(request)
    with agent_loop_runs.ClassicRun(current(), prepared, quiet=quiet) as live:
        result = event_loop.run(run_classic_eval(prepared, live))
    summary, stop = result.summary, result.summary.stop
    shown = OperationResult(
        operation="eval.classic",
        status="partial" if summary.pending else "success" if summary.succeeded else "failed",
        message=agent_loop_runs.message(result),
        resource={
            "run_name": summary.run_dir.name,
            "run_path": str(summary.run_dir),
            "output_path": str(request.output) if request.output else None,
            "summary": result.to_json(),
            "failed_rows": summary.failed_rows,
            **({"stopped": {"kind": stop.kind, "reason": stop.reason}} if stop else {}),
        },
        blocks=agent_loop_runs.blocks(request, result),
        next_steps=agent_loop_runs.next_steps(result),
    )
    if quiet and current().mode != "json" and shown.exit_code == 0:
        raise typer.Exit
    return shown

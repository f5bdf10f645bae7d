"""`osmosis eval -m module:agent`: evaluate an agent loop on a dataset with eval functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.options import NoPreviewsOption, ServersOption, parse_duration
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.root import TWO_FORMS
from osmosis_ai.files import expanded

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.eval_run import ClassicResults
    from osmosis_ai.services.classic_eval import PreparedClassicEval

MODEL, ROWS, PACE, LIMITS, RUN = "Model", "Rows and scores", "Execution", "Budget", "Run and results"
NO_SANDBOX = (
    "'osmosis eval -m' runs an agent loop without a sandbox. To use one, write a workflow with a config file and run "
    "'osmosis eval run CONFIG --isolate'."
)


def _refuse_isolation(context: typer.Context, isolate: bool) -> None:
    if isolate:
        context.fail(NO_SANDBOX)


def eval_classic(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Option("--module", "-m", help="Agent loop, as module:attribute.", show_default=False),
    ],
    dataset: Annotated[
        Path,
        typer.Option(
            "--dataset", "-d", help="Dataset: a .jsonl, .json or .parquet file.", show_default=False
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Model: with --base-url its name at that endpoint, otherwise a LiteLLM name such as openai/gpt-5-mini.",
            show_default=False,
        ),
    ],
    eval_fn: Annotated[
        list[str],
        typer.Option("--eval-fn", help="Eval function, as module:function; repeatable.", show_default=False),
    ],
    base_url: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible endpoint.", rich_help_panel=MODEL)
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
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Send the model one request before the first run.")
    ] = True,
    n: Annotated[int, typer.Option(help="Number of runs per row.", rich_help_panel=ROWS)] = 1,
    pass_threshold: Annotated[
        float, typer.Option(help="Lowest score that passes.", rich_help_panel=ROWS)
    ] = 1.0,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", help="Additional k for pass@k; repeatable.", rich_help_panel=ROWS),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of rows.", rich_help_panel=ROWS)] = None,
    offset: Annotated[
        int, typer.Option(help="Number of rows to skip at the start.", rich_help_panel=ROWS)
    ] = 0,
    max_turns: Annotated[
        int, typer.Option(help="Maximum turns per run, passed to the agent.", rich_help_panel=PACE)
    ] = 10,
    batch_size: Annotated[int, typer.Option(help="Number of concurrent runs.", rich_help_panel=PACE)] = 1,
    servers: ServersOption = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="Time limit of a run, and again of its eval functions: 90, 90s, 10m (default: 1h and 10m).",
            rich_help_panel=PACE,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the evaluation.", rich_help_panel=PACE)] = 0,
    max_cost: Annotated[
        float | None,
        typer.Option(
            help="Budget in US dollars: start no more runs once it is spent.", rich_help_panel=LIMITS
        ),
    ] = None,
    max_total_tokens: Annotated[
        int | None,
        typer.Option(help="Token budget: start no more runs once it is spent.", rich_help_panel=LIMITS),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(help="Time budget: start no more runs after 90, 90s, 10m, 2h.", rich_help_panel=LIMITS),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run; an existing run of that name continues.", rich_help_panel=RUN),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an existing run is archived.", rich_help_panel=RUN)
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also retry failed runs.", rich_help_panel=RUN)
    ] = False,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage",
            help="Drop the damaged lines of a journal and repeat their runs.",
            rich_help_panel=RUN,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Path of a JSON file for the results.", rich_help_panel=RUN),
    ] = None,
    no_previews: NoPreviewsOption = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Write the agent's events to ./local_debug/, one file per run.",
            rich_help_panel=RUN,
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel=RUN)
    ] = False,
    _isolate: Annotated[
        bool, typer.Option("--isolate", hidden=True, is_eager=True, callback=_refuse_isolation)
    ] = False,
) -> OperationResult:
    """Evaluate an agent loop on a dataset with eval functions.

    The same command continues an interrupted run. Runs are stored in .osmosis/evals/ of the current directory.

    Examples:
        osmosis eval -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward --model openai/gpt-5-mini
    """
    from osmosis_ai.processes import disable_inspection

    # First, because the agent is another program of this user and must not read the keys of this process.
    disable_inspection(os.environ)
    from osmosis_ai import event_loop
    from osmosis_ai.cli.agent_loops.classic_run import ClassicRun
    from osmosis_ai.controller.server_process import default_servers
    from osmosis_ai.evaluation.spec import Budget, EvalRunOptions
    from osmosis_ai.services.classic_eval import (
        ClassicEvalRequest,
        prepare_classic_eval,
        run_classic_eval,
    )

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
    with ClassicRun(current(), prepared, quiet=quiet) as live:
        result = event_loop.run(run_classic_eval(prepared, live))
    shown = _operation(prepared, result)
    if quiet and current().mode != "json" and shown.exit_code == 0:
        raise typer.Exit
    return shown


def _operation(prepared: PreparedClassicEval, result: ClassicResults) -> OperationResult:
    from osmosis_ai.cli.agent_loops.classic_run import blocks, message, next_steps

    summary, output = result.summary, prepared.request.output
    return OperationResult(
        operation="eval.classic",
        status="partial" if summary.pending else "success" if summary.succeeded else "failed",
        message=message(result),
        resource={
            "run_name": summary.run_dir.name,
            "run_path": str(summary.run_dir),
            "output_path": str(output) if output else None,
            "summary": result.to_json(),
            "failed_rows": summary.failed_rows,
            **(
                {"stopped": {"kind": summary.stop.kind, "reason": summary.stop.reason}}
                if summary.stop
                else {}
            ),
        },
        blocks=blocks(prepared.request, result),
        next_steps=next_steps(result),
    )

"""`osmosis validate`: check that an agent loop can be served, tested, evaluated and trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.output.results import DetailResult, Row

if TYPE_CHECKING:
    from osmosis_ai.services.agent_loops import ValidatedAgent


def validate(
    module: Annotated[str, typer.Option("--module", "-m", help="Agent loop, as module:attribute.")],
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

    return _result(validate_agent(module, run=run), verbose=verbose)


def _result(agent: ValidatedAgent, *, verbose: bool) -> DetailResult:
    rows: list[Row] = [("Name", agent.name), ("Tools", agent.tool_count), ("Warnings", len(agent.warnings))]
    if verbose:
        rows += [(f"  {each['code']}", f"{each['field']}: {each['message']}") for each in agent.warnings]
    if agent.trial is not None:
        calls = "1 call" if agent.trial.model_calls == 1 else f"{agent.trial.model_calls} calls"
        rows.append(("Run", f"ended with {agent.trial.finish_reason!r} after {calls} of {agent.trial.model}"))
    return DetailResult(
        data={
            "valid": True,
            "agent_name": agent.name,
            "tool_count": agent.tool_count,
            "errors": [],
            "warnings": agent.warnings,
            "run": agent.trial and asdict(agent.trial),
        },
        title=f"Agent loop '{agent.name}' is valid",
        rows=rows,
    )

"""`osmosis template`: agents to begin with."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.output.results import Column, ListResult, OperationResult
from osmosis_ai.cli.rollouts import DiffOption, conflicts_with_diff, written_lines

app = typer.Typer(help="Begin with an agent that works.")


@app.command("list")
def list_() -> ListResult:
    """List the templates: agents that come with Osmosis, or those of OSMOSIS_WORKSPACE_TEMPLATE_PATH.

    Examples:
        osmosis template list
    """
    from osmosis_ai.services.rollouts import list_templates

    items = [{"name": template.name, "summary": template.summary} for template in list_templates()]
    return ListResult(
        items,
        # Scripts take every plain line for a name.
        (Column("Name", "name", keep=True), Column("What it is", "summary", in_plain=False)),
        hints=["Write one into this repository: osmosis template apply NAME"],
    )


def complete_template(incomplete: str) -> list[str]:
    """Return the names of templates that begin with what was typed."""
    from osmosis_ai.errors import OsmosisError
    from osmosis_ai.workspace.rollout_templates import template_names

    try:
        return [name for name in template_names() if name.startswith(incomplete)]
    except (OsmosisError, OSError):  # a shell's prompt is no place for an error
        return []


@app.command("apply")
def apply(
    name: Annotated[
        str,
        typer.Argument(
            help="One of `osmosis template list`.", show_default=False, autocompletion=complete_template
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace a rollout, configs and data of those names.")
    ] = False,
    diff: DiffOption = False,
) -> OperationResult:
    """Write a template into this repository: its rollout, its configs and their data.

    Examples:
        osmosis template apply multiply
    """
    from osmosis_ai.services.rollouts import apply_template

    with conflicts_with_diff(diff):
        template, resource = apply_template(name, force=force)
    evaluations = [path for path in template.config_paths if path.startswith("configs/eval/")]
    return OperationResult(
        operation="template.apply",
        status="success" if resource["files"] else "noop",
        message=f"Applied template '{name}'."
        if resource["files"]
        else f"Template '{name}' is here already, word for word: nothing was changed.",
        resource=resource,
        next_steps=[
            *written_lines(resource),
            *(f"Evaluate on this machine: osmosis eval run {path}" for path in evaluations),
        ],
        next_steps_structured=[{"action": "eval_run", "config": path} for path in evaluations],
    )

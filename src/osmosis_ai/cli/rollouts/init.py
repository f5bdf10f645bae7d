"""`osmosis rollout init`: a new agent with its configs."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.output.results import OperationResult


def init(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and hyphens.")],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace a rollout and configs of that name.")
    ] = False,
) -> OperationResult:
    """Write a new rollout with an eval and a training config."""
    from osmosis_ai.services.rollouts.catalog import initialize_rollout

    resource = initialize_rollout(name, force=force).resource()
    added = resource["gitignore"]["added"]
    eval_config = resource["configs"]["eval"]
    return OperationResult(
        operation="rollout.init",
        message=f"Initialized rollout '{name}'.",
        resource=resource,
        next_steps=[
            *(f"  {path}" for path in resource["files"]),
            *([f"  .gitignore now ignores {' and '.join(added)}"] if added else []),
            f"Write the agent and its grader: {resource['rollout_dir']}/main.py",
            f"Name the dataset and the model: {eval_config}",
            f"Evaluate on this machine: osmosis eval run {eval_config}",
        ],
        next_steps_structured=[{"action": "eval_run", "config": eval_config}],
    )

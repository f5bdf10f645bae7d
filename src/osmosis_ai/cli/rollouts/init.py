"""`osmosis rollout init`: a new agent with its configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from osmosis_ai.cli.output.results import OperationResult

DiffOption = Annotated[
    bool, typer.Option("--diff", help="If files exist, show how the new ones differ.", show_default=False)
]


def init(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="Lower-case letters, digits and hyphens.", show_default=False),
    ] = None,
    example: Annotated[
        bool,
        typer.Option("--example", help="Write an agent that works, with its data, instead of a skeleton."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace a rollout and configs of that name.")
    ] = False,
    diff: DiffOption = False,
) -> OperationResult:
    """Write a new rollout with an eval and a training config.

    Examples:
        osmosis rollout init capitals
        osmosis rollout init my-calculator --example
    """
    from osmosis_ai.services.rollouts import initialize_rollout

    if name is None and not example:
        context.fail("Missing argument 'NAME'.")
    with conflicts_with_diff(diff):
        resource = initialize_rollout(name, example=example, force=force).resource()
    eval_config = resource["configs"]["eval"]
    return OperationResult(
        operation="rollout.init",
        message=f"Initialized rollout '{resource['name']}'.",
        resource=resource,
        next_steps=[
            *written_lines(resource),
            f"{'Change' if example else 'Write'} the agent and its grader: {resource['rollout_dir']}/main.py",
            *([] if example else [f"Name the dataset and the model: {eval_config}"]),
            f"Evaluate on this machine: osmosis eval run {eval_config}",
        ],
        next_steps_structured=[{"action": "eval_run", "config": eval_config}],
    )


def written_lines(resource: Mapping[str, Any]) -> list[str]:
    """Return a line for each file that was written, and one for what Git ignores now, of a result's resource."""
    added = resource["gitignore"]["added"]
    lines = [f"  {path}" for path in resource["files"]]
    return [*lines, f"  .gitignore now ignores {' and '.join(added)}"] if added else lines


@contextmanager
def conflicts_with_diff(wanted: bool) -> Iterator[None]:
    """Add the differences to the error about files that already exist, if ``wanted``."""
    from osmosis_ai.errors import ConflictError

    try:
        yield
    except ConflictError as conflict:
        from osmosis_ai.workspace.differences import join_differences

        shown = join_differences(conflict.details.get("differences", {})) if wanted else ""
        if not shown:
            raise
        raise ConflictError(f"{conflict}\n{shown}", details=conflict.details, hint=conflict.hint) from None

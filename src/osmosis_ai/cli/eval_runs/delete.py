"""`osmosis eval delete`: a run that has ended, or an uploaded result of judges, for good."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult


def delete(
    run: RunArgument,
    rubric: Annotated[
        bool,
        typer.Option(
            "--rubric", help="Delete the uploaded rubric result of this name or id, instead of a run."
        ),
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Delete an evaluation run of the platform that has ended: its samples, trajectories, artifacts and log.

    Examples:
        osmosis eval delete copper-finch
        osmosis eval delete --rubric results
    """
    if rubric:
        return _delete_rubric_result(run, yes=yes)
    from osmosis_ai.cli.eval_runs.view import VIEW

    return VIEW.delete(run, yes=yes)


def _delete_rubric_result(name: str, *, yes: bool) -> OperationResult:
    from osmosis_ai.cli.connection import platform_context
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.services.deletion import delete_rubric_result, find_deletable_rubric_result

    output = current()
    with platform_context() as context:
        with output.status("Looking it up"):
            found = find_deletable_rubric_result(context.client, name)
        summary = {
            "Rubric result": found.name,
            **({"Judges": found.model} if found.model else {}),
            **({"Uploaded by": found.creator_name} if found.creator_name else {}),
        }
        output.confirm(
            f'Delete rubric result "{found.name}"? This cannot be undone.', yes=yes, summary=summary
        )
        with output.status(f"Deleting {found.name}"):
            delete_rubric_result(context.client, found)
        return OperationResult(
            operation="eval.delete",
            message=f'Rubric result "{found.name}" deleted.',
            resource={"id": found.id, "name": found.name, **context.resource()},
        )

"""`osmosis train checkpoints`: the adapters that a training run has saved."""

from __future__ import annotations

from shlex import quote

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult


def checkpoints(run: RunArgument) -> ListResult:
    """List the checkpoints of a training run, the earliest first; each is a model that can be deployed.

    Examples:
        osmosis train checkpoints keen-owl-2
    """
    from osmosis_ai.cli.training_runs.tables import checkpoint_columns, deploy_hint
    from osmosis_ai.services.training_runs.info import checkpoint_item, list_checkpoints
    from osmosis_ai.services.training_runs.local_runs import require_run_of_platform

    require_run_of_platform(
        run, "osmosis train checkpoints", lambda _: f"osmosis train info {quote(run)} lists its checkpoints"
    )
    with platform_context() as context, current().status("Fetching checkpoints"):
        saved = list_checkpoints(context.client, run)
        return ListResult(
            items=[checkpoint_item(checkpoint) for checkpoint in saved.checkpoints],
            columns=checkpoint_columns(),
            extra={"training_run_name": saved.training_run_name, **context.resource()},
            hints=deploy_hint(saved.checkpoints),
        )

"""`osmosis model undeploy`: stop serving a trained adapter."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.models.tables import LoraArgument, deployment_result
from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def undeploy(model: LoraArgument, yes: YesOption = False) -> OperationResult:
    """Serve a LoRA model no longer; doing so twice changes nothing. Asks on a terminal, never a script.

    Examples:
        osmosis model undeploy keen-owl-2-step-40
    """
    from osmosis_ai.services import models

    output = current()
    with platform_context() as context:
        # Scripts written for the hosted service name no --yes here.
        if output.interactive:
            output.confirm(f'Stop serving "{model}"? Who calls it will be refused.', yes=yes, default=False)
        with output.status("Undeploying model"):
            changed = models.undeploy(context.client, model)
        return deployment_result("undeploy", model, changed, context)

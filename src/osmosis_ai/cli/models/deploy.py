"""`osmosis model deploy`: serve a trained adapter."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.models.tables import LoraArgument, deployment_result
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def deploy(model: LoraArgument) -> OperationResult:
    """Serve a LoRA model at the platform's endpoint; doing so twice changes nothing.

    Examples:
        osmosis model deploy keen-owl-2-step-40
    """
    from osmosis_ai.services import models

    with platform_context() as context:
        with current().status("Deploying model"):
            changed = models.deploy(context.client, model)
        return deployment_result("deploy", model, changed, context)

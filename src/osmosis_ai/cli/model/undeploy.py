"""`osmosis model undeploy`: stop serving a trained adapter."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.model.tables import LoraArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def undeploy(model: LoraArgument) -> OperationResult:
    """Serve a LoRA model no longer; doing so twice changes nothing."""
    from osmosis_ai.services import models

    with platform_context() as context:
        with current().status("Undeploying model"):
            changed = models.undeploy(context.client, model)
        name = changed.model_name or model
        return OperationResult(
            operation="model.undeploy",
            message=f"LoRA model undeployed: {name}",
            resource={
                "id": changed.id,
                "model_name": name,
                "status": changed.status,
                **context.resource(),
            },
        )

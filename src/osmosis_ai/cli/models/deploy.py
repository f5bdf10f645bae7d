"""`osmosis model deploy`: serve a trained adapter."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.models.tables import LoraArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def deploy(model: LoraArgument) -> OperationResult:
    """Serve a LoRA model at the platform's endpoint; doing so twice changes nothing."""
    from osmosis_ai.services.models import catalog

    with platform_context() as context:
        with current().status("Deploying model"):
            changed = catalog.deploy(context.client, model)
        name = changed.model_name or model
        return OperationResult(
            operation="model.deploy",
            message=f"LoRA model deployed: {name}",
            resource={
                "id": changed.id,
                "model_name": name,
                "status": changed.status,
                **context.resource(),
            },
            next_steps=[f"How to call it: osmosis model info {name}"],
        )

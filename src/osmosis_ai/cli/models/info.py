"""`osmosis model info`: one trained adapter."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.models.tables import LoraArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult


def info(model: LoraArgument) -> DetailResult:
    """Show a LoRA model: where it comes from, and how it is served.

    Examples:
        osmosis model info keen-owl-2-step-40
    """
    from osmosis_ai.cli.models import tables
    from osmosis_ai.services.models import get_lora_model, lora_detail

    with platform_context() as context, current().status("Fetching model"):
        found = get_lora_model(context.client, model)
        return DetailResult(
            data={
                "lora_model": lora_detail(found),
                **({"platform_url": found.platform_url} if found.platform_url else {}),
                **context.resource(),
            },
            title="LoRA Model",
            rows=tables.rows(found),
            sections=tables.sections(found),
            blocks=tables.example(found, context.client.platform_url),
            hints=tables.hints(found),
        )

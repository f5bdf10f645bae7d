"""`osmosis model list`: base models and trained adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult, SectionedListResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.models import LoraModel
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.listing import Listing

_TYPES = ("all", "base", "lora")


def list_(
    limit: LimitOption = 50,
    everything: AllOption = False,
    kind: Annotated[str, typer.Option("--type", help="base, lora or all.")] = "all",
) -> ListResult | SectionedListResult:
    """List the models of the platform and the adapters trained on them, the newest first.

    Examples:
        osmosis model list --type lora
    """
    asked = kind.strip().lower()
    if asked not in _TYPES:
        raise OsmosisError(f"--type takes all, base or lora, and not {kind!r}.", details={"type": kind})
    with platform_context() as context, current().status("Fetching models"):
        if asked == "base":
            return _base(context, limit, everything, context.resource())
        adapters, deployments = _lora(context, limit, everything, context.resource())
        if asked == "lora":
            return adapters
        return SectionedListResult(
            sections={"base_models": _base(context, limit, everything, {}), "lora_models": adapters},
            extra={**deployments, **context.resource()},
        )


def _base(context: PlatformContext, limit: int, everything: bool, extra: dict[str, Any]) -> ListResult:
    from osmosis_ai.cli.models.tables import base_columns
    from osmosis_ai.services.models import base_item, list_base_models

    listing = list_base_models(context.client, limit=limit, everything=everything)
    return list_result(listing, base_item, columns=base_columns(), extra=extra, title="Base Models")


def _lora(
    context: PlatformContext, limit: int, everything: bool, extra: dict[str, Any]
) -> tuple[ListResult, dict[str, Any]]:
    from osmosis_ai.cli.models.tables import deployments_hint, lora_columns
    from osmosis_ai.services.models import can_be_deployed, list_lora_models, lora_item

    listing: Listing[LoraModel]
    listing, deployments = list_lora_models(context.client, limit=limit, everything=everything)
    result = list_result(
        listing,
        lora_item,
        columns=lora_columns(with_deployment=any(map(can_be_deployed, listing.items))),
        extra={**deployments.data(), **extra},
        hints=deployments_hint(deployments),
        title="LoRA Models",
    )
    return result, deployments.data()

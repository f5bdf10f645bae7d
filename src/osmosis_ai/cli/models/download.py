"""`osmosis model download`: a trained adapter on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.models.tables import LoraArgument
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def download(
    model: LoraArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The adapter's folder (default: .osmosis/models/NAME).", show_default=False
        ),
    ] = None,
) -> OperationResult:
    """Fetch a LoRA model's adapter in PEFT's format, each file checked; a folder that is there is whole.

    Examples:
        osmosis model download keen-owl-2-step-40 -o adapters/
    """
    from osmosis_ai.cli.output.formats import shown_path
    from osmosis_ai.services.models import download_model, plan_model_download

    out = current()
    with platform_context() as context:
        with out.status("Fetching the list of files"):
            plan = plan_model_download(context.client, model, workspace=context.workspace, output=output)
        with out.progress("Downloading", total=plan.total_bytes, unit="bytes") as shown:
            found = download_model(context.client, plan, progress=shown.update)
        place = shown_path(found.directory)
        size = formats.size(plan.total_bytes)
        return OperationResult(
            operation="model.download",
            status="success" if found.fetched else "noop",
            message=f"{found.name} is in {place}: {len(found.files)} files, {size}."
            if found.fetched
            else f"{found.name} was in {place} already, every byte of it.",
            resource={**found.resource(), **context.resource()},
            next_steps=[
                f"Base model: {found.base_model}",
                f'Load it: peft.PeftModel.from_pretrained(base, "{place}")',
            ]
            if found.base_model
            else (),
        )

"""`osmosis model`: models, and serving those that were trained."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.name_completion import complete_model
from osmosis_ai.cli.options import AllOption, LimitOption, YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import (
    Block,
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    Row,
    Section,
    SectionedListResult,
    Status,
    Text,
    Timestamp,
)
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.models import DeploymentChange, LoraModel
    from osmosis_ai.services.context import PlatformContext

_TYPES = ("all", "base", "lora")
_ACTIVE = "active"
_NEVER = "not deployed"

LoraArgument = Annotated[
    str, typer.Argument(help="Name of a LoRA model; BASE:NAME is one, too.", autocompletion=complete_model)
]

app = typer.Typer()


@app.command("list")
def list_(
    limit: LimitOption = 50,
    everything: AllOption = False,
    kind: Annotated[str, typer.Option("--type", help="base, lora or all.")] = "all",
) -> ListResult | SectionedListResult:
    """List base models and trained adapters, newest first.

    Examples:
        osmosis model list --type lora
    """
    asked = kind.strip().lower()
    if asked not in _TYPES:
        raise OsmosisError(f"--type takes all, base or lora, and not {kind!r}.", details={"type": kind})
    sections: dict[str, ListResult] = {}
    deployments: dict[str, Any] = {}
    with platform_context() as context, current().status("Fetching models"):
        if asked != "lora":
            sections["base_models"] = _base_models(context.client, limit, everything)
        if asked != "base":
            sections["lora_models"], deployments = _lora_models(context.client, limit, everything)
        extra = {**deployments, **context.resource()}
    if asked == "all":
        return SectionedListResult(sections=sections, extra=extra)
    [listed] = sections.values()
    return replace(listed, extra=extra)


def _base_models(client: PlatformClient, limit: int, everything: bool) -> ListResult:
    from osmosis_ai.services.models import list_base_models

    return list_result(
        list_base_models(client, limit=limit, everything=everything),
        lambda row: row.model_dump(mode="json"),
        columns=(
            Column("Name", value=lambda item: item["model_name"] or item["id"], keep=True),
            Column("Created", value=lambda item: Timestamp(item["created_at"])),
            Column("Created By", "creator_name"),
        ),
        title="Base Models",
    )


def _lora_models(client: PlatformClient, limit: int, everything: bool) -> tuple[ListResult, dict[str, Any]]:
    from osmosis_ai.services.models import can_be_deployed, list_lora_models, lora_item

    listing, deployments = list_lora_models(client, limit=limit, everything=everything)
    columns = [
        Column("Name", value=lambda item: item["model_name"] or "(unnamed)", keep=True),
        Column("Base Model", "base_model"),
        Column("Training Run", "training_run_name"),
        Column("Checkpoint Step", "checkpoint_step", right=True),
        Column("Training Reward", value=lambda item: _reward(item["reward"]), right=True),
        Column("Created", value=lambda item: Timestamp(item["created_at"])),
    ]
    if any(map(can_be_deployed, listing.items)):
        columns.append(
            Column("Deployment Status", value=lambda item: Status(item.get("deployment_status") or _NEVER))
        )
    active, maximum = deployments.get("active_deployments"), deployments.get("max_active_deployments")
    most = f" of {maximum}" if maximum is not None else ""
    hints = [] if active is None else [f"Deployed: {active}{most}"]
    result = list_result(listing, lora_item, columns=columns, hints=hints, title="LoRA Models")
    return result, deployments


@app.command("info")
def info(model: LoraArgument) -> DetailResult:
    """Show the origin and deployment of a LoRA model.

    Examples:
        osmosis model info keen-owl-2-step-40
    """
    from osmosis_ai.services.models import get_lora_model, lora_detail

    with platform_context() as context, current().status("Fetching model"):
        found = get_lora_model(context.client, model)
        uploaded = (
            ("Upload Status", (found.hf_upload_status or "").replace("_", " ").title()),
            ("URL", found.hf_url),
            ("Uploaded By", found.uploaded_by),
        )
        sections = [
            Section("Hugging Face", [(label, value) for label, value in uploaded if value]),
            Section("Deployment", list(_deployment(found))),
        ]
        return DetailResult(
            data={
                "lora_model": lora_detail(found),
                **({"platform_url": found.platform_url} if found.platform_url else {}),
                **context.resource(),
            },
            title="LoRA Model",
            rows=[
                ("Name", found.model_name or "(unnamed)"),
                *([("ID", found.id)] if found.is_internal_user else []),
                ("Base Model", found.base_model),
                ("Training Run", found.training_run_name),
                ("Checkpoint Step", found.checkpoint_step),
                ("Training Reward", _reward(found.reward)),
                ("Validation Reward", _reward(found.validation_reward)),
                ("Created", Timestamp(found.created_at, seconds=True)),
            ],
            sections=[section for section in sections if section.rows],
            blocks=_example(found, context.client.platform_url),
            hints=_hints(found),
        )


def _example(model: LoraModel, platform_url: str) -> list[Block]:
    """Return a request that the adapter answers, once it is deployed."""
    if model.deployment_status != _ACTIVE or not model.inference_model:
        return []
    from osmosis_ai.services.models import inference_url

    body = {"model": model.inference_model, "messages": [{"role": "user", "content": "Hello!"}]}
    request = (
        f"curl {shlex.quote(inference_url(platform_url))} \\\n"
        '  -H "Authorization: Bearer $OSMOSIS_API_KEY" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
    return [Text(request, title="Ask it", in_plain=True)]


def _hints(model: LoraModel) -> list[str]:
    from osmosis_ai.services.models import can_be_deployed

    said = [f"View: {model.platform_url}"] if model.platform_url else []
    name = model.model_name or model.id
    said.append(f"Download with: osmosis model download {name}")
    if can_be_deployed(model):
        is_active = model.deployment_status == _ACTIVE
        said.append(
            f"Take back with: osmosis model undeploy {name}"
            if is_active
            else f"Deploy with: osmosis model deploy {name}"
        )
    return said


def _deployment(model: LoraModel) -> Iterator[Row]:
    from osmosis_ai.services.models import can_be_deployed

    if not can_be_deployed(model):
        return
    yield "Status", Status(model.deployment_status or _NEVER)
    if model.deployed_at is not None:
        yield "Deployed", Timestamp(model.deployed_at, seconds=True)
    if model.deployed_by:
        yield "Deployed By", model.deployed_by
    if model.inference_model:
        yield "Model Name", model.inference_model


def _reward(reward: float | None) -> str:
    return formats.MISSING if reward is None else f"{reward:.3f}"


@app.command("deploy")
def deploy(model: LoraArgument) -> OperationResult:
    """Deploy a LoRA model to the platform's endpoint.

    Deploying a deployed model changes nothing.

    Examples:
        osmosis model deploy keen-owl-2-step-40
    """
    from osmosis_ai.services import models

    with platform_context() as context:
        with current().status("Deploying model"):
            changed = models.deploy(context.client, model)
        return _deployment_result("deploy", model, changed, context)


def _deployment_result(
    verb: str, model: str, changed: DeploymentChange, context: PlatformContext
) -> OperationResult:
    name = changed.model_name or model
    return OperationResult(
        operation=f"model.{verb}",
        message=f"LoRA model {verb}ed: {name}",
        resource={"id": changed.id, "model_name": name, "status": changed.status, **context.resource()},
        next_steps=[f"How to call it: osmosis model info {name}"] if verb == "deploy" else (),
    )


@app.command("undeploy")
def undeploy(model: LoraArgument, yes: YesOption = False) -> OperationResult:
    """Undeploy a LoRA model.

    Undeploying twice changes nothing. On a terminal, you are asked to confirm.

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
        return _deployment_result("undeploy", model, changed, context)


@app.command("download")
def download(
    model: LoraArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The adapter's folder (default: .osmosis/models/NAME)."),
    ] = None,
) -> OperationResult:
    """Download a LoRA adapter in PEFT format.

    Each file is checked. The folder appears only when it is complete.

    Examples:
        osmosis model download keen-owl-2-step-40 -o adapters/
    """
    from osmosis_ai.services.models import download_model, plan_model_download

    out = current()
    with platform_context() as context:
        with out.status("Fetching the list of files"):
            plan = plan_model_download(context.client, model, workspace=context.workspace, output=output)
        with out.progress("Downloading", total=plan.total_bytes, unit="bytes") as shown:
            found = download_model(context.client, plan, progress=shown.update)
        place = formats.shown_path(found.directory)
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

"""Models, as people see them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.name_completion import complete_model
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import (
    Block,
    Column,
    OperationResult,
    Row,
    Section,
    Status,
    Text,
    Timestamp,
)

if TYPE_CHECKING:
    from osmosis_ai.api.wire.models import DeploymentChange, LoraModel
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.models import Deployments

LoraArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a LoRA model; BASE:NAME is one, too.",
        show_default=False,
        autocompletion=complete_model,
    ),
]

_ACTIVE = "active"
_NEVER = "not deployed"


def base_columns() -> tuple[Column, ...]:
    """Return what a list shows of each base model."""
    return (
        Column("Name", value=lambda item: item["model_name"] or item["id"], keep=True),
        Column("Created", value=lambda item: Timestamp(item["created_at"])),
        Column("Created By", "creator_name"),
    )


def lora_columns(*, with_deployment: bool) -> tuple[Column, ...]:
    """Return what a list shows of each adapter; its deployment only where that is offered."""
    deployment = Column(
        "Deployment Status", value=lambda item: Status(item.get("deployment_status") or _NEVER)
    )
    return (
        Column("Name", value=lambda item: item["model_name"] or "(unnamed)", keep=True),
        Column("Base Model", "base_model"),
        Column("Training Run", "training_run_name"),
        Column("Checkpoint Step", "checkpoint_step", right=True),
        Column("Training Reward", value=lambda item: _reward(item["reward"]), right=True),
        Column("Created", value=lambda item: Timestamp(item["created_at"])),
        *((deployment,) if with_deployment else ()),
    )


def deployments_hint(deployments: Deployments) -> list[str]:
    """Return how many adapters are deployed, where that is offered."""
    if deployments.active is None:
        return []
    most = f" of {deployments.maximum}" if deployments.maximum is not None else ""
    return [f"Deployed: {deployments.active}{most}"]


def rows(model: LoraModel) -> list[Row]:
    """Return the main facts of an adapter."""
    found: list[Row] = [("Name", model.model_name or "(unnamed)")]
    if model.is_internal_user:
        found.append(("ID", model.id))
    return [
        *found,
        ("Base Model", model.base_model),
        ("Training Run", model.training_run_name),
        ("Checkpoint Step", model.checkpoint_step),
        ("Training Reward", _reward(model.reward)),
        ("Validation Reward", _reward(model.validation_reward)),
        ("Created", Timestamp(model.created_at, seconds=True)),
    ]


def sections(model: LoraModel) -> list[Section]:
    """Return where else the adapter is, and whether it is served."""
    found = [
        Section("Hugging Face", list(_hugging_face(model))),
        Section("Deployment", list(_deployment(model))),
    ]
    return [section for section in found if section.rows]


def example(model: LoraModel, platform_url: str) -> list[Block]:
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


def hints(model: LoraModel) -> list[str]:
    """Return where to look next."""
    from osmosis_ai.services.models import can_be_deployed

    said = [f"View: {model.platform_url}"] if model.platform_url else []
    name = model.model_name or model.id
    said.append(f"Download with: osmosis model download {name}")
    if not can_be_deployed(model):
        return said
    if model.deployment_status == _ACTIVE:
        said.append(f"Take back with: osmosis model undeploy {name}")
    else:
        said.append(f"Deploy with: osmosis model deploy {name}")
    return said


def _hugging_face(model: LoraModel) -> Iterator[Row]:
    if model.hf_upload_status:
        yield "Upload Status", model.hf_upload_status.replace("_", " ").title()
    if model.hf_url:
        yield "URL", model.hf_url
    if model.uploaded_by:
        yield "Uploaded By", model.uploaded_by


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


def deployment_result(
    verb: str, model: str, changed: DeploymentChange, context: PlatformContext
) -> OperationResult:
    """Return what `model deploy` or `model undeploy` (``verb``) has come to."""
    name = changed.model_name or model
    return OperationResult(
        operation=f"model.{verb}",
        message=f"LoRA model {verb}ed: {name}",
        resource={"id": changed.id, "model_name": name, "status": changed.status, **context.resource()},
        next_steps=[f"How to call it: osmosis model info {name}"] if verb == "deploy" else (),
    )

"""`osmosis model`: list models, and deploy, download or upload trained adapters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.completion import complete_model
from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption, YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import aligned, next_block
from osmosis_ai.cli.output.results import (
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    SectionedListResult,
    Status,
    Text,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.models import DeploymentChange, LoraModel
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.models import ModelDownloader

_TYPES = ("all", "base", "lora")
_ACTIVE = "active"
_NEVER = "not deployed"

LoraArgument = Annotated[
    str,
    typer.Argument(
        help="LoRA model as NAME or BASE:NAME, or a training run with exactly one deployed adapter.",
        autocompletion=complete_model,
    ),
]

app = typer.Typer()


@app.command("list")
def list_(
    limit: LimitOption = 50,
    everything: AllOption = False,
    kind: Annotated[str, typer.Option("--type", help="Type of the models: base, lora or all.")] = "all",
) -> ListResult | SectionedListResult:
    """List base models and trained adapters, newest first.

    Examples:
        osmosis model list --type lora
    """
    asked = kind.strip().lower()
    if asked not in _TYPES:
        raise OsmosisError(f"--type must be all, base or lora, got {kind!r}.", details={"type": kind})
    sections: dict[str, ListResult] = {}
    with platform_context() as context, current().status("Fetching models"):
        if asked != "lora":
            sections["base_models"] = _base_models(context.client, limit, everything)
        if asked != "base":
            sections["lora_models"] = _lora_models(context.client, limit, everything)
    extra = {**(sections["lora_models"].extra if asked != "base" else {}), **context.resource()}
    if asked == "all":
        return SectionedListResult(sections=sections, extra=extra)
    [listed] = sections.values()
    return replace(listed, extra=extra)


def _base_models(client: PlatformClient, limit: int, everything: bool) -> ListResult:
    from osmosis_ai.services.models import list_base_models

    return list_result(
        list_base_models(client, limit=limit, everything=everything),
        columns=(
            Column("Name", value=lambda item: item["model_name"] or item["id"], keep=True),
            Column("Created", "created_at"),
            Column("Created by", "creator_name"),
        ),
        title="Base models",
    )


def _lora_models(client: PlatformClient, limit: int, everything: bool) -> ListResult:
    from osmosis_ai.services.models import list_lora_models

    listing = list_lora_models(client, limit=limit, everything=everything)
    columns = [
        Column("Name", value=lambda item: item["model_name"] or "(unnamed)", keep=True),
        Column("Base model", "base_model"),
        Column("Training run", "training_run_name", in_rich=False),
        Column("Step", "checkpoint_step", right=True),
        Column("Training reward", value=lambda item: formats.number(item["reward"]), right=True),
        Column("Created", "created_at"),
    ]
    if any(each.can_be_deployed for each in listing.items):
        columns.append(
            Column("Deployment", value=lambda item: Status(item.get("deployment_status") or _NEVER))
        )
    extra, hints = {}, []
    if "active_deployments" in listing.model_fields_set:
        active, maximum = listing.active_deployments or 0, listing.max_active_deployments
        extra = {"active_deployments": active, "max_active_deployments": maximum}
        hints = [f"Deployed: {active}" + (f" of {maximum}" if maximum is not None else "")]
    return list_result(
        listing,
        item=lambda model: model.printed(in_list=True),
        columns=columns,
        extra=extra,
        hints=hints,
        title="LoRA models",
    )


@app.command("info")
def info(model: LoraArgument) -> DetailResult:
    """Show the origin and deployment of a LoRA model.

    Examples:
        osmosis model info keen-owl-2-step-40
    """
    from osmosis_ai.services.models import get_lora_model

    with platform_context() as context:
        with current().status("Fetching model"):
            found = get_lora_model(context.client, model)
        page = {"platform_url": found.platform_url} if found.platform_url else {}
        sections = [
            aligned(f"LoRA model {found.model_name or '(unnamed)'}", _facts(found)),
            _request(found, context.client.platform_url),
        ]
        return DetailResult(
            data={"lora_model": found.printed(), **page, **context.resource()},
            blocks=[Text("\n\n".join("\n".join(lines) for lines in sections if lines), in_plain=True)],
            hints=next_block(_next_steps(found)),
        )


def _facts(model: LoraModel) -> Iterator[tuple[str, str]]:
    if model.can_be_deployed:
        yield "Deployment", model.deployment_status or _NEVER
        if model.deployed_at is not None:
            by = f" by {model.deployed_by}" if model.deployed_by else ""
            yield "Deployed", f"{formats.date(model.deployed_at)}{by}"
    if model.inference_model:
        yield "Served as", model.inference_model
    if model.is_internal_user:
        yield "ID", model.id
    yield "Base model", model.base_model or formats.MISSING
    step = f", step {model.checkpoint_step}" if model.checkpoint_step is not None else ""
    yield "Training run", f"{model.training_run_name or formats.MISSING}{step}"
    yield "Validation reward", formats.number(model.validation_reward)
    yield "Training reward", formats.number(model.reward)
    yield "Created", formats.date(model.created_at)
    if model.hf_upload_status:
        upload = [model.hf_upload_status.replace("_", " "), model.hf_url, model.uploaded_by]
        yield "Hugging Face", ", ".join(filter(None, upload))
    if model.platform_url:
        yield "Page", model.platform_url


def _request(model: LoraModel, platform_url: str) -> list[str]:
    """Return a request that the deployed adapter answers."""
    from osmosis_ai.services.models import inference_url

    if model.deployment_status != _ACTIVE or not model.inference_model:
        return []
    body = {"model": model.inference_model, "messages": [{"role": "user", "content": "Hello!"}]}
    return [
        "Request",
        f"  curl {quote(inference_url(platform_url))} \\",
        '    -H "Authorization: Bearer $OSMOSIS_API_KEY" -H "Content-Type: application/json" \\',
        f"    -d {quote(json.dumps(body, ensure_ascii=False))}",
    ]


def _next_steps(model: LoraModel) -> Iterator[tuple[str, str]]:
    name = quote(model.model_name or model.id)
    if model.can_be_deployed:
        verb = "undeploy" if model.deployment_status == _ACTIVE else "deploy"
        yield f"{verb} the model", f"osmosis model {verb} {name}"
    yield "download the adapter", f"osmosis model download {name}"


@app.command("deploy")
def deploy(
    model: Annotated[
        str,
        typer.Argument(
            help="LoRA model, as NAME or BASE:NAME, or checkpoint of a training run, as RUN (best by validation), "
            "RUN@last or RUN@STEP.",
            autocompletion=complete_model,
        ),
    ],
) -> OperationResult:
    """Deploy a LoRA model to the platform's endpoint.

    Deploying a deployed model changes nothing.

    Examples:
        osmosis model deploy keen-owl-2
        osmosis model deploy keen-owl-2@40
    """
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services import models

    with platform_context() as context:
        with current().status("Deploying model"):
            changed, reason = models.deploy(context.client, model)
            name, served = changed.model_name or model, None
            with suppress(PlatformError):
                served = models.get_lora_model(context.client, name).inference_model
        steps = [("print an example request", f"osmosis model info {quote(name)}")]
        if served:
            steps.insert(0, ("set this in a config to evaluate it", f'model_path = "{served}"'))
        result = _deployment_result("deploy", name, changed, context)
        return replace(
            result,
            message=f"{result.message} ({reason})" if reason else result.message,
            resource={**(result.resource or {}), "model_path": served},
            next_steps=next_block(steps),
        )


def _deployment_result(
    verb: str, model: str, changed: DeploymentChange, context: PlatformContext
) -> OperationResult:
    name = changed.model_name or model
    return OperationResult(
        operation=f"model.{verb}",
        message=f"LoRA model {verb}ed: {name}",
        resource={"id": changed.id, "model_name": name, "status": changed.status, **context.resource()},
    )


@app.command("undeploy")
def undeploy(model: LoraArgument, yes: YesOption = False) -> OperationResult:
    """Undeploy a LoRA model.

    Undeploying twice changes nothing. On a terminal, the command asks for confirmation.

    Examples:
        osmosis model undeploy keen-owl-2-step-40
    """
    from osmosis_ai.services import models

    output = current()
    with platform_context() as context:
        # Scripts written for the hosted service name no --yes here.
        if output.interactive:
            output.confirm(f"Undeploy '{model}'? Its clients will get errors.", yes=yes, default=False)
        with output.status("Undeploying model"):
            changed = models.undeploy(context.client, model)
        return _deployment_result("undeploy", model, changed, context)


MergedOption = Annotated[
    bool, typer.Option("--merged", help="Merge the adapter into its base model, for transformers and vLLM.")
]
AllowDownloadOption = Annotated[
    bool, typer.Option("--allow-download", help="Download a missing base model from the Hugging Face Hub.")
]


@app.command("download")
def download(
    model: LoraArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Directory of the model's files (default: .osmosis/models/NAME)."
        ),
    ] = None,
    merged: MergedOption = False,
    allow_download: AllowDownloadOption = False,
) -> OperationResult:
    """Download a LoRA adapter or a merged model.

    An adapter is in PEFT format, and the command verifies each file. Merging needs the extra `train`, the base model and
    enough memory for it. The directory appears only when it is complete.

    Examples:
        osmosis model download keen-owl-2-step-40 -o adapters/
        osmosis model download keen-owl-2-step-40 --merged
    """
    with platform_context() as context:
        plan, directory, is_new = _fetch(context, model, output, merged, allow_download)
        place, name, base = formats.shown_path(directory), plan.listed.model_name, plan.listed.base_model
        sizes = [path.stat().st_size for path in directory.iterdir()]
        load = f'peft.PeftModel.from_pretrained(model, "{place}")'
        step = ("serve it", f"vllm serve {quote(place)}") if merged else (f"load it on {base}", load)
        changed = {"output_path": str(directory), "bytes": sum(sizes), "merged": True} if merged else {}
        return OperationResult(
            operation="model.download",
            status="success" if is_new else "noop",
            message=f"{name} is in {place}: {len(sizes)} files, {formats.size(sum(sizes))}."
            if is_new
            else f"{name} is already complete in {place}.",
            resource={**plan.resource(), **changed, **context.resource()},
            next_steps=next_block([step]) if base else (),
        )


def _fetch(
    context: PlatformContext, model: str, output: Path | None, merged: bool, allow_download: bool
) -> tuple[ModelDownloader, Path, bool]:
    """Download an adapter or a merged model; return its directory, and whether it is new."""
    from osmosis_ai.services.models import ModelDownloader

    out, adapter = current(), None if merged else output
    with out.status("Fetching the list of files"):
        plan = ModelDownloader.plan(context.client, model, workspace=context.workspace, output=adapter)
    if not merged:
        with out.progress("Downloading", total=plan.total_bytes, unit="bytes") as shown:
            return plan, plan.directory, plan.download(shown.update)
    from osmosis_ai.services.model_export import download_merged

    directory = expanded(output or plan.directory.with_name(f"{plan.directory.name}-merged")).absolute()
    with out.progress("Downloading and merging", total=None, unit="bytes") as shown:
        is_new = download_merged(plan, directory, allow_download=allow_download, progress=shown.update)
    return plan, directory, is_new


@app.command("push")
def push(
    model: LoraArgument,
    repository: Annotated[
        str, typer.Argument(metavar="ORG/REPO", help="Model repository on the Hugging Face Hub.")
    ],
    merged: MergedOption = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public instead of private.")
    ] = False,
    allow_download: AllowDownloadOption = False,
    yes: YesOption = False,
) -> OperationResult:
    """Upload a LoRA adapter to the Hugging Face Hub.

    The token comes from HF_TOKEN or `hf auth login`. On a terminal, the command asks for confirmation.

    Examples:
        osmosis model push keen-owl-2-step-40 my-org/multiplier
    """
    from osmosis_ai.services.model_export import push_to_hub

    out, what = current(), "merged model" if merged else "adapter"
    with platform_context() as context:
        url = push_to_hub(
            repository,
            public=public,
            title=f"Add {model}",
            confirm=lambda where: out.confirm(f"Upload the {what} '{model}' to {where}?", yes=yes),
            fetch=lambda: _fetch(context, model, None, merged, allow_download)[1],
        )
        return OperationResult(
            operation="model.push",
            message=f"Uploaded {model}: {url}",
            resource={
                "model_name": model,
                "merged": merged,
                "repository": repository,
                "url": url,
                **context.resource(),
            },
        )

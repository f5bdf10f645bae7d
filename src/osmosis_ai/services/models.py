"""Base models and trained adapters on the platform: list, deploy, download.

A download creates a complete adapter folder in PEFT's layout, or none. The files are fetched into a staging folder
next to it and checked against the size and digest that the platform lists. The staging folder is renamed when all
files are present; after an interruption, fetched files are reused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.models import (
    BaseModelList,
    BaseModelRow,
    DeploymentChange,
    LoraModel,
    LoraModelList,
    ModelDownload,
    ModelFile,
)
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL, INFERENCE_URL_ENV
from osmosis_ai.api.transfer import BlobClient, download
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import expanded, sync_directory
from osmosis_ai.services.listing import Listing, fetch_listing
from osmosis_ai.workspace.layout import WorkspaceDirectory

INFERENCE_PATH = "/v1/chat/completions"
HOSTED_INFERENCE_URL = "https://inference.osmosis.ai"
ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MODELS = "/api/cli/models"
_DEPLOYMENT = {"deployment_status", "deployed_at", "deployed_by"}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)

_T = TypeVar("_T")


def list_base_models(client: PlatformClient, *, limit: int, everything: bool) -> Listing[BaseModelRow]:
    """Return the models that can be evaluated and trained; arguments as in ``fetch_listing``."""
    pages = client.pages(f"{_MODELS}/base", BaseModelList)
    return fetch_listing(pages, lambda page: page.models, limit=limit, everything=everything)


def list_lora_models(
    client: PlatformClient, *, limit: int, everything: bool
) -> tuple[Listing[LoraModel], dict[str, int | None]]:
    """Return the adapters, and the number and limit of deployments if the platform offers inference."""
    pages: list[LoraModelList] = []
    listing = fetch_listing(
        client.pages(f"{_MODELS}/lora", LoraModelList),
        lambda page: page.models,
        limit=limit,
        everything=everything,
        inspect=pages.append,
    )
    last = pages[-1]
    if "active_deployments" not in last.model_fields_set:
        return listing, {}
    return listing, {
        "active_deployments": last.active_deployments or 0,
        "max_active_deployments": last.max_active_deployments,
    }


def get_lora_model(client: PlatformClient, name: str) -> LoraModel:
    return ask_by_name(client, name, lambda named: _get(client, named))


def deploy(client: PlatformClient, name: str) -> DeploymentChange:
    """Deploy an adapter. Deploying it twice changes nothing."""
    return ask_by_name(client, name, lambda named: _change(client, named, "deploy"))


def undeploy(client: PlatformClient, name: str) -> DeploymentChange:
    """Undeploy an adapter. Undeploying it twice changes nothing."""
    return ask_by_name(client, name, lambda named: _change(client, named, "undeploy"))


def _get(client: PlatformClient, name: str) -> LoraModel:
    return client.get(f"{_MODELS}/{segment(name)}", model=LoraModel)


def _change(client: PlatformClient, name: str, verb: str) -> DeploymentChange:
    path = f"{_MODELS}/{segment(name)}/{verb}"
    return client.post(path, model=DeploymentChange, retry=REPEATING)


def _files_of(client: PlatformClient, name: str) -> ModelDownload:
    return client.get(f"{_MODELS}/{segment(name)}/download", model=ModelDownload)


def ask_by_name(client: PlatformClient, name: str, ask: Callable[[str], _T]) -> _T:
    """Return the platform's answer about an adapter, whose name may also be ``BASE:NAME`` as in its endpoint.

    The platform's own names may contain colons. ``BASE:`` is therefore removed only if the full name does not exist,
    and only if the adapter has exactly this base model.
    """
    try:
        return ask(name)
    except PlatformError as error:
        base, _, short = name.rpartition(":")
        if error.status != 404 or not base or not short or not _is_base_of(client, base, short):
            raise
    return ask(short)


def _is_base_of(client: PlatformClient, base: str, name: str) -> bool:
    try:
        found = _get(client, name)
    except PlatformError as error:
        if error.status == 404:
            return False
        raise
    return f"{base}:{name}" == found.inference_model or base == found.base_model


def can_be_deployed(model: LoraModel) -> bool:
    """Tell whether the platform can serve an adapter: only then does its reply contain a status, even if null."""
    return "deployment_status" in model.model_fields_set


def inference_url(platform_url: str) -> str:
    """Return the URL of deployed adapters: a host of its own on the hosted platform, otherwise the platform itself.

    ``OSMOSIS_INFERENCE_URL`` overrides it.
    """
    hosted = HOSTED_INFERENCE_URL if platform_url == DEFAULT_PLATFORM_URL else platform_url
    return f"{(os.environ.get(INFERENCE_URL_ENV) or hosted).rstrip('/')}{INFERENCE_PATH}"


def lora_item(model: LoraModel) -> dict[str, Any]:
    """Return a listed adapter as the JSON output shows it."""
    hidden = {
        "hf_upload_status",
        "hf_url",
        "uploaded_by",
        "inference_model",
        "platform_url",
        "is_internal_user",
    }
    return model.model_dump(mode="json", exclude=hidden | (set() if can_be_deployed(model) else _DEPLOYMENT))


def lora_detail(model: LoraModel) -> dict[str, Any]:
    """Return all facts about an adapter as the JSON output shows them."""
    hidden = {"platform_url", "is_internal_user"}
    return model.model_dump(mode="json", exclude=hidden | (set() if can_be_deployed(model) else _DEPLOYMENT))


@dataclass(frozen=True)
class DownloadedModel:
    """An adapter's folder; ``fetched`` is False if it was already complete."""

    name: str
    base_model: str | None
    directory: Path
    files: tuple[ModelFile, ...]
    fetched: bool

    def resource(self) -> dict[str, Any]:
        return {
            "model_name": self.name,
            "base_model": self.base_model,
            "output_path": str(self.directory),
            "files": [file.model_dump(include={"path", "size", "sha256"}) for file in self.files],
            "bytes": sum(file.size for file in self.files),
        }


@dataclass(frozen=True)
class ModelPlan:
    """What to download, and where to."""

    listed: ModelDownload
    directory: Path
    workspace: WorkspaceDirectory

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.listed.files)


def plan_model_download(
    client: PlatformClient, name: str, *, workspace: WorkspaceDirectory, output: Path | None
) -> ModelPlan:
    """Look up an adapter's files and decide on its folder (default: in ``.osmosis/models``); writes nothing."""
    from osmosis_ai.services.runs.download import safe_name

    listed = ask_by_name(client, name, lambda named: _files_of(client, named))
    _check_listing(listed)
    if output is None:
        directory = workspace.state_dir / "models" / safe_name(listed.model_name)
    else:
        directory = expanded(output).absolute()
    return ModelPlan(listed, directory, workspace)


def download_model(
    client: PlatformClient, plan: ModelPlan, *, progress: Callable[[int], None]
) -> DownloadedModel:
    """Download an adapter; an existing one is only verified.

    After an error, the downloaded files are kept for the next attempt.
    """
    listed, directory = plan.listed, plan.directory
    there = _is_whole(directory, listed)
    if not there:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConflictError(
                f"{directory} holds something else than this model.",
                hint="name another folder with --output, or remove this one",
            )
        if directory.is_relative_to(plan.workspace.state_dir):
            plan.workspace.create_state_dir()
        staging = directory.with_name(f".{directory.name}.fetching")
        _fetch(client, listed, staging, progress)
        _check_adapter(staging)
        try:
            staging.rename(directory)  # works on an empty or missing directory
            sync_directory(directory.parent)
        except OSError as error:
            raise OsmosisError(f"cannot write {directory}: {error.strerror or error}.") from None
    return DownloadedModel(listed.model_name, listed.base_model, directory, tuple(listed.files), not there)


def _check_listing(listed: ModelDownload) -> None:
    names = [file.path for file in listed.files]
    odd = next((name for name in names if not _FILE_NAME.fullmatch(name)), None)
    if odd is not None:
        raise OsmosisError(
            f"the platform lists a file {odd[:80]!r}, which is not written.", code="PLATFORM_ERROR"
        )
    if ADAPTER_CONFIG not in names or not set(WEIGHTS) & set(names) or len(set(names)) < len(names):
        raise OsmosisError(
            f"the platform's files of `{listed.model_name}` are not an adapter: {', '.join(names) or 'none'}.",
            code="PLATFORM_ERROR",
        )


def _is_whole(directory: Path, listed: ModelDownload) -> bool:
    """Tell whether every file exists with its digest; other files in the folder do not matter."""
    return directory.is_dir() and all(
        file.sha256 is not None and _is_right(directory / file.path, file) for file in listed.files
    )


def _is_right(path: Path, file: ModelFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return file.sha256 is None or file_digest(path) == file.sha256


def _fetch(
    client: PlatformClient, listed: ModelDownload, staging: Path, progress: Callable[[int], None]
) -> None:
    done = 0
    with BlobClient() as blobs:
        for file in listed.files:
            target = staging / file.path
            if not (file.sha256 is not None and _is_right(target, file)):
                download(
                    file.url,
                    target,
                    expected_size=file.size,
                    expected_sha256=file.sha256,
                    progress=partial(_tell, progress, done),
                    refresh_url=partial(_signed_again, client, listed.model_name, file.path),
                    client=blobs,
                )
            done += file.size
            progress(done)


def _tell(progress: Callable[[int], None], before: int, arrived: int) -> None:
    progress(before + arrived)


def _signed_again(client: PlatformClient, name: str, path: str) -> str:
    for file in _files_of(client, name).files:
        if file.path == path:
            return file.url
    raise OsmosisError(f"the platform gave no new URL for {path}.", code="PLATFORM_ERROR")


def _check_adapter(directory: Path) -> None:
    try:
        json.loads((directory / ADAPTER_CONFIG).read_bytes())["peft_type"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise OsmosisError(
            f"what was fetched is not an adapter: {ADAPTER_CONFIG} is not PEFT's.",
            code="PLATFORM_ERROR",
            details={"directory": str(directory)},
        ) from None

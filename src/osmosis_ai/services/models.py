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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.models import (
    BaseModelList,
    DeploymentChange,
    LoraModel,
    LoraModelList,
    ModelDownload,
    ModelFile,
)
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL, INFERENCE_URL_ENV
from osmosis_ai.api.transfer import BlobClient, download
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import expanded, require_directory, sync_directory
from osmosis_ai.services.listing import DEFAULT_LIMIT, fetch_listing
from osmosis_ai.services.names import similar_names
from osmosis_ai.services.runs.download import safe_name
from osmosis_ai.ui.numbers import amount
from osmosis_ai.workspace.layout import WorkspaceDirectory

INFERENCE_PATH = "/v1/chat/completions"
HOSTED_INFERENCE_URL = "https://inference.osmosis.ai"
ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MODELS = "/api/cli/models"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)

_T = TypeVar("_T")


def list_base_models(client: PlatformClient, *, limit: int, everything: bool) -> BaseModelList:
    """Return the models that can be evaluated and trained; arguments as in ``fetch_listing``."""
    return fetch_listing(client.pages(f"{_MODELS}/base", BaseModelList), limit=limit, everything=everything)


def list_lora_models(client: PlatformClient, *, limit: int, everything: bool) -> LoraModelList:
    """Return the adapters; the counts of deployments are set if the platform offers inference."""
    return fetch_listing(client.pages(f"{_MODELS}/lora", LoraModelList), limit=limit, everything=everything)


def get_lora_model(client: PlatformClient, name: str) -> LoraModel:
    return _ask_by_name_or_run(client, name, lambda named: _get(client, named))


def deploy(client: PlatformClient, name: str) -> tuple[DeploymentChange, str | None]:
    """Deploy an adapter, or a run's checkpoint, and return why that one. Deploying it twice changes nothing."""
    from osmosis_ai.services.training_runs import find_checkpoint

    unknown = None
    # No adapter has an @ in its name, and no run a colon.
    if "@" not in name:
        try:
            return _change(client, name, "deploy"), None
        except PlatformError as error:
            if error.status != 404 or ":" in name:
                raise
            unknown = error
    try:
        checkpoint, reason = find_checkpoint(client, name)
    except PlatformError as error:
        if error.status != 404 or unknown is None:
            raise
        unknown.message = f"There is no LoRA model or training run '{name[:200]}'."
        with suppress(OsmosisError):
            near = similar_names(client, name, "train", "model")
            unknown.hint = f"did you mean {' or '.join(near)}?" if near else "see `osmosis model list`"
        raise unknown from None
    changed = _change(client, checkpoint, "deploy")
    return changed.model_copy(update={"model_name": changed.model_name or checkpoint}), reason


def undeploy(client: PlatformClient, name: str) -> DeploymentChange:
    """Undeploy an adapter. Undeploying it twice changes nothing."""
    return _ask_by_name_or_run(
        client, name, lambda named: _change(client, named, "undeploy"), even_undeployed=True
    )


def _get(client: PlatformClient, name: str) -> LoraModel:
    return client.get(f"{_MODELS}/{segment(name)}", model=LoraModel)


def _change(client: PlatformClient, name: str, verb: str) -> DeploymentChange:
    def change(named: str) -> DeploymentChange:
        return client.post(f"{_MODELS}/{segment(named)}/{verb}", model=DeploymentChange, retry=REPEATING)

    return ask_by_name(client, name, change)


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


def _ask_by_name_or_run(
    client: PlatformClient, name: str, ask: Callable[[str], _T], *, even_undeployed: bool = False
) -> _T:
    """Return the platform's answer about an adapter; ``name`` can be a training run with exactly one deployed adapter.

    With ``even_undeployed``, a run without a deployed adapter means its first one.
    """
    try:
        return ask_by_name(client, name, ask)
    except PlatformError as error:
        if error.status != 404:
            raise
        listed = list_lora_models(client, limit=DEFAULT_LIMIT, everything=True).items
        adapters = [each for each in listed if each.training_run_name == name]
        if not adapters:
            raise
    deployed = [each for each in adapters if each.deployment_status == "active"]
    if len(deployed) == 1 or (even_undeployed and not deployed):
        first = (deployed or adapters)[0]
        return ask(first.model_name or first.id)
    names = ", ".join(each.model_name or each.id for each in deployed or adapters)
    raise NotFoundError(
        f"Run '{name}' has {amount(len(deployed), 'deployed adapter')}.", hint=f"name an adapter: {names}"
    )


def _is_base_of(client: PlatformClient, base: str, name: str) -> bool:
    try:
        found = _get(client, name)
    except PlatformError as error:
        if error.status == 404:
            return False
        raise
    return f"{base}:{name}" == found.inference_model or base == found.base_model


def inference_url(platform_url: str) -> str:
    """Return the URL of deployed adapters: a host of its own on the hosted platform, otherwise the platform itself.

    ``OSMOSIS_INFERENCE_URL`` overrides it.
    """
    hosted = HOSTED_INFERENCE_URL if platform_url == DEFAULT_PLATFORM_URL else platform_url
    return f"{(os.environ.get(INFERENCE_URL_ENV) or hosted).rstrip('/')}{INFERENCE_PATH}"


@dataclass(frozen=True)
class ModelDownloader:
    """Downloads an adapter to a directory."""

    client: PlatformClient
    listed: ModelDownload
    directory: Path
    workspace: WorkspaceDirectory

    @classmethod
    def plan(
        cls, client: PlatformClient, name: str, *, workspace: WorkspaceDirectory, output: Path | None
    ) -> ModelDownloader:
        """Look up an adapter's files and decide on its folder (default: in ``.osmosis/models``); writes nothing."""
        listed = _ask_by_name_or_run(client, name, lambda named: _files_of(client, named))
        _check_listing(listed)
        default = workspace.state_dir / "models" / safe_name(listed.model_name)
        return cls(client, listed, default if output is None else expanded(output).absolute(), workspace)

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.listed.files)

    def resource(self) -> dict[str, Any]:
        return {
            "model_name": self.listed.model_name,
            "base_model": self.listed.base_model,
            "output_path": str(self.directory),
            "files": [file.model_dump(include={"path", "size", "sha256"}) for file in self.listed.files],
            "bytes": self.total_bytes,
        }

    def download(self, progress: Callable[[int], None]) -> bool:
        """Download the adapter, and return False if a complete one exists already.

        After an error, the downloaded files are kept for the next attempt.
        """
        directory = self.directory
        if directory.is_dir() and all(
            file.sha256 is not None and _is_complete(directory / file.path, file)
            for file in self.listed.files
        ):
            return False
        require_unused(directory)
        if directory.is_relative_to(self.workspace.state_dir):
            self.workspace.create_state_dir()
        staging = directory.with_name(f".{directory.name}.fetching")
        self._fetch(staging, progress)
        _check_adapter(staging)
        try:
            staging.rename(directory)  # works on an empty or missing directory
            sync_directory(directory.parent)
        except OSError as error:
            raise OsmosisError(f"cannot write {directory}: {error.strerror or error}.") from None
        return True

    def _fetch(self, staging: Path, progress: Callable[[int], None]) -> None:
        done = 0
        with BlobClient() as blobs:
            for file in self.listed.files:
                target = staging / file.path
                if file.sha256 is None or not _is_complete(target, file):
                    download(
                        file.url,
                        target,
                        expected_size=file.size,
                        expected_sha256=file.sha256,
                        progress=partial(_report, progress, done),
                        refresh_url=partial(self._new_url, file.path),
                        client=blobs,
                    )
                done += file.size
                progress(done)

    def _new_url(self, path: str) -> str:
        for file in _files_of(self.client, self.listed.model_name).files:
            if file.path == path:
                return file.url
        raise OsmosisError(f"the platform returned no new URL for {path}.", code="PLATFORM_ERROR")


def require_unused(directory: Path) -> None:
    require_directory(directory)
    if directory.exists() and any(directory.iterdir()):
        raise ConflictError(
            f"{directory} contains other files than this model.",
            hint="choose another directory with --output, or remove this one",
        )


def _report(progress: Callable[[int], None], before: int, arrived: int) -> None:
    progress(before + arrived)


def _check_listing(listed: ModelDownload) -> None:
    names = [file.path for file in listed.files]
    invalid = next((name for name in names if not _FILE_NAME.fullmatch(name)), None)
    if invalid is not None:
        raise OsmosisError(
            f"the platform listed an invalid file name: {invalid[:80]!r}.", code="PLATFORM_ERROR"
        )
    if ADAPTER_CONFIG not in names or not set(WEIGHTS) & set(names) or len(set(names)) < len(names):
        raise OsmosisError(
            f"the platform's files of `{listed.model_name}` are not an adapter: {', '.join(names) or 'none'}.",
            code="PLATFORM_ERROR",
        )


def _is_complete(path: Path, file: ModelFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return file.sha256 is None or file_digest(path) == file.sha256


def _check_adapter(directory: Path) -> None:
    try:
        json.loads((directory / ADAPTER_CONFIG).read_bytes())["peft_type"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise OsmosisError(
            f"the downloaded files are not an adapter: {ADAPTER_CONFIG} is not PEFT's.",
            code="PLATFORM_ERROR",
            details={"directory": str(directory)},
        ) from None

"""Trained models outside the platform: adapters merged with their base models, and uploads to the Hugging Face Hub."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, MissingExtraError, NetworkError, NotFoundError, OsmosisError
from osmosis_ai.files import is_disk_full, size_of, sync_directory, write_json
from osmosis_ai.services.models import WEIGHTS
from osmosis_ai.training import require_train_extra
from osmosis_ai.ui.numbers import size

PROVENANCE = "provenance.json"
_MERGED = "merged"
_SHARD = "5GB"
_HUB_TIMEOUT_S = 60.0
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True)
class ModelMerger:
    """Writes an adapter and its base model as one model that transformers and vLLM load."""

    base_model: str
    source: Path
    directory: Path

    @classmethod
    def plan(cls, base_model: str | None, directory: Path, *, allow_download: bool) -> ModelMerger:
        """Find the base model, and check that there is room for a model of its size; writes nothing."""
        require_train_extra()
        from osmosis_ai.training.learner.policy_model import model_source

        if base_model is None:
            raise OsmosisError("the platform did not name the adapter's base model, which merging needs.")
        try:
            source = Path(model_source(base_model, allow_download=allow_download))
        except OsmosisError as error:
            if error.hint is not None:
                error.hint = f"fetch it with `hf download {base_model}`, or add --allow-download"
            raise
        merger = cls(base_model, source, directory)
        if not merger.total_bytes:
            raise OsmosisError(f"the base model '{base_model}' has no weights in {source}.")
        parent = next(folder for folder in directory.parents if folder.exists())
        free = shutil.disk_usage(parent).free
        if free < merger.total_bytes and not directory.exists():
            raise OsmosisError(
                f"the disk of {directory} has too little room: {size(free)} of {size(merger.total_bytes)}.",
                hint="name a directory on another disk with --output",
            )
        return merger

    @property
    def total_bytes(self) -> int:
        weights = [*self.source.glob("*.safetensors")] or [*self.source.glob("*.bin")]
        return sum(map(size_of, weights))

    def merge(self, adapter: Path, progress: Callable[[int], None]) -> bool:
        """Write the merged model, complete or not at all; return False if it exists already.

        Matrices are merged in float32 and saved in the base model's type. The base model is held in memory once.

        Args:
            progress: Receives the number of bytes written, from another thread.
        """
        directory = self.directory
        origin = {"base_model": self.base_model, "adapter_sha256": _adapter_digest(adapter)}
        if directory.is_dir() and _provenance(directory).get(_MERGED) == origin:
            return False
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConflictError(
                f"{directory} contains something other than this model.",
                hint="name another directory with --output, or remove this one",
            )
        staging = directory.with_name(f".{directory.name}.merging")
        shutil.rmtree(staging, ignore_errors=True)
        try:
            staging.mkdir(parents=True)
            model = _merged_model(self.source, adapter, self.base_model)
            with _watched(staging, progress):
                model.save_pretrained(staging, max_shard_size=_SHARD)
            for file in self.source.iterdir():  # the tokenizer, the chat template, the generation settings
                if file.suffix in (".json", ".jinja", ".model", ".txt", ".tiktoken") and (
                    file.name != "config.json" and not file.name.endswith(".index.json")
                ):
                    shutil.copyfile(file, staging / file.name)
            write_json(staging / PROVENANCE, {**_provenance(adapter), _MERGED: origin}, mode=0o644)
            staging.rename(directory)  # works on an empty or missing directory
            sync_directory(directory.parent)
        except OSError as error:
            reason = "the disk is full" if is_disk_full(error) else error.strerror or error
            raise OsmosisError(f"cannot write {directory}: {reason}.") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True


def _adapter_digest(adapter: Path) -> str:
    return next(file_digest(adapter / name) for name in WEIGHTS if (adapter / name).exists())


def _provenance(directory: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((directory / PROVENANCE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _merged_model(source: Path, adapter: Path, base_model: str) -> Any:
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from osmosis_ai.training.learner.policy_model import merged_tensors

    logging.disable_progress_bar()  # the caller decides how progress is shown
    try:
        base = AutoModelForCausalLM.from_pretrained(str(source), dtype="auto", local_files_only=True)
        if getattr(base.config, "quantization_config", None) is not None:
            raise ValueError("its weights are quantized")
        policy = PeftModel.from_pretrained(base, str(adapter))
        for name, tensor in merged_tensors(policy):
            holder, *path = policy.get_base_model(), *name.split(".")
            for part in path[:-1]:
                holder = getattr(holder, part)
                holder = holder.get_base_layer() if isinstance(holder, BaseTunerLayer) else holder
            weight = getattr(holder, path[-1])
            if weight is base.get_input_embeddings().weight:
                raise ValueError(f"{name} is tied to the embeddings, which have no adapter")
            weight.data = tensor
        return policy.unload()
    except (OSError, ValueError, ImportError, RuntimeError, KeyError, AttributeError) as error:
        raise OsmosisError(f"the adapter cannot be merged with '{base_model}': {error}") from error


@contextmanager
def _watched(directory: Path, progress: Callable[[int], None]) -> Iterator[None]:
    """Report the bytes that are written into ``directory`` meanwhile."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            progress(sum(file.stat().st_size for file in directory.glob("*.safetensors")))

    watcher = threading.Thread(target=watch, name="written-bytes", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@dataclass(frozen=True)
class HubRepository:
    """A model repository on the Hugging Face Hub.

    Attributes:
        is_private: None if it does not exist yet.
        files: The number of its files, without `.gitattributes`.
    """

    name: str
    is_private: bool | None = None
    files: int = 0

    @classmethod
    def find(cls, name: str) -> HubRepository:
        """Look up a repository; creates nothing."""
        if _REPOSITORY.fullmatch(name) is None:
            raise OsmosisError(f"'{name}' is not the name of a repository; it has the form ORG/REPO.")
        try:
            from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
        except ImportError:
            raise MissingExtraError("train", "huggingface_hub") from None
        with _hub(name) as api:
            try:
                found = api.model_info(name, timeout=_HUB_TIMEOUT_S)
            except GatedRepoError:  # it exists
                raise
            except RepositoryNotFoundError:
                return cls(name)
        files = [file for file in found.siblings or () if file.rfilename != ".gitattributes"]
        return cls(name, bool(found.private), len(files))

    def upload(self, directory: Path, *, public: bool, title: str) -> str:
        """Upload a model's files, in one commit, and return the repository's URL.

        A new repository is private unless ``public``; an existing one stays as it is.
        """
        with _hub(self.name) as api:
            url = api.create_repo(self.name, private=not public, exist_ok=True)
            # Its config contains the run's variables.
            api.upload_folder(
                repo_id=self.name, folder_path=directory, commit_message=title, ignore_patterns=[PROVENANCE]
            )
        return str(url)


@contextmanager
def _hub(repository: str) -> Iterator[Any]:
    """Yield the Hub's client with the user's token; its errors become ours."""
    from huggingface_hub import HfApi, get_session, get_token
    from huggingface_hub.errors import HfHubHTTPError

    # That of its HTTP library, which depends on the release.
    network_error: type[Exception] = next(
        kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError"
    )
    token = get_token()
    if token is None:
        raise OsmosisError(
            "no Hugging Face token was found.",
            code="AUTH_REQUIRED",
            hint="set HF_TOKEN, or log in with `hf auth login`",
        )
    get_session().timeout = _HUB_TIMEOUT_S  # without one by default
    try:
        yield HfApi(token=token)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise OsmosisError(
                f"the Hugging Face token does not permit to write to '{repository}' (HTTP {status}).",
                code="AUTH_REQUIRED",
                hint="use a token with write access to it: `hf auth login`",
            ) from None
        if status == 404:
            raise NotFoundError(f"the Hugging Face Hub has no '{repository}'.") from None
        reason = error.server_message or f"HTTP {status}"
        raise OsmosisError(
            f"the Hugging Face Hub refused the upload: {reason}.", code="PLATFORM_ERROR"
        ) from None
    except (network_error, OSError) as error:
        raise NetworkError(f"the Hugging Face Hub is unreachable: {error}.") from None

"""Trained models outside the platform: merged with their base models, and on the Hugging Face Hub."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osmosis_ai.errors import NetworkError, OsmosisError
from osmosis_ai.files import is_disk_full, size_of, sync_directory
from osmosis_ai.services.models import ModelDownloader, require_unused
from osmosis_ai.training import require_train_extra
from osmosis_ai.ui.numbers import size

PROVENANCE = "provenance.json"
# Tokenizer, chat template and generation settings.
_OF_TOKENIZERS = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_HUB_TIMEOUT_S = 60.0
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def download_merged(
    plan: ModelDownloader, directory: Path, *, allow_download: bool, progress: Callable[[int], None]
) -> bool:
    """Download an adapter and write it with its base model as one model; return False if that exists.

    The model is complete or not there. Matrices are merged in float32 and saved in the base model's type, of which one
    copy is held in memory.

    Args:
        allow_download: Whether a missing base model may be fetched from the Hugging Face Hub.
        progress: Receives the number of downloaded and merged bytes.
    """
    require_train_extra()
    from osmosis_ai.training.learner.policy_model import model_source

    base, adapter = str(plan.listed.base_model), plan.directory
    try:
        source = Path(model_source(base, allow_download=allow_download))
    except OsmosisError as error:
        error.hint = error.hint and f"fetch it with `hf download {base}`, or add --allow-download"
        raise
    plan.download(progress)
    origin, provenance = directory / PROVENANCE, adapter / PROVENANCE
    if origin.exists() and provenance.exists() and origin.read_bytes() == provenance.read_bytes():
        return False
    require_unused(directory)
    needed = sum(size_of(file) for file in source.iterdir() if file.suffix in (".safetensors", ".bin"))
    free = shutil.disk_usage(next(folder for folder in directory.parents if folder.exists())).free
    if free < needed:
        raise OsmosisError(
            f"not enough disk space for {directory}: {size(free)} free, {size(needed)} needed.",
            hint="choose a directory on another disk with --output",
        )
    staging = directory.with_name(f".{directory.name}.merging")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        model = _merged_model(source, adapter, base, lambda done: progress(plan.total_bytes + done))
        model.save_pretrained(staging, max_shard_size="5GB")
        for file in staging.glob("*.safetensors"):  # written for their owner alone
            file.chmod((staging / "config.json").stat().st_mode)
        for file in (*source.iterdir(), *adapter.glob(PROVENANCE)):
            is_of_weights = file.name == "config.json" or file.name.endswith(".index.json")
            if file.suffix in _OF_TOKENIZERS and not is_of_weights:
                shutil.copyfile(file, staging / file.name)
        staging.rename(directory)  # works on an empty or missing directory
        sync_directory(directory.parent)
    except OSError as error:
        reason = "the disk is full" if is_disk_full(error) else error.strerror or error
        raise OsmosisError(f"cannot write {directory}: {reason}.") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def _merged_model(source: Path, adapter: Path, base_model: str, progress: Callable[[int], None]) -> Any:
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from osmosis_ai.training.learner.policy_model import merged_tensors

    logging.disable_progress_bar()
    try:
        base = AutoModelForCausalLM.from_pretrained(str(source), dtype="auto", local_files_only=True)
        policy, done = PeftModel.from_pretrained(base, str(adapter)), 0
        for name, tensor in merged_tensors(policy):
            holder, *path = policy.get_base_model(), *name.split(".")
            for part in path[:-1]:
                holder = getattr(holder, part)
                holder = holder.get_base_layer() if isinstance(holder, BaseTunerLayer) else holder
            getattr(holder, path[-1]).data = tensor
            done += tensor.nbytes
            progress(done)
        return policy.unload()
    except Exception as error:  # damaged files raise errors of several libraries
        raise OsmosisError(f"the adapter cannot be merged with '{base_model}': {error}") from error


def push_to_hub(
    repository: str, *, public: bool, title: str, confirm: Callable[[str], None], fetch: Callable[[], Path]
) -> str:
    """Upload a model to the Hugging Face Hub in one commit; return its URL.

    Args:
        public: Whether a new repository is public; an existing one stays as it is.
        confirm: Receives a description of the repository before anything is fetched or created.
        fetch: Returns the directory of the model's files.
    """
    from huggingface_hub import HfApi, get_session, get_token
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if _REPOSITORY.fullmatch(repository) is None:
        raise OsmosisError(f"the repository must have the form ORG/REPO, got '{repository}'.")
    token = get_token()
    if token is None:
        hint = "set HF_TOKEN, or log in with `hf auth login`"
        raise OsmosisError("no Hugging Face token was found.", code="AUTH_REQUIRED", hint=hint)
    get_session().timeout = _HUB_TIMEOUT_S  # none by default
    # The base class of its HTTP library, which depends on the release.
    http_error: type[Exception] = next(
        kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError"
    )
    api = HfApi(token=token)
    try:
        try:
            found = api.model_info(repository)
            files = sum(file.rfilename != ".gitattributes" for file in found.siblings or ())
            where = f"the {'private' if found.private else 'public'} repository '{repository}'"
            where += f", which has {files} files" if files else ""
        except RepositoryNotFoundError as error:
            if isinstance(error, GatedRepoError):
                raise
            where = f"a new {'public' if public else 'private'} repository '{repository}'"
        confirm(where)
        directory = fetch()
        url = api.create_repo(repository, private=not public, exist_ok=True)
        # The provenance contains the variables of the run's config.
        api.upload_folder(
            repo_id=repository, folder_path=directory, commit_message=title, ignore_patterns=[PROVENANCE]
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        is_denied = status in (401, 403)
        raise OsmosisError(
            f"the Hugging Face Hub refused '{repository}': {error.server_message or f'HTTP {status}'}.",
            code="AUTH_REQUIRED" if is_denied else "PLATFORM_ERROR",
            hint="log in with a token that has write access: `hf auth login`" if is_denied else None,
        ) from None
    except (http_error, OSError) as error:
        raise NetworkError(f"the Hugging Face Hub is unreachable: {error}.") from None
    return str(url)

"""`osmosis train estimate`: whether a training config fits on a GPU. Downloads and loads nothing.

The model's configuration is built in, in a local directory, or already in the Hugging Face cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.issues import InvalidConfigError, closest
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.inference.catalog import base_model_of, served_models
from osmosis_ai.training import require_train_extra
from osmosis_ai.workspace.config_files import TrainingConfig, load_training_config
from osmosis_ai.workspace.layout import find_workspace

if TYPE_CHECKING:  # loads torch
    from osmosis_ai.training.runs.memory_estimate import MemoryEstimate

MIB, GIB = 2**20, 2**30
GPUS: Mapping[str, int] = {
    "T4": 15360 * MIB,
    "L4": 23034 * MIB,
    "A10G": 23028 * MIB,
    "RTX 4090": 24564 * MIB,
    "A100-40GB": 40960 * MIB,
    "L40S": 46068 * MIB,
    "A6000": 49140 * MIB,
    "H100": 81559 * MIB,
    "A100": 81920 * MIB,
    "H200": 143771 * MIB,
    "B200": 183359 * MIB,
}
"""Memory as reported by the driver (`nvidia-smi`), slightly less than the nominal size."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GB|GIB|G|MB|MIB|M)", re.IGNORECASE)


@dataclass(frozen=True)
class EstimatedTraining:
    """Memory needed on a device, or on each of several devices with one learner process each.

    ``fits_on`` has all known GPUs; ``warnings`` are about valid but probably unintended settings.
    """

    config: TrainingConfig
    device: str
    memory: MemoryEstimate
    fits_on: Mapping[str, bool]
    warnings: Sequence[str]

    @property
    def settings(self) -> TrainingSettings:
        return self.config.settings

    def data(self) -> dict[str, Any]:
        memory, settings = self.memory, self.settings
        return {
            "config": self.config.path.name,
            "model_path": self.config.experiment.model_path,
            "device": {"name": self.device, "bytes": memory.gpu_bytes},
            "total_bytes": memory.total,
            "step_peak_bytes": memory.step_peak,
            "parts_bytes": memory.parts(),
            "fits": memory.fits,
            "sessions_that_fit": memory.sessions_that_fit,
            "kv_bytes_per_session": memory.kv_bytes_per_session,
            "micro_batch_tokens": memory.micro_batch_tokens,
            "settings": {
                name: getattr(settings, name)
                for name in (
                    *("n_samples_per_prompt", "rollout_batch_size", "max_prompt_length"),
                    *("max_response_length", "lora_rank", "lora_targets"),
                    *("learner_processes", "shard_model"),
                )
            },
            "fits_on": dict(self.fits_on),
            "warnings": list(self.warnings),
        }


def estimate_training(config: Path, *, gpu: str | None, gpu_memory: str | None) -> EstimatedTraining:
    """Estimate the memory that a training config needs, offline.

    Args:
        config: a file in ``configs/training/``.
        gpu: a key of :data:`GPUS`.
        gpu_memory: for example ``80GB``, ``24 GiB`` or ``16384MB``; for GPUs, 1 GB is 2^30 bytes.
    """
    require_train_extra()
    from osmosis_ai.training.runs.memory_estimate import ModelShape, estimate

    named = _named_device(gpu, gpu_memory)
    workspace = find_workspace()
    loaded = load_training_config(config, workspace)
    if loaded.doubts:
        shown = loaded.path.relative_to(workspace.root).as_posix()
        raise InvalidConfigError("training", shown, loaded.doubts)
    model_path, settings = base_model_of(loaded.experiment.model_path), loaded.settings
    name, size = named or _this_machine(built_in=model_path in served_models())
    shape = ModelShape.read(_local_source(model_path), settings)
    is_gpu = size is not None
    serves = settings.policy_engine == "torch"  # a vLLM server has its own GPU
    memory = estimate(
        shape,
        settings,
        size,
        weight_bytes=2 if is_gpu else 4,
        recompute_activations=is_gpu,
        serves=serves,
    )
    fits_on = {name: bool(estimate(shape, settings, size, serves=serves).fits) for name, size in GPUS.items()}
    return EstimatedTraining(loaded, name, memory, fits_on, settings.warnings(model_path))


def _named_device(gpu: str | None, gpu_memory: str | None) -> tuple[str, int] | None:
    """Return the name and the memory of the GPU that the options name."""
    if gpu is not None and gpu_memory is not None:
        raise OsmosisError("--gpu and --gpu-memory are mutually exclusive.")
    if gpu_memory is not None:
        match = _SIZE.fullmatch(gpu_memory.strip())
        size = float(match[1]) * (GIB if match[2][0] in "gG" else MIB) if match else 0
        if size <= 0:
            raise OsmosisError(
                f"`{gpu_memory}` is not an amount of memory.", hint="write it like --gpu-memory 80GB"
            )
        return f"a GPU with {size / GIB:g} GiB", int(size)
    if gpu is None:
        return None
    by_key = {_key(name): name for name in GPUS}
    name = by_key.get(_key(gpu))
    if name is None:
        meant = closest(_key(gpu), list(by_key))
        said = f"did you mean {by_key[meant]}? " if meant else ""
        raise OsmosisError(
            f"there is no GPU `{gpu}` in the list.",
            hint=f"{said}known GPUs: {', '.join(GPUS)}; for any other use --gpu-memory",
        )
    return name, GPUS[name]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower().removesuffix("80gb")


def _this_machine(*, built_in: bool) -> tuple[str, int | None]:
    """Return this machine's GPU or, without one, a CPU for the built-in model and an H100 for others."""
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return properties.name, properties.total_memory
    return ("CPU", None) if built_in else ("H100", GPUS["H100"])


def _local_source(model_path: str) -> str:
    """Return an offline source of a model's configuration."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if model_path in served_models():
        return model_path
    folder = expanded(model_path)
    if (folder / "config.json").is_file():
        return str(folder)
    try:
        cached = try_to_load_from_cache(model_path, "config.json")
    except HFValidationError:
        cached = None
    if not isinstance(cached, str):
        raise NotFoundError(
            f"the configuration of `{model_path}` is not on this machine, and nothing is downloaded for an estimate.",
            hint=f"fetch it once (a few kB): hf download {model_path} config.json; or set model_path to a local folder",
        )
    return str(Path(cached).parent)

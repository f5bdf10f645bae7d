"""The resources that a training config needs: whether its model can be trained, and on which GPU it fits. Loads and downloads nothing."""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from osmosis_ai.config.issues import InvalidConfigError, closest
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.sandbox.gpus import visible_gpus
from osmosis_ai.training import has_train_extra
from osmosis_ai.training.model_support import (
    ModelSupport,
    base_of,
    has_cached_weights,
    is_relative_folder,
    model_support,
)
from osmosis_ai.training.runs.memory_estimate import MemoryEstimate, estimate
from osmosis_ai.ui import numbers
from osmosis_ai.workspace.config_files import TrainingConfig, load_training_config
from osmosis_ai.workspace.layout import find_workspace

MIB, GIB = 2**20, 2**30
GPUS: Mapping[str, int] = {
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
"""GPUs with bfloat16: memory as reported by the driver (`nvidia-smi`), slightly less than the nominal size."""
_NVIDIA_SMI_TIMEOUT_S = 10.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GB|GIB|G|MB|MIB|M)", re.IGNORECASE)


@dataclass(frozen=True)
class EstimatedTraining:
    """Memory needed on a device, or on each of several devices with one learner process each.

    ``own_model``, ``own_device`` and ``own_memory`` are about this machine's GPU, or its CPU without one. ``fits_on``
    has all known GPUs. ``warnings`` are about valid but probably unintended settings.
    """

    config: TrainingConfig
    model: ModelSupport
    device: str
    memory: MemoryEstimate
    own_model: ModelSupport
    own_device: str
    own_memory: MemoryEstimate
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
            "model": self.model.data(),
            "this_machine": {
                "device": self.own_device,
                "bytes": self.own_memory.gpu_bytes,
                "total_bytes": self.own_memory.total,
                "fits": self.own_memory.fits,
                "problem": self.own_model.problem,
            },
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

    Raises:
        NotFoundError: The model's configuration is not on this machine.
        OsmosisError: The architecture is not in the table, so that its sizes are unknown.
    """
    named = _named_device(gpu, gpu_memory)
    workspace = find_workspace()
    loaded = load_training_config(config, workspace)
    if loaded.doubts:
        shown = loaded.path.relative_to(workspace.root).as_posix()
        raise InvalidConfigError("training", shown, loaded.doubts)
    model_path, settings = base_of(loaded.experiment.model_path), loaded.settings
    if settings.backend == "tinker":
        raise OsmosisError('Memory cannot be estimated with backend = "tinker": the server holds the model.')
    own, own_size = this_machine()
    here = model_support(model_path, settings, on_gpu=own != "CPU")
    if not here.is_known:
        raise OsmosisError(
            f"Memory cannot be estimated for '{model_path}': unknown architecture '{here.model_type}'."
        )
    device, size = named or (own, own_size)
    if named is None and own == "CPU" and here.source != "built in":
        device, size = "H100", GPUS["H100"]
    is_here = (device, size) == (own, own_size)
    model = here if is_here else model_support(model_path, settings, on_gpu=True)
    own_memory = needed_memory(here, own, own_size)
    warnings = model.settings.warnings(model_path)
    if is_relative_folder(model_path):
        warnings.append(
            f"'{model_path}' is a folder in the current directory. A run needs its absolute path."
        )
    fits_on = {name: bool(needed_memory(model, name, size).fits) for name, size in GPUS.items()}
    return EstimatedTraining(
        loaded, model, device, needed_memory(model, device, size), here, own, own_memory, fits_on, warnings
    )


def needed_memory(model: ModelSupport, device: str, size: int) -> MemoryEstimate:
    """Return the memory that a known model needs on a GPU or, if ``device`` is "CPU", without one."""
    layout, plan, settings = model.layout, model.plan, model.settings
    assert layout is not None and plan is not None
    if model.problem is not None and settings.policy_engine == "torch":
        settings = settings.model_copy(update={"policy_engine": "vllm"})  # the engine that would do
    if device != "CPU":
        return estimate(layout, plan, settings, size)
    # The trainer samples from the built-in model in float64.
    engine_bytes = 8 if model.source == "built in" else 4
    return estimate(
        layout, plan, settings, size, weight_bytes=4, recompute_activations=False, engine_bytes=engine_bytes
    )


def this_machine() -> tuple[str, int]:
    """Return the name and memory of this machine's GPU, or "CPU" and its memory without one."""
    return own_gpu() or ("CPU", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def format_machine(device: str, memory: MemoryEstimate) -> str:
    """Return whether a run fits on a machine, for a person."""
    name = "CPU (no GPU)" if device == "CPU" else device
    return f"{name}: needs {numbers.size(memory.total)}, has {numbers.size(memory.gpu_bytes)}"


def planned_steps(total_rows: int, settings: TrainingSettings) -> dict[str, int]:
    """Return the steps of a run on a dataset of so many rows, and how many of these it trains on."""
    from osmosis_ai.training.runs.spec import DataOrder, SplitRows, ValidationPlan

    plan = ValidationPlan(rows=settings.validation_rows)
    held_out = () if settings.validation_dataset else plan.choose(total_rows, settings.seed)
    training = dict.fromkeys(range(total_rows - len(held_out)))
    return {
        "total": DataOrder.of(SplitRows(training, []), settings).total_steps,
        "attempts_per_step": settings.most_rollouts_per_step,
        "training_rows": len(training),
        "held_out_rows": len(held_out),
    }


def check_model(model_path: str, settings: TrainingSettings) -> tuple[ModelSupport | None, list[str]]:
    """Return what is known of a run's model before it is submitted, and warnings.

    Raises:
        OsmosisError: The model cannot be trained, or no model can have this name.
    """
    base = base_of(model_path)
    if is_relative_folder(base):
        raise OsmosisError(
            f"model_path is a relative path: {base}. Workers have a different working directory.",
            hint="use an absolute path, or a name on the Hugging Face Hub",
        )
    if settings.backend == "tinker":
        if base != model_path:
            raise OsmosisError(
                f"A Tinker server cannot start from an adapter: {model_path}.",
                hint=f'set model_path = "{base}"',
            )
        return None, [f"The Tinker server checks '{base}' when the run starts."]
    can = (
        "may download it" if settings.allow_download else "must have it ([advanced].allow_download is false)"
    )
    then = f"The worker {can}."
    try:
        found = model_support(base, settings, needs_weights=True)
    except NotFoundError:
        return None, [f"'{base}' is not on this machine and was not checked. {then}"]
    if found.problem is not None:
        raise OsmosisError(found.problem)
    if not found.is_known:
        return found, [
            f"The architecture '{found.model_type}' has not been tested. The run may fail when it starts."
        ]
    if found.source in ("cache", "shipped") and not has_cached_weights(base):
        return found, [f"'{base}' is not on this machine. {then}"]
    return found, []


def check_own_machine(settings: TrainingSettings, model: ModelSupport | None) -> tuple[bool, str]:
    """Return whether this machine can train a known model, and the reason for a person.

    Args:
        model: None with a Tinker server, which has the model.
    """
    if not has_train_extra():
        return False, "the extra `train` is not installed."
    if missing := [name for name in settings.report_to if find_spec(name) is None]:
        return False, f"the extra `loggers` is not installed (required by {' and '.join(missing)})."
    if model is None:
        if find_spec("tinker") is None:
            return False, "the extra `tinker` is not installed."
        return True, "ready. The Tinker server, which was not contacted, trains and samples."
    own, size = this_machine()
    here = model_support(model.model_path, model.settings, on_gpu=own != "CPU")
    if here.problem is not None:
        return False, here.problem
    settings = here.settings
    uses_vllm = settings.method == "rl" and settings.policy_engine == "vllm"
    if uses_vllm and not (settings.vllm_url or settings.vllm_command or which("vllm")):
        return False, "`vllm` is not on PATH, and [advanced] sets neither vllm_command nor vllm_url."
    memory = needed_memory(here, own, size)
    return memory.fits is not False, format_machine(own, memory)


def _named_device(gpu: str | None, gpu_memory: str | None) -> tuple[str, int] | None:
    """Return the name and the memory of the GPU that the options name."""
    if gpu is not None and gpu_memory is not None:
        raise OsmosisError("--gpu and --gpu-memory are mutually exclusive.")
    if gpu_memory is not None:
        match = _SIZE.fullmatch(gpu_memory.strip())
        size = float(match[1]) * (GIB if match[2][0] in "gG" else MIB) if match else 0
        if size <= 0:
            raise OsmosisError(
                f"`{gpu_memory}` is not an amount of memory.", hint="for example: --gpu-memory 80GB"
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
            f"unknown GPU: {gpu}.",
            hint=f"{said}known GPUs: {', '.join(GPUS)}; for any other use --gpu-memory",
        )
    return name, GPUS[name]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower().removesuffix("80gb")


def own_gpu() -> tuple[str, int] | None:
    """Return the name and memory of this machine's first GPU, without loading torch; None if there is none."""
    program = which("nvidia-smi")
    if program is None or not visible_gpus():
        return None
    try:
        answer = subprocess.run(
            [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=True,
        ).stdout
        name, mebibytes = next(csv.reader(answer.splitlines()))
        return name, int(mebibytes) * MIB
    except (OSError, subprocess.SubprocessError, StopIteration, ValueError):
        return None

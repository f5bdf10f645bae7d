"""The policy: a frozen base model and a trainable LoRA adapter.

The base is never modified. In float32, the served copy is base plus merged adapter, rebuilt from the base after
every update, because merging in place and back drifts. In bfloat16 the adapter is served next to its base, except on
experts, for which PEFT itself computes with the rounded sum. Dropout is always off, since the learner must reproduce the
sampling probabilities.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import built_in_model, served_models
from osmosis_ai.inference.torch_engine import LowRankUpdate, adapting
from osmosis_ai.training.model_support import is_target, model_support, read_model_config, target_list

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.model_support import ModelSupport

ADAPTER = "default"
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PEFT_PREFIX = "base_model.model."
# The files of a causal language model in transformers' format, without other formats of the same weights.
_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_MODEL_FILES = [*_SMALL_FILES, "*.safetensors"]


def model_source(model_path: str, *, allow_download: bool = False, weights: bool = True) -> str:
    """Return the folder that holds ``model_path``, from which loading needs no network."""
    if model_path in served_models():
        return str(built_in_model(model_path))
    if Path(model_path).is_dir():
        return model_path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    files = _MODEL_FILES if weights else _SMALL_FILES
    try:
        folder: str = snapshot_download(model_path, local_files_only=not allow_download, allow_patterns=files)
    except HFValidationError as error:
        raise OsmosisError(
            f"the model `{model_path}` cannot be loaded: it is not a built-in model, a folder or a name on the "
            "Hugging Face Hub."
        ) from error
    except LocalEntryNotFoundError as error:
        where, hint = "could not be fetched", None
        if not allow_download:
            where = "is not on this machine"
            hint = f"fetch it with `hf download {model_path}`, or set [advanced].allow_download = true"
        raise OsmosisError(f"the model `{model_path}` cannot be loaded: it {where}.", hint=hint) from error
    except OSError as error:  # no such repository, no access to it, no network
        raise OsmosisError(f"the model `{model_path}` cannot be fetched: {error}") from error
    return folder


def load_policy(
    model_path: str, settings: TrainingSettings, device: torch.device, *, adapter: Path | None = None
) -> Any:
    """Load the base model and put an adapter on it."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, masking_utils
    from transformers.utils import logging

    logging.disable_progress_bar()  # the caller decides how progress is shown
    # Rows are never packed, and looking for packed ones would wait for the GPU in every forward pass.
    masking_utils.find_packed_sequence_indices = lambda *_: None
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    source = model_source(model_path, allow_download=settings.allow_download)
    support = model_support(model_path, settings, on_gpu=device.type != "cpu")
    support.require()
    try:
        base = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError, ImportError) as error:
        raise OsmosisError(f"the model `{model_path}` cannot be loaded: {error}") from error
    try:
        with torch.random.fork_rng(devices=[]), adapting():
            torch.manual_seed(settings.seed)
            if adapter is not None:
                policy = PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
            else:
                lora = LoraConfig(
                    r=settings.lora_rank,
                    lora_alpha=settings.lora_alpha,
                    lora_dropout=0.0,
                    task_type="CAUSAL_LM",
                    **_peft_targets(base, support, settings),
                )
                policy = get_peft_model(base, lora)
            # The adapter names its base model, not where this machine keeps the files.
            policy.peft_config[ADAPTER].base_model_name_or_path = model_path
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        whence = f"the adapter in {adapter}" if adapter else f"an adapter on {settings.lora_targets}"
        raise OsmosisError(f"`{model_path}` does not accept {whence}: {error}") from error
    trainable, plan = trainable_parameters(policy), support.plan
    if adapter is None and plan is not None and trainable != plan.trainable_parameters:
        raise OsmosisError(
            f"The adapter on `{model_path}` has {trainable:,} trainable parameters instead of the planned "
            f"{plan.trainable_parameters:,}."
        )
    # Training mode must compute what inference mode computes.
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "jitter_noise"):  # the latter is added to what a router reads
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    if device.type != "cpu":
        # transformers is about to drop the second name, and older versions do not have the first.
        enable = (
            getattr(policy, "activation_checkpointing_enable", None) or policy.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
    # Recomputing activations works in training mode only; without dropout the two modes are the same.
    return policy.train()


def _peft_targets(base: nn.Module, support: ModelSupport, settings: TrainingSettings) -> dict[str, Any]:
    """Return PEFT's options for the weights of the plan.

    In a mixture of experts, PEFT takes a module `gate_proj`, `up_proj` or `down_proj` for the routed experts, wherever
    it is. The dense ones are therefore named as parameters, whose adapters have the same names and shapes.
    """
    layout, plan = support.layout, support.plan
    if layout is None or plan is None:
        if settings.lora_targets == "all-linear":
            return {"target_modules": "all-linear"}
        targets = target_list(settings.lora_targets)
        names = [name for name, module in base.named_modules() if isinstance(module, nn.Linear)]
        return {"target_modules": [name for name in names if any(is_target(each, name) for each in targets)]}
    routed = any(matrix.experts for _, matrix in layout.matrices())
    dense = [name for name in plan.target_modules if routed and ".mlp." in f".{name}"]
    return {
        "target_modules": [name for name in plan.target_modules if name not in dense],
        "target_parameters": [*plan.target_parameters, *(f"{name}.weight" for name in dense)] or None,
    }


def trainable_parameters(policy: Any) -> int:
    return sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)


def adapter_state(policy: Any) -> dict[str, Tensor]:
    """Return the adapter's tensors on the CPU, by PEFT's names."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(policy, save_embedding_layers=False)
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}


def load_adapter_state(policy: Any, state: dict[str, Tensor]) -> None:
    from peft import set_peft_model_state_dict

    if state.keys() != adapter_state(policy).keys():
        raise OsmosisError("the checkpoint's adapter and the settings name different layers.")
    try:
        set_peft_model_state_dict(policy, state)
    except RuntimeError as error:
        raise OsmosisError(f"the checkpoint's adapter does not fit the settings: {error}") from error


def save_adapter(policy: Any, directory: Path, *, for_vllm: bool = False) -> None:
    """Write the weights and configuration of a PEFT adapter to a new ``directory``."""
    from safetensors.torch import save

    config, state = copy.deepcopy(policy.peft_config[ADAPTER]), adapter_state(policy)
    if for_vllm and "text_config" in read_model_config(config.base_model_name_or_path)[0]:
        # vLLM serves the whole model of images and text, in which the layers have other names.
        whole = ".model.language_model.layers."
        state = {name.replace(".model.layers.", whole): tensor for name, tensor in state.items()}
    directory.mkdir(parents=True, exist_ok=True)
    # `save_file` hides the system's errors.
    (directory / ADAPTER_WEIGHTS).write_bytes(save(state, metadata={"format": "pt"}))
    config.inference_mode = True
    config.save_pretrained(str(directory))


def low_rank_updates(policy: Any) -> Iterator[tuple[str, Any]]:
    """Yield a copy of the adapter's update of every adapted matrix, with its name in the base model.

    PEFT computes parameters such as experts from W + BA, rounded to the type of W: their sums are yielded instead.
    """
    from peft.tuners.lora import Linear

    for name, module in _adapted(policy):
        if isinstance(module, Linear):
            a, b = (side[ADAPTER].weight.detach().clone() for side in (module.lora_A, module.lora_B))
            yield name, LowRankUpdate(a, b, module.scaling[ADAPTER])
        else:
            yield name, _merged(module, name)


def merged_tensors(policy: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield W + (alpha / r) B A for every adapted matrix or stack of experts, with its name in the base model.

    The results are new tensors of the base's type and device, summed in float32. Matrices without an adapter are
    omitted. All ranks take part in assembling a sharded matrix.    LoRA, arXiv:2106.09685, eq. 3
    """
    for name, module in _adapted(policy):
        yield name, _merged(module, name)


def _adapted(policy: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers that hold an adapter, with the names of the adapted weights in the base model."""
    from peft.tuners.lora import LoraLayer

    for name, module in policy.named_modules():
        if isinstance(module, LoraLayer):
            # Several adapted parameters of one module are wrapped in each other.
            layer = name.removeprefix(_PEFT_PREFIX).replace(".base_layer", "")
            yield f"{layer}.{getattr(module, 'parameter_name', 'weight')}", module


def _merged(module: Any, name: str) -> Tensor:
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        weight = getattr(module.get_base_layer(), name.rpartition(".")[2])
        whole: Tensor = weight.full_tensor() if isinstance(weight, DTensor) else weight
        return (whole.float() + module.get_delta_weight(ADAPTER).float()).to(whole.dtype)

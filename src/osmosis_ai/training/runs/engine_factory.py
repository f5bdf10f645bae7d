"""Opens the engine that a run's settings name, one in this process or vLLM, and the format of its model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.inference.catalog import served_models
from osmosis_ai.inference.chat import BuiltInChat, ChatFormat
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine, PolicyEngine
from osmosis_ai.training.learner.policy_model import model_source

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.runs.run_directory import TrainingDirectory
    from osmosis_ai.training.runs.spec import TrainingSpec

# Sequences that an engine in this process generates at once, and ended ones whose prefixes it remembers.
ENGINE_BATCH = 128
# vLLM's own variable for the key of a server.
SERVER_KEY_ENV = "VLLM_API_KEY"


def chat_format_of(spec: TrainingSpec, *, note: Callable[[str], None] | None = None) -> ChatFormat:
    """Return how the run's model reads and writes a conversation; raises OsmosisError."""
    chosen = spec.settings.tool_call_format
    source = model_source(spec.model_path, allow_download=spec.settings.allow_download)
    if spec.model_path in served_models():
        return BuiltInChat(Path(source), tool_call_format=chosen)
    from osmosis_ai.inference.torch_engine import PretrainedChat

    return PretrainedChat.load(source, tool_call_format=chosen, note=note)


def computes_in_float32(settings: TrainingSettings, device: str) -> bool:
    """Whether the engine computes in float32 or better where a learner on ``device`` does."""
    if settings.policy_engine == "torch":
        return device == "cpu"
    return settings.vllm_command is not None and device == "cpu" and "--dtype" not in settings.vllm_args


async def open_policy_engine(
    stack: AsyncExitStack,
    spec: TrainingSpec,
    directory: TrainingDirectory,
    *,
    device: str,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> PolicyEngine:
    """Open the engine and have ``stack`` close it."""
    import asyncio

    if spec.settings.policy_engine == "vllm":
        return await _open_vllm(stack, spec, directory, device, environ, note)
    return await asyncio.to_thread(_open_torch, stack, spec, device)


def _open_torch(stack: AsyncExitStack, spec: TrainingSpec, device: str) -> PolicyEngine:
    import torch

    from osmosis_ai.inference.engine import InferenceEngine
    from osmosis_ai.inference.torch_engine import TorchModel

    settings = spec.settings
    built_in = spec.model_path in served_models() and device == "cpu"
    if built_in:
        # So small that a second thread costs more than it brings.
        torch.set_num_threads(1)
    rollouts = settings.rollout_batch_size * settings.n_samples_per_prompt
    network = TorchModel.load(
        model_source(spec.model_path, allow_download=settings.allow_download),
        device=device,
        # In float64 a rollout's tokens do not depend on what else is sampled at the same time.
        dtype=torch.float64 if built_in else None,
        max_positions=settings.max_prompt_length + settings.max_response_length,
    )
    batch = min(ENGINE_BATCH, rollouts)
    engine = InferenceEngine(network, max_batch=batch, max_waiting=max(1024, 2 * rollouts), kept=batch)
    return InProcessPolicyEngine(stack.enter_context(engine), unmerged=network.rounds_weights)


async def _open_vllm(
    stack: AsyncExitStack,
    spec: TrainingSpec,
    directory: TrainingDirectory,
    device: str,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> PolicyEngine:
    from osmosis_ai.inference.torch_engine import end_tokens_of
    from osmosis_ai.training.engines.vllm_engine import VllmEngine
    from osmosis_ai.training.engines.vllm_server import VllmServer

    settings = spec.settings
    source = model_source(spec.model_path, allow_download=settings.allow_download)
    server = None
    if settings.vllm_command is not None:
        server = VllmServer(
            settings.vllm_command,
            model=source,
            served_as=spec.model_path,
            lora_rank=settings.lora_rank,
            dtype="float32" if device == "cpu" else "bfloat16",
            max_positions=settings.max_prompt_length + settings.max_response_length,
            args=settings.vllm_args,
            environ=environ,
            log_path=directory.engine_log,
            start_timeout_s=settings.vllm_start_timeout_s,
        )
        await stack.enter_async_context(server)
    engine = VllmEngine(
        server.url if server is not None else str(settings.vllm_url),
        model=spec.model_path,
        end_token_ids=end_tokens_of(source),
        adapters_dir=directory.served_adapters,
        api_key={**environ, **spec.env, **spec.secret_values}.get(SERVER_KEY_ENV),
        run=_run_name(directory.path),
        server=server,
        note=note,
    )
    return await stack.enter_async_context(engine)


def _run_name(path: Path) -> str:
    """A name that no other run on the server has, also when two have the same directory's name."""
    return f"{path.name}-{os.urandom(4).hex()}"

"""The policy under evaluation: an endpoint that answers while a run lasts, whoever serves it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.process_environment import why_reserved

if TYPE_CHECKING:
    from osmosis_ai.inference import InferenceServer
    from osmosis_ai.llm.providers import ModelEndpoint


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter to evaluate: a directory in PEFT's layout, and the model that it was trained on."""

    base_model: str
    directory: Path


@asynccontextmanager
async def open_policy(
    model_path: str,
    env: Mapping[str, str],
    lost: Callable[[Exception], None],
    *,
    adapter: TrainedAdapter | None = None,
) -> AsyncIterator[ModelEndpoint]:
    """Open the endpoint of a model, starting its server when it is one of ours."""
    from osmosis_ai.inference import InferenceServer, served_models
    from osmosis_ai.inference.catalog import engine_of
    from osmosis_ai.llm.providers import resolve_model

    if adapter is None and model_path not in served_models():
        endpoint = resolve_model(model_path, env, served=dict.fromkeys(served_models(), ("", None)))
        with _exported(env if endpoint.transport == "litellm" else {}):
            yield endpoint
        return
    base_model, directory = (
        (adapter.base_model, adapter.directory) if adapter is not None else (model_path, None)
    )
    server = InferenceServer(
        base_model, engine=engine_of(base_model), adapter=directory, served_as=model_path
    )
    async with server:
        watch = asyncio.create_task(_watch(server, lost))
        try:
            yield resolve_model(model_path, env, served={model_path: (server.base_url, server.api_key)})
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


@contextmanager
def _exported(env: Mapping[str, str]) -> Iterator[None]:
    """Let LiteLLM find what it looks up by itself (AWS keys, regions …) while a run lasts."""
    added = {
        name: value for name, value in env.items() if name not in os.environ and why_reserved(name) is None
    }
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


async def _watch(server: InferenceServer, lost: Callable[[Exception], None]) -> None:
    lost(await server.death())

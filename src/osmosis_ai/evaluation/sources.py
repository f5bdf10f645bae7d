"""Sources of a run's agent and model.

The engine knows an agent only by its digest and inputs, which must not change on resume, and by its server.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.source_digest import grader_digest, source_digest
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.process_environment import program_environment, why_reserved

if TYPE_CHECKING:
    from osmosis_ai.controller.remote_agents import AgentAddress, RemoteAgent
    from osmosis_ai.llm.providers import ModelEndpoint
    from osmosis_ai.sandbox import Sandbox


class RolloutSource(ABC):
    """An agent: the code of a server that runs it, or the address of a remote one (:class:`RemoteSource`)."""

    path: Path
    sandbox: Sandbox | None = None

    @abstractmethod
    def source_digest(self, output_root: Path) -> str:
        """Return the SHA-256 (hex) of the agent's files."""

    def inputs(self) -> dict[str, Any]:
        """Return further inputs of the run that depend on the agent."""
        return {}

    def grader_digest(self, spec: EvalRunSpec, output_root: Path) -> str | None:
        """Return the digest of the grader; None if the grader is not distinguished from the agent."""
        return None

    def server_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment of the agent's server, given that of this process."""
        return environ


class ProjectSource(RolloutSource):
    """A directory under `rollouts/`, with its own environment."""

    def __init__(self, path: Path, sandbox: Sandbox | None = None) -> None:
        self.path = path
        self.sandbox = sandbox

    def source_digest(self, output_root: Path) -> str:
        if output_root.resolve() == self.path.resolve():
            raise OsmosisError(f"Results cannot be written into the rollout's own directory: '{self.path}'.")
        return source_digest(self.path, output_root=output_root)

    def grader_digest(self, spec: EvalRunSpec, output_root: Path) -> str | None:
        timeout_s = spec.evaluation.grader_timeout_s
        return grader_digest(self.path, grader_timeout_s=timeout_s, env=spec.env, output_root=output_root)

    def server_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        # In a sandbox only the variables that programs need are passed on from the user's shell.
        return program_environment(environ) if self.sandbox else environ


class RemoteSource(RolloutSource):
    """An agent that its owner serves; a result depends on its name, not on any file here."""

    def __init__(self, name: str, locate: Callable[[], AgentAddress], *, hint: str) -> None:
        self.name = name
        self._hint = hint
        self._locate = locate

    def source_digest(self, output_root: Path) -> str:
        return hashlib.sha256(f"server://{self.name}".encode()).hexdigest()

    def agent(self) -> RemoteAgent:
        """Return the agent; it calls back at the address that this machine's operator configured."""
        from osmosis_ai.controller.callbacks import CallbackAddress
        from osmosis_ai.controller.remote_agents import RemoteAgent

        return RemoteAgent(
            self._locate,
            name=f"the served agent `{self.name}`",
            callback_address=CallbackAddress.from_environment(os.environ),
            hint=self._hint,
        )


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
    """Open the endpoint of a model; a model or adapter of ours gets a server, ``lost`` is called if that dies."""
    from osmosis_ai.inference import InferenceServer, served_models
    from osmosis_ai.inference.catalog import engine_of
    from osmosis_ai.llm.providers import resolve_model

    if adapter is None and model_path not in served_models():
        endpoint = resolve_model(model_path, env, served=dict.fromkeys(served_models(), ("", None)))
        with _exported(env if endpoint.transport == "litellm" else {}):
            yield endpoint
        return
    base_model = adapter.base_model if adapter is not None else model_path
    server = InferenceServer(
        base_model,
        engine=engine_of(base_model),
        adapter=adapter.directory if adapter is not None else None,
        served_as=model_path,
    )

    async def report_death() -> None:
        lost(await server.death())

    async with server:
        watch = asyncio.create_task(report_death())
        try:
            yield resolve_model(model_path, env, served={model_path: (server.base_url, server.api_key)})
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


@contextmanager
def _exported(env: Mapping[str, str]) -> Iterator[None]:
    """Export variables that LiteLLM looks up by itself, such as AWS keys and regions."""
    added = {
        name: value for name, value in env.items() if name not in os.environ and why_reserved(name) is None
    }
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)

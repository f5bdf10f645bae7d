"""Sources of a run's agent and model.

The engine knows only this of an agent: a digest and inputs, which lock a resume, and how to start its server.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.source_digest import grader_digest, source_digest
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.process_environment import program_environment, why_reserved

if TYPE_CHECKING:
    from osmosis_ai.controller.environments import RolloutEnvironment
    from osmosis_ai.controller.remote_agents import AgentLocation, RemoteAgent
    from osmosis_ai.controller.server_process import RolloutServer
    from osmosis_ai.inference import InferenceServer
    from osmosis_ai.llm.providers import ModelEndpoint
    from osmosis_ai.sandbox import Sandbox


@dataclass(frozen=True)
class ServerSetting:
    """Settings that a rollout's server is started with."""

    spec: EvalRunSpec
    directory: RunDirectory
    environ: Mapping[str, str] = field(repr=False)
    secret_values: Mapping[str, str] = field(repr=False)
    cache_dir: Path
    port: int | None
    note: Callable[[str], None]


class RolloutSource(ABC):
    """An agent that a server can run."""

    is_remote: ClassVar[bool] = False
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

    @abstractmethod
    async def server(
        self, setting: ServerSetting
    ) -> tuple[RolloutEnvironment | None, RolloutServer | RemoteAgent]:
        """Return the environment and the server, not yet started; a remote agent has no environment."""


class ProjectSource(RolloutSource):
    """A directory under `rollouts/`, with its own environment."""

    def __init__(self, path: Path, sandbox: Sandbox | None = None) -> None:
        self.path = path
        self.sandbox = sandbox

    def source_digest(self, output_root: Path) -> str:
        """Return the digest of the directory's files."""
        if output_root.resolve() == self.path.resolve():
            raise OsmosisError(f"Results cannot be written into the rollout's own directory: '{self.path}'.")
        return source_digest(self.path, output_root=output_root)

    def grader_digest(self, spec: EvalRunSpec, output_root: Path) -> str | None:
        """Return the digest of the grader."""
        return grader_digest(
            self.path,
            grader_timeout_s=spec.evaluation.grader_timeout_s,
            env=spec.env,
            output_root=output_root,
        )

    async def server(self, setting: ServerSetting) -> tuple[RolloutEnvironment, RolloutServer]:
        """Build the environment unless the running interpreter suffices."""
        from osmosis_ai.controller.server_process import prepare_server

        return await prepare_server(
            self.path,
            setting.spec.experiment.entrypoint,
            # In a sandbox only the variables that programs need are passed on from the user's shell.
            environ=program_environment(setting.environ) if self.sandbox else setting.environ,
            variables=setting.spec.env,
            secret_values=setting.secret_values,
            artifact_root=setting.directory.trials,
            log_path=setting.directory.server_log,
            cache_dir=setting.cache_dir,
            note=setting.note,
            port=setting.port,
            sandbox=self.sandbox,
        )


class RemoteSource(RolloutSource):
    """An agent that its owner serves; a result depends on its name, not on any file here."""

    is_remote: ClassVar[bool] = True

    def __init__(self, name: str, locate: Callable[[], AgentLocation], *, hint: str) -> None:
        self.name = name
        self._hint = hint
        self._locate = locate

    def source_digest(self, output_root: Path) -> str:
        """Return the digest of the agent's name."""
        return hashlib.sha256(f"server://{self.name}".encode()).hexdigest()

    async def server(self, setting: ServerSetting) -> tuple[None, RemoteAgent]:
        """Return the agent, not yet looked up."""
        setting.note(f"remote agent: '{self.name}'")
        return None, self.agent()

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
    async with server:
        watch = asyncio.create_task(_watch(server, lost))
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


async def _watch(server: InferenceServer, lost: Callable[[Exception], None]) -> None:
    lost(await server.death())

"""Where a run's agent and model come from.

The engine knows an agent only by its digest and inputs, which must not change on resume, and by its server.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.process_environment import program_environment, why_reserved
from osmosis_ai.rollout.source_digest import digest_files, grader_digest, source_files

if TYPE_CHECKING:
    from osmosis_ai.controller.remote_agents import AgentAddress, RemoteAgent
    from osmosis_ai.llm.providers import ModelEndpoint
    from osmosis_ai.sandbox.bubblewrap import Sandbox


@dataclass
class ProjectSource:
    """An agent in a directory under `rollouts/`, with its own environment."""

    path: Path
    sandbox: Sandbox | None = None

    def source_digest(self, output_root: Path | None = None) -> str:
        """Return the SHA-256 (hex) over the names and bytes of the agent's files."""
        if output_root is not None and output_root.resolve() == self.path.resolve():
            raise OsmosisError(f"Results cannot be written into the rollout's own directory: '{self.path}'.")
        return digest_files(source_files(self.path, output_root))

    def grader_digest(self, spec: EvalRunSpec, output_root: Path | None = None) -> str | None:
        """Return the digest of everything that the grader depends on; None if it is part of the agent."""
        timeout_s = spec.evaluation.grader_timeout_s
        return grader_digest(self.path, grader_timeout_s=timeout_s, env=spec.env, output_root=output_root)

    def inputs(self) -> dict[str, Any]:
        """Return further inputs of the run that depend on the agent."""
        return {}

    def server_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment of the agent's server, given that of this process."""
        # In a sandbox only the variables that programs need are passed on from the user's shell.
        return program_environment(environ) if self.sandbox else environ


@dataclass
class RemoteSource:
    """An agent that its owner serves; a result depends on its name, not on any file here."""

    name: str
    locate: Callable[[], AgentAddress]
    hint: str
    sandbox = None

    def source_digest(self, output_root: Path | None = None) -> str:
        return hashlib.sha256(f"server://{self.name}".encode()).hexdigest()

    def grader_digest(self, spec: EvalRunSpec, output_root: Path) -> None:
        return None

    def inputs(self) -> dict[str, Any]:
        return {}

    def agent(self) -> RemoteAgent:
        """Return the agent; its callbacks use the address that this machine's operator configured."""
        from osmosis_ai.controller.callbacks import CallbackAddress
        from osmosis_ai.controller.remote_agents import RemoteAgent

        return RemoteAgent(
            self.locate,
            name=f"the remote agent `{self.name}`",
            callback_address=CallbackAddress.from_environment(os.environ),
            hint=self.hint,
        )


RolloutSource = ProjectSource | RemoteSource


@dataclass(frozen=True)
class TrainedAdapter:
    """A model of ours to evaluate, with an adapter in PEFT's layout that was trained on it."""

    base_model: str
    directory: Path | None = None


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
    from osmosis_ai.llm.providers import resolve_model

    if adapter is None and model_path not in served_models():
        endpoint = resolve_model(model_path, env, served=served_models())
        with _exported(env if endpoint.transport == "litellm" else {}):
            yield endpoint
        return
    model = adapter or TrainedAdapter(model_path)
    server = InferenceServer(model.base_model, adapter=model.directory, served_as=model_path)

    async def report_death() -> None:
        lost(await server.death())

    async with server:
        watch = asyncio.create_task(report_death())
        try:
            endpoint = resolve_model(model_path, env, served=[model_path])
            yield replace(endpoint, base_url=server.base_url, api_key=server.api_key)
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

"""Where the agent under evaluation comes from: what it is made of, and how its server is started.

The engine knows nothing else of an agent. Its digest and its inputs lock a resume.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.grader_digest import grader_digest
from osmosis_ai.evaluation.manifest import source_digest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.process_environment import program_environment

if TYPE_CHECKING:
    from osmosis_ai.controller.environments import RolloutEnvironment
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.controller.server_process import RolloutServer
    from osmosis_ai.sandbox import Sandbox


@dataclass(frozen=True)
class ServerSetting:
    """What a rollout's server is started with."""

    spec: EvalRunSpec
    directory: RunDirectory
    environ: Mapping[str, str] = field(repr=False)
    secret_values: Mapping[str, str] = field(repr=False)
    cache_dir: Path
    port: int | None
    note: Callable[[str], None]


class RolloutSource(ABC):
    """An agent that a server can run."""

    is_elsewhere: ClassVar[bool] = False
    sandbox: Sandbox | None = None

    @abstractmethod
    def source_digest(self, output_root: Path) -> str:
        """Return the SHA-256 (hex) of the files that the agent is made of."""

    def inputs(self) -> dict[str, Any]:
        """Return what else of the agent a result depends on, beside its files, as inputs of the run."""
        return {}

    def grader_digest(self, spec: EvalRunSpec, output_root: Path) -> str | None:
        """Return the digest of what grades (``grader_digest.py``); None where that is not told apart."""
        return None

    @abstractmethod
    async def server(
        self, setting: ServerSetting
    ) -> tuple[RolloutEnvironment | None, RolloutServer | RemoteAgent]:
        """Return the agent's environment and its server in it, not yet started; no environment where it is
        elsewhere."""


class ProjectSource(RolloutSource):
    """A directory under `rollouts/`, with an environment of its own."""

    def __init__(self, path: Path, sandbox: Sandbox | None = None) -> None:
        self.path = path
        self.sandbox = sandbox

    def source_digest(self, output_root: Path) -> str:
        """Return the digest of the directory's files."""
        if output_root.resolve() == self.path.resolve():
            raise OsmosisError(f"results cannot go into the rollout's own directory, `{self.path}`.")
        return source_digest(self.path, output_root=output_root)

    def grader_digest(self, spec: EvalRunSpec, output_root: Path) -> str | None:
        """Return the digest of what grades."""
        return grader_digest(
            self.path,
            grader_timeout_s=spec.evaluation.grader_timeout_s,
            env=spec.env,
            output_root=output_root,
        )

    async def server(self, setting: ServerSetting) -> tuple[RolloutEnvironment, RolloutServer]:
        """Build the environment where the running interpreter does not suffice."""
        from osmosis_ai.controller.server_process import prepare_server

        return await prepare_server(
            self.path,
            setting.spec.experiment.entrypoint,
            # What is held back gets nothing of the user's shell but what makes programs run.
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

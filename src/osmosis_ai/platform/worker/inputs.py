"""The inputs of a shard: source, rows, weights and secret values, as received with the claim.

Everything is stored in the shard's working directory first, so that a later worker uses the same bytes whatever happened
to the repository or dataset. Files with the right digest are not downloaded again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from osmosis_ai.api.wire.workers import Assignment, InputDownload
from osmosis_ai.config.sections import served_agent
from osmosis_ai.controller.remote_agents import AgentAddress, unregistered_agent
from osmosis_ai.controller.server_process import default_servers
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.sources import ProjectSource, RemoteSource, RolloutSource
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.runs.submit.model_path import PolicyWeights
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.run_request import RunRequest
from osmosis_ai.platform.worker.containment import RunContainment, contain
from osmosis_ai.platform.worker.directory import WorkingDirectory
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.source_archive import unpack_source
from osmosis_ai.redaction import Redactor


class RunInputs:
    """The inputs of one shard; ``reporter`` downloads them."""

    reporter: Reporter

    def __init__(
        self,
        config: PlatformConfig,
        assignment: Assignment,
        directory: WorkingDirectory,
        *,
        has_bucket_keys: bool = False,
        cpus: float | None = None,
    ) -> None:
        self._config = config
        self._assignment = assignment
        self._directory = directory
        self._has_bucket_keys = has_bucket_keys
        self._cpus = cpus
        self.run = assignment.run
        self.rows = RowSelection.read(self.run.selection)
        values = assignment.secrets.values()
        self.redactor = Redactor([value.get_secret_value() for value in values])

    def source(self) -> Path:
        """Return the commit's files, unpacked again because an agent may have changed its copy."""
        source, archive = self._directory.source, self._directory.source_archive
        given = self._assignment.source
        # One that is there was checked when it was fetched.
        if given is None or not (self._is_here(given, archive) or archive.exists()):
            raise OsmosisError(
                "the repository of this run was disconnected before the run began.",
                hint="connect it with `osmosis platform connect`, then submit again",
            )
        unpack_source(archive, source)
        return source

    def rollout(self, entrypoint: str, containment: RunContainment | None) -> RolloutSource:
        """Return the agent: a directory of the commit, or a remote one."""
        agent = served_agent(entrypoint)
        if agent is None:
            sandbox = containment.sandbox if containment is not None else None
            return ProjectSource(self.source() / "rollouts" / self.run.rollout_name, sandbox)
        return self.served(agent)

    def served(self, agent: str) -> RemoteSource:
        """Return a remote agent, whose address is asked for whenever it is needed."""

        def locate() -> AgentAddress:
            place = self.reporter.find_agent()
            if place is None:
                raise unregistered_agent(agent)
            key = place.api_key.get_secret_value() if place.api_key is not None else None
            if key is not None:
                self.redactor.add([key])
            return AgentAddress(place.host, place.port, key)

        return RemoteSource(
            agent,
            locate,
            hint="list the agents with `osmosis rollout server list`; `osmosis serve` registers one again",
        )

    def servers(self, request: RunRequest) -> int:
        """Return how many rollout servers work on the run: as many as it asks for, or as its processors are good for."""
        asked = request.execution
        return asked.servers or default_servers(cpus=asked.cpus or self._cpus, gpus=asked.gpus)

    def dataset(self) -> DatasetInput:
        """Return the rows, in a copy of this run's own."""
        run, rows = self.run, self.rows
        path = self._directory.dataset(self._assignment.dataset_extension)
        given = self._assignment.dataset
        if given.sha256 != rows.sha256 or not self._is_here(given, path):
            raise OsmosisError(
                f"the dataset '{run.dataset_name}' was replaced before the run began.",
                hint="submit the run again",
            )
        return DatasetInput(path, run.dataset_name, rows.sha256, "platform")

    def policy(self) -> PolicyWeights:
        """Return the weights of the run; those of an adapter in a copy of this run's own."""
        given, adapter = self._assignment.adapter, self._directory.adapter
        if adapter.is_dir():
            return PolicyWeights(self.run.model_path.rpartition(":")[0], adapter)
        if given is None:
            return PolicyWeights(self.run.model_path)
        partial = adapter.with_name(f".{adapter.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, file in given.files.items():
            if Path(name).name != name or name in ("", ".", ".."):
                raise OsmosisError(
                    f"the adapter `{self.run.model_path}` has a file with an invalid name: {name!r}."
                )
            self.reporter.fetch(file, partial / name)
        partial.rename(adapter)
        return PolicyWeights(given.base_model, adapter)

    def secret_values(self, names: Sequence[str]) -> dict[str, str]:
        """Return the value of every secret, given with the submit or stored at the time of the claim."""
        given = self._assignment.secrets
        if missing := [name for name in names if name not in given]:
            raise OsmosisError(
                f"the secret '{missing[0]}' is no longer stored.",
                hint=f"store it with `osmosis secret set {missing[0]}`, then submit again",
            )
        return {name: given[name].get_secret_value() for name in names}

    def containment(self, request: RunRequest) -> RunContainment | None:
        """Return how the run's rollouts are isolated; None for a remote agent."""
        if served_agent(request.experiment.entrypoint) is not None:
            return None
        given = self._assignment
        demanded = {"isolation": given.isolation, "network": given.network}
        asked = request.execution.model_copy(update={key: value for key, value in demanded.items() if value})
        return contain(
            self._config,
            self._directory,
            self.run.workspace_id,
            asked,
            has_bucket_keys=self._has_bucket_keys,
        )

    def _is_here(self, given: InputDownload, path: Path) -> bool:
        """Have bytes at ``path``, downloaded if necessary; False if the platform no longer has them."""
        if path.exists() and file_digest(path) == given.sha256:
            return True
        if not given.url:
            return False
        self.reporter.fetch(given, path)
        return True

"""The work on one shard: its inputs, as received with the claim, and how it begins and ends.

Inputs are stored in the shard's working directory first, so that a later worker uses the same bytes whatever happened to
the repository or dataset. Files with the right digest are not downloaded again.
"""

from __future__ import annotations

import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.api.models.workers import FinishRequest, InputDownload, ReleaseRequest
from osmosis_ai.config.sections import served_agent
from osmosis_ai.controller.remote_agents import AgentAddress, unregistered_agent
from osmosis_ai.controller.server_process import default_servers
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalWriteError
from osmosis_ai.evaluation.sources import RemoteSource
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.runs.requests import RowSelection, RunRequest
from osmosis_ai.platform.worker.client import StoreAwayError
from osmosis_ai.platform.worker.containment import RunContainment, contain
from osmosis_ai.platform.worker.directory import WorkingDirectory
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.source_archive import unpack_source

ShardEnd = FinishRequest | ReleaseRequest
"""The end of a shard; a release without a reason leaves it to the next worker."""
_MOST_SENTENCE_CHARS = 600


@dataclass(frozen=True)
class PolicyWeights:
    """The weights of a run: a base model, with the files of an adapter or without."""

    base_model: str
    adapter: Path | None = None


class Interrupt:
    """A thread-safe request to end the work; a listener is notified, also if it comes late.

    ``outlast`` waits for the platform while the work is paused, and returns whether it may continue.
    """

    def __init__(self, outlast: Callable[[], bool] = lambda: False) -> None:
        self.outlast = outlast
        self._lock = threading.RLock()
        self._listener: Callable[[], object] = lambda: None
        self._is_set = False

    def set(self) -> None:
        """Request it."""
        with self._lock:
            if not self._is_set:
                self._is_set = True
                self._listener()

    def withdraw(self) -> None:
        """Withdraw the request, so that it can be made again."""
        with self._lock:
            self._is_set = False

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` when the work must end; at once if it must."""
        with self._lock:
            self._listener = listener
            if self._is_set:
                listener()

    def __bool__(self) -> bool:
        return self._is_set


class Work(ABC):
    """The work on one shard; ``note`` is shown with the run's results."""

    def __init__(
        self,
        config: PlatformConfig,
        reporter: Reporter,
        directory: WorkingDirectory,
        *,
        has_bucket_keys: bool = False,
        cpus: float | None = None,
    ) -> None:
        self._config = config
        self._reporter = reporter
        self._directory = directory
        self._has_bucket_keys = has_bucket_keys
        self._cpus = cpus
        self._assignment = reporter.assignment
        self._run = self._assignment.run
        self._rows = RowSelection.read(self._run.selection)
        self.containment: RunContainment | None = None
        self.note: str | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Fetch everything that the work needs; blocking."""

    @abstractmethod
    async def execute(self, interrupt: Interrupt) -> ShardEnd:
        """Execute the shard, or continue it; called again after the platform was unreachable."""

    # -- inputs ----------------------------------------------------------------------------------------

    def source(self) -> Path:
        """Return the commit's files, unpacked again because an agent may have changed its copy."""
        source, archive = self._directory.source, self._directory.source_archive
        given = self._assignment.source
        # An existing archive was checked when it was fetched.
        if given is None or not (self._is_here(given, archive) or archive.exists()):
            raise OsmosisError(
                "the repository of this run was disconnected before the run began.",
                hint="connect it with `osmosis platform connect`, then submit again",
            )
        unpack_source(archive, source)
        return source

    def served(self, agent: str) -> RemoteSource:
        """Return a remote agent, whose address is asked for whenever it is needed."""

        def locate() -> AgentAddress:
            place = self._reporter.find_agent()
            if place is None:
                raise unregistered_agent(agent)
            key = place.api_key.get_secret_value() if place.api_key is not None else None
            if key is not None:
                self._reporter.redactor.add([key])
            return AgentAddress(place.host, place.port, key)

        return RemoteSource(
            agent,
            locate,
            hint="list the agents with `osmosis rollout server list`; `osmosis serve` registers one again",
        )

    def servers(self, request: RunRequest) -> int:
        """Return the number of rollout servers: as requested, or as many as the processors are good for."""
        asked = request.execution
        return asked.servers or default_servers(cpus=asked.cpus or self._cpus, gpus=asked.gpus)

    def dataset(self) -> DatasetInput:
        """Return the rows, in a copy of this run's own."""
        path = self._directory.dataset(self._assignment.dataset_extension)
        given, name, sha256 = self._assignment.dataset, self._run.dataset_name, self._rows.sha256
        if given.sha256 != sha256 or not self._is_here(given, path):
            raise OsmosisError(
                f"the dataset '{name}' was replaced before the run began.", hint="submit the run again"
            )
        return DatasetInput(path, name, sha256, "platform")

    def policy(self) -> PolicyWeights:
        """Return the weights of the run; those of an adapter in a copy of this run's own."""
        given, adapter = self._assignment.adapter, self._directory.adapter
        if adapter.is_dir():
            return PolicyWeights(self._run.model_path.rpartition(":")[0], adapter)
        if given is None:
            return PolicyWeights(self._run.model_path)
        partial = adapter.with_name(f".{adapter.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, file in given.files.items():
            if Path(name).name != name or name in ("", ".", ".."):
                raise OsmosisError(
                    f"the adapter `{self._run.model_path}` has a file with an invalid name: {name!r}."
                )
            self._reporter.fetch(file, partial / name)
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

    def contain(self, request: RunRequest) -> None:
        """Decide how the run's rollouts are isolated; a remote agent is not."""
        if served_agent(request.experiment.entrypoint) is not None:
            return
        given = self._assignment
        required = {"isolation": given.isolation, "network": given.network}
        asked = request.execution.model_copy(update={key: value for key, value in required.items() if value})
        self.containment = contain(
            self._config,
            self._directory,
            self._run.workspace_id,
            asked,
            has_bucket_keys=self._has_bucket_keys,
        )

    def _is_here(self, given: InputDownload, path: Path) -> bool:
        """Have bytes at ``path``, downloaded if necessary; False if the platform no longer has them."""
        if path.exists() and file_digest(path) == given.sha256:
            return True
        if not given.url:
            return False
        self._reporter.fetch(given, path)
        return True


def failed(error: OsmosisError) -> ShardEnd:
    """Return the end after an error: the run fails, unless another worker may succeed."""
    # Another machine may have room for the journal.
    is_unfit = isinstance(error, JournalWriteError)
    if not (error.is_infrastructure or is_unfit):
        return FinishRequest(outcome="failed", error=one_sentence(error))
    counts = not isinstance(error, StoreAwayError)
    return ReleaseRequest(reason=one_sentence(error), counts=counts, unfit=is_unfit)


def one_sentence(error: OsmosisError) -> str:
    """Return an error in one line of limited length; the log has all of it."""
    message = " ".join(error.message.split()).rstrip(".")
    hint = " ".join(error.hint.split()).rstrip(".") if error.hint else ""
    room = _MOST_SENTENCE_CHARS - len(hint) - 3
    if len(message) > room:
        # What a tool prints last is why it failed.
        message = f"{message[: room // 3].rstrip()} … {message[-(room - room // 3 - 3) :].lstrip()}"
    return f"{message}; {hint}." if hint else f"{message}."

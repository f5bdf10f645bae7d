"""The work on one shard: its inputs, as received with the claim, its isolation, and how it begins and ends.

Inputs are stored in the shard's working directory first, so that a later worker uses the same bytes whatever happened to
the repository or dataset. Files with the right digest are not downloaded again. The archive of a commit is untrusted:
only regular files, directories and internal links are written, all below one new directory. Links come last, so that
no file is written through one.

Isolation is decided once by the worker and stored on the run. Sandboxed builds use a cache per workspace, so that
workspaces cannot affect each other's builds.
"""

from __future__ import annotations

import os
import shutil
import socket
import tarfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.api.models.workers import FinishRequest, InputDownload, ReleaseRequest
from osmosis_ai.config.sections import served_agent
from osmosis_ai.controller.remote_agents import AgentAddress, unregistered_agent
from osmosis_ai.controller.server_process import default_servers
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalWriteError
from osmosis_ai.evaluation.sources import RemoteSource, TrainedAdapter
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.files import cache_dir
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.requests import RowSelection, RunRequest
from osmosis_ai.platform.worker.client import StoreAwayError
from osmosis_ai.platform.worker.process import WorkingDirectory
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.sandbox.bubblewrap import Sandbox, narrower
from osmosis_ai.sandbox.control_groups import RunLimits, control_run, processors_for
from osmosis_ai.sandbox.gpus import GpuGrant, grant_gpus
from osmosis_ai.sandbox.isolation import (
    Isolation,
    IsolationUnavailableError,
    check_sandbox,
    choose_isolation,
    stricter,
)

ShardEnd = FinishRequest | ReleaseRequest
"""The end of a shard; a release without a reason leaves it to the next worker."""
_MOST_SENTENCE_CHARS = 600


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
        with self._lock:
            if not self._is_set:
                self._is_set = True
                self._listener()

    def withdraw(self) -> None:
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


@dataclass
class Work(ABC):
    """The work on one shard; ``note`` is shown with the run's results."""

    config: PlatformConfig
    reporter: Reporter
    directory: WorkingDirectory
    has_bucket_keys: bool = field(default=False, kw_only=True)
    cpus: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._assignment = self.reporter.assignment
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

    def source(self) -> Path:
        """Return the commit's files, unpacked again because an agent may have changed its copy."""
        source, archive = self.directory.source, self.directory.source_archive
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
            place = self.reporter.find_agent()
            if place is None:
                raise unregistered_agent(agent)
            key = place.api_key.get_secret_value() if place.api_key is not None else None
            if key is not None:
                self.reporter.redactor.add([key])
            return AgentAddress(place.host, place.port, key)

        return RemoteSource(
            agent,
            locate,
            hint="list the agents with `osmosis rollout server list`; `osmosis serve` registers one again",
        )

    def servers(self, request: RunRequest) -> int:
        """Return the number of rollout servers: as requested, or as many as the processors are good for."""
        asked = request.execution
        return asked.servers or default_servers(cpus=asked.cpus or self.cpus, gpus=asked.gpus)

    def dataset(self) -> DatasetInput:
        """Return the rows, in a copy of this run's own."""
        path = self.directory.dataset(self._assignment.dataset_extension)
        name, sha256 = self._run.dataset_name, self._rows.sha256
        self._require_rows(self._assignment.dataset, path, sha256, f"dataset '{name}'")
        return DatasetInput(path, name, sha256, "platform")

    def validation_file(self) -> Path | None:
        """Return the rows of the validation dataset, in a copy of this run's own."""
        given, chosen = self._assignment.validation, self._rows.validation
        if given is None or chosen is None:
            return None
        path = self.directory.dataset(chosen[2], "validation")
        self._require_rows(given, path, chosen[1], "validation dataset")
        return path

    def _require_rows(self, given: InputDownload, path: Path, sha256: str, what: str) -> None:
        if given.sha256 != sha256 or not self._is_here(given, path):
            raise OsmosisError(f"the {what} was replaced before the run began.", hint="submit the run again")

    def policy(self) -> TrainedAdapter:
        """Return the weights of the run; those of an adapter in a copy of this run's own."""
        given, adapter = self._assignment.adapter, self.directory.adapter
        if adapter.is_dir():
            return TrainedAdapter(self._run.model_path.rpartition(":")[0], adapter)
        if given is None:
            return TrainedAdapter(self._run.model_path)
        partial = adapter.with_name(f".{adapter.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, file in given.files.items():
            if Path(name).name != name or name in ("", ".", ".."):
                raise OsmosisError(
                    f"the adapter `{self._run.model_path}` has a file with an invalid name: {name!r}."
                )
            self.reporter.fetch(file, partial / name)
        partial.rename(adapter)
        return TrainedAdapter(given.base_model, adapter)

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
        given, config = self._assignment, self.config
        required = {"isolation": given.isolation, "network": given.network}
        asked = request.execution.model_copy(update={key: value for key, value in required.items() if value})
        is_guarded = self.has_bucket_keys and config.network is None
        network = "none" if is_guarded else narrower(config.network, asked.network)
        wanted = stricter(config.isolation, "required" if network == "none" else asked.isolation)
        if wanted == "off":
            self.containment = RunContainment(Isolation("none"), None, cache_dir())
            return
        capability = check_sandbox(config.home)
        try:
            # The message is read on the run's page, and the machine may be any node of a cluster.
            machine = f"on the machine '{socket.gethostname()}'"
            isolation = choose_isolation(wanted, capability, network, where=machine)
        except IsolationUnavailableError as error:
            if is_guarded:
                error.hint = f"{error.hint}; the run has no network {_GUARDED}"
            raise
        if not isolation.is_sandboxed:
            self.containment = RunContainment(isolation, None, cache_dir())
            return
        limits = RunLimits(memory_gb=asked.memory_gb, cpus=asked.cpus, processors=processors_for(asked.cpus))
        granted = grant_gpus(asked.gpus, config.home / GPU_LOCKS) if asked.gpus else None
        sandbox = capability.sandbox(
            self.directory.source,
            hidden=[config.home],
            limits=limits,
            control=control_run(self.directory.path.name, limits),
            gpus=granted,
            network=network,
        )
        cache = cache_dir() / "workspaces" / self._run.workspace_id
        because = _GUARDED if is_guarded else ""
        self.containment = RunContainment(isolation, sandbox, cache, because, _gpu_words(asked.gpus, granted))

    def _is_here(self, given: InputDownload, path: Path) -> bool:
        """Have bytes at ``path``, downloaded if necessary; False if the platform no longer has them."""
        if path.exists() and file_digest(path) == given.sha256:
            return True
        if not given.url:
            return False
        self.reporter.fetch(given, path)
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
        # The last line of a tool's output is the reason for its failure.
        message = f"{message[: room // 3].rstrip()} … {message[-(room - room // 3 - 3) :].lstrip()}"
    return f"{message}; {hint}." if hint else f"{message}."


MAX_SOURCE_BYTES = 4 * 1024**3
_MOST_ENTRIES = 1_000_000


class SourceArchiveError(OsmosisError):
    """The archive of a commit is invalid."""


def unpack_source(archive: Path, target: Path) -> None:
    """Replace ``target`` by the files of an archive (tar, gzip), all or none."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:gz") as files:
            _unpack(files, partial)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        name = os.path.relpath(error.filename or target, partial)
        raise SourceArchiveError(
            f"two paths of the commit are the same file on this machine: {name!r}."
        ) from None
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        raise SourceArchiveError(f"the archive of the run's commit cannot be read: {error}.") from None
    else:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(files: tarfile.TarFile, root: Path) -> None:
    what, room = "the archive of the run's commit has", MAX_SOURCE_BYTES
    links: list[tuple[str, str]] = []
    for number, entry in enumerate(files):
        room -= entry.size
        if room < 0 or number >= _MOST_ENTRIES:
            raise SourceArchiveError(f"{what} more than 4 GiB or 1,000,000 files.")
        # An absolute path begins with an empty part.
        if "\0" in entry.name or {"", ".", ".."} & set(entry.name.split("/")):
            raise SourceArchiveError(f"{what} an invalid path: {entry.name!r}.")
        path = root / entry.name
        if entry.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.issym():
            links.append((entry.name, entry.linkname))
        elif entry.isreg() and (content := files.extractfile(entry)) is not None:
            mode = 0o755 if entry.mode & 0o100 else 0o644
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(content, file)
        else:
            raise SourceArchiveError(f"{what} an entry that is not a file: {entry.name!r}.")
    for name, destination in links:
        (root / name).symlink_to(destination)
    inside = root.resolve()
    for name, destination in links:
        # Judged only when all of them are there: a link may lead outside by way of another one.
        found = Path(os.path.realpath(root / name))
        if Path(destination).is_absolute() or not found.is_relative_to(inside):
            raise SourceArchiveError(f"a link of the commit leads out of it: {name!r}.")


GPU_LOCKS = "gpus"
"""Its directory has a lock for each of the machine's GPUs that a run uses."""
_GUARDED = (
    "because the metadata address of this machine gives the credentials of the platform's bucket to every program; "
    "OSMOSIS_NETWORK=host permits rollouts to reach it"
)


@dataclass(frozen=True)
class RunContainment:
    isolation: Isolation
    sandbox: Sandbox | None
    cache: Path
    because: str = ""
    gpus: str = ""

    @property
    def words(self) -> str:
        """The description in the run's row."""
        if self.sandbox is None:
            return self.isolation.words
        return f"{self.isolation.words}, network {self.sandbox.network}; {self.sandbox.control.words}"

    @property
    def line(self) -> LogLine:
        """The description in the run's log."""
        if self.isolation.warning is not None:
            return LogLine(self.isolation.warning, level="warning", step="isolation")
        if self.sandbox is None:
            return LogLine("rollouts run without a sandbox (OSMOSIS_ISOLATION=off)", step="isolation")
        reach = " and reach only the run's model" if self.sandbox.network == "none" else ""
        because = f", {self.because}" if self.because else ""
        more = f"{reach}{because}; {self.sandbox.control.words}{self.gpus}"
        return LogLine(f"rollouts run in a sandbox (bubblewrap){more}", step="isolation")

    @property
    def refusals(self) -> LogLine | None:
        """The log line about processes that were refused, if there were any."""
        if self.sandbox is None or not (often := self.sandbox.control.refused):
            return None
        times = "once" if often == 1 else f"{often} times"
        words = f"the run exceeded its limit of {self.sandbox.limits.processes} processes and threads {times}"
        return LogLine(words, level="warning", step="isolation")

    def close(self) -> None:
        """End whatever the run's programs left on this machine."""
        if self.sandbox is not None:
            self.sandbox.control.close()
            if self.sandbox.gpus is not None:
                self.sandbox.gpus.close()


def _gpu_words(asked: int | None, granted: GpuGrant | None) -> str:
    if not asked:
        return ""
    if granted is None:
        return f"; it requests GPUs ({asked}), but this machine has none"
    shared = f", {granted.shared} of them shared with other runs" if granted.shared else ""
    return f"; GPUs: {len(granted.visible)} of {asked}{shared}"

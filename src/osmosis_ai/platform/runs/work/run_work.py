"""What a worker does with a run, whatever its kind: get hold of what it needs, and execute it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import is_disk_full

if TYPE_CHECKING:
    from osmosis_ai.api.wire.workers import AssignedRun
    from osmosis_ai.platform.runs.work.containment import RunContainment
    from osmosis_ai.platform.runs.work.inputs import RunInputs
    from osmosis_ai.platform.runs.work.publisher import Publisher
    from osmosis_ai.platform.runs.work.run_channel import RunChannel
    from osmosis_ai.platform.runs.working_directory import WorkingDirectory
    from osmosis_ai.redaction import Redactor


MAX_SENTENCE_CHARS = 600


@dataclass(frozen=True)
class WorkResult:
    """How a worker's turn ended: with an outcome of the run, or without one when it was told to leave."""

    outcome: Literal["finished", "failed"] | None
    error: str | None = None
    is_infrastructure: bool = False
    is_of_machine: bool = False
    is_store_away: bool = False
    keeps_files: bool = False


class Interrupt:
    """Thread-safe request to end the run; listeners are notified, including late ones."""

    def __init__(self, outlast: Callable[[], bool] = lambda: False) -> None:
        self.outlast = outlast
        self._lock = threading.RLock()
        self._listener: Callable[[], None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Say it."""
        with self._lock:
            if not self._is_set:
                self._is_set = True
                if self._listener is not None:
                    self._listener()

    def withdraw(self) -> None:
        """Withdraw the request, so that it can be made again."""
        with self._lock:
            self._is_set = False

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when it is said; at once when it has been."""
        with self._lock:
            self._listener = listener
            if self._is_set:
                listener()

    def __bool__(self) -> bool:
        return self._is_set


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run whose code, rows, weights and secrets are at hand."""

    run: AssignedRun
    commit_sha: str
    redactor: Redactor = field(repr=False)
    containment: RunContainment | None


P = TypeVar("P", bound=PreparedRun)


class RunWork(ABC, Generic[P]):
    """The work on one run."""

    def __init__(self, inputs: RunInputs, channel: RunChannel, directory: WorkingDirectory) -> None:
        self._inputs = inputs
        self._channel = channel
        self._directory = directory
        self.ending: str | None = None

    @abstractmethod
    def prepare(self) -> P:
        """Get hold of everything the run needs; blocking."""

    @abstractmethod
    async def execute(self, prepared: P, publisher: Publisher, interrupt: Interrupt) -> WorkResult:
        """Execute the run, or continue it; may be called again, where the platform was away in between."""


def met_full_disk(error: BaseException | None) -> bool:
    """Tell whether ``error`` came of a disk that has no room: this machine's, which says nothing against the run."""
    while error is not None:
        if isinstance(error, OSError) and is_disk_full(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def one_sentence(error: OsmosisError) -> str:
    """Return ``error`` in one line of at most :data:`MAX_SENTENCE_CHARS` characters; the log has all of it."""
    said = " ".join(error.message.split()).rstrip(".")
    hint = " ".join(error.hint.split()).rstrip(".") if error.hint else ""
    room = MAX_SENTENCE_CHARS - len(hint) - 3
    if len(said) > room:
        # What a tool prints last says why it failed.
        said = f"{said[: room // 3].rstrip()} … {said[-(room - room // 3 - 3) :].lstrip()}"
    return f"{said}; {hint}." if hint else f"{said}."

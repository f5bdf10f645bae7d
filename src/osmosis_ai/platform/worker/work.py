"""What a worker does with a shard, whatever the kind of its run: prepare it, and execute it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.platform.worker.containment import RunContainment
    from osmosis_ai.platform.worker.directory import WorkingDirectory
    from osmosis_ai.platform.worker.inputs import RunInputs
    from osmosis_ai.platform.worker.reporter import Reporter

_MOST_SENTENCE_CHARS = 600


@dataclass(frozen=True)
class WorkResult:
    """How the work ended: with an outcome of the shard, or without one if the worker was asked to leave.

    ``is_infrastructure``: the failure is not the run's fault; ``is_unfit``: it is this machine's; ``is_store_away``: the
    platform's store is unavailable.
    """

    outcome: Literal["finished", "failed"] | None
    error: str | None = None
    is_infrastructure: bool = False
    is_unfit: bool = False
    is_store_away: bool = False


class Interrupt:
    """A thread-safe request to end the work; listeners are notified, including late ones.

    ``outlast`` waits for the platform while the work stands still, and returns whether it may continue.
    """

    def __init__(self, outlast: Callable[[], bool] = lambda: False) -> None:
        self.outlast = outlast
        self._lock = threading.RLock()
        self._listener: Callable[[], None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Request it."""
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
        """Call ``listener`` when the work must end; at once if it must."""
        with self._lock:
            self._listener = listener
            if self._is_set:
                listener()

    def __bool__(self) -> bool:
        return self._is_set


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A shard whose inputs are on this machine."""

    containment: RunContainment | None


P = TypeVar("P", bound=Prepared)


class Work(ABC, Generic[P]):
    """The work on one shard; ``note`` is shown with the run's results."""

    def __init__(self, inputs: RunInputs, reporter: Reporter, directory: WorkingDirectory) -> None:
        self._inputs = inputs
        self._reporter = reporter
        self._directory = directory
        self.note: str | None = None

    @abstractmethod
    def prepare(self) -> P:
        """Fetch everything that the work needs; blocking."""

    @abstractmethod
    async def execute(self, prepared: P, interrupt: Interrupt) -> WorkResult:
        """Execute the shard, or continue it; called again after the platform was unreachable."""


def one_sentence(error: OsmosisError) -> str:
    """Return an error in one line of limited length; the log has all of it."""
    message = " ".join(error.message.split()).rstrip(".")
    hint = " ".join(error.hint.split()).rstrip(".") if error.hint else ""
    room = _MOST_SENTENCE_CHARS - len(hint) - 3
    if len(message) > room:
        # What a tool prints last says why it failed.
        message = f"{message[: room // 3].rstrip()} … {message[-(room - room // 3 - 3) :].lstrip()}"
    return f"{message}; {hint}." if hint else f"{message}."

"""Engine thread that owns the model.

A submission (the choices of one request) waits in a bounded queue, joins the running batch and receives each of its
tokens. Submissions take turns sequence by sequence, so a request with many choices does not block a small one.
Cancelled work stops at the next step.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.batching import ContinuousBatch, Emission, Generation
from osmosis_ai.inference.language_model import LanguageModel

logger = logging.getLogger(__name__)

# Padded prompt tokens that are read between two decoding steps: how long newcomers may hold up the others.
PREFILL_BUDGET_TOKENS = 2048
# The rate of finished sequences, for Retry-After, is measured over the last so many.
RATE_WINDOW = 64
LONGEST_RETRY_AFTER_S = 60


class EngineBusyError(OsmosisError):
    """The queue is full; ask again after ``retry_after_s`` seconds."""

    default_code = "RATE_LIMITED"

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(
            f"the model server is busy: {waiting} sequences are waiting already.",
            details={"waiting": waiting, "retry_after_s": retry_after_s},
            hint=f"try again in {retry_after_s} s, or with fewer requests at once",
        )
        self.retry_after_s = retry_after_s


class EngineStoppedError(OsmosisError):
    """The engine does not run: it was closed, or it failed and its log says why."""

    default_code = "INTERNAL"


class Listener(Protocol):
    """Who hears of a submission's progress. Called by the engine's thread, so: be quick, never raise."""

    def emitted(self, emission: Emission) -> None:
        """One more token of one of the submission's generations."""

    def failed(self, error: EngineStoppedError) -> None:
        """Nothing more will come."""


class Submission:
    """The choices of one request, in the queue or in the batch. Made by :meth:`InferenceEngine.submit`."""

    def __init__(
        self, engine: InferenceEngine, generations: Sequence[Generation], listener: Listener
    ) -> None:
        self._engine = engine
        self.listener = listener
        self.waiting = deque(generations)
        self.cancelled = False

    def cancel(self) -> None:
        """Give up on what has not been generated yet; harmless when all has."""
        self._engine.cancel(self)


@dataclass(frozen=True)
class EngineStats:
    """What the engine is doing, and has done since it started."""

    running: int
    waiting: int
    finished: int
    prompt_tokens: int
    generated_tokens: int


@dataclass(eq=False)
class _Publication:
    """Weights on their way to the engine's thread, and what became of them."""

    weights: Mapping[str, Any]
    version: int
    settled: threading.Event = field(default_factory=threading.Event)
    error: OsmosisError | None = None

    def settle(self, error: OsmosisError | None = None) -> None:
        self.error = error
        self.settled.set()


class InferenceEngine:
    """Runs a model for any number of threads; a context manager that starts and ends its own."""

    def __init__(
        self, model: LanguageModel[Any, Any], *, max_batch: int = 32, max_waiting: int = 1024, kept: int = 32
    ) -> None:
        self.model = model
        self._batch = ContinuousBatch(model, max_batch, kept=kept)
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._queue: deque[Submission] = deque()
        self._waiting = 0
        self._publications: deque[_Publication] = deque()
        self._owners: dict[Generation, Submission] = {}
        self._something_cancelled = False
        self._stopped: EngineStoppedError | None = None
        self._finish_times: deque[float] = deque(maxlen=RATE_WINDOW)
        self._finished = self._prompt_tokens = self._generated_tokens = 0
        self._thread = threading.Thread(target=self._run, name="osmosis-inference", daemon=True)

    def __enter__(self) -> InferenceEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's thread and fail all pending submissions."""
        self._stop(EngineStoppedError("the model server is shutting down."))
        if self._thread.is_alive():
            self._thread.join()

    @property
    def failure(self) -> EngineStoppedError | None:
        """Why the engine does not run any more; None while it runs."""
        return self._stopped

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Submission:
        """Queue the choices of one request."""
        with self._changed:
            if self._stopped:
                raise self._stopped
            if self._waiting and self._waiting + len(generations) > self._max_waiting:
                raise EngineBusyError(self._waiting, self._retry_after_s())
            submission = Submission(self, generations, listener)
            self._queue.append(submission)
            self._waiting += len(generations)
            self._changed.notify()
        return submission

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Exchange weights between two steps and wait until it is done; requests go on meanwhile."""
        publication = _Publication(weights, version)
        with self._changed:
            if self._stopped:
                raise self._stopped
            self._publications.append(publication)
            self._changed.notify()
        publication.settled.wait()
        if publication.error:
            raise publication.error

    def cancel(self, submission: Submission) -> None:
        """Drop what ``submission`` still waits for."""
        with self._changed:
            submission.cancelled = True
            if submission in self._queue:
                self._queue.remove(submission)
                self._waiting -= len(submission.waiting)
                submission.waiting.clear()
            self._something_cancelled = True
            self._changed.notify()

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters."""
        with self._changed:
            return EngineStats(
                len(self._owners), self._waiting, self._finished, self._prompt_tokens, self._generated_tokens
            )

    def _run(self) -> None:
        try:
            while (newcomers := self._next_newcomers()) is not None:
                self._publish_pending()
                emissions = self._batch.admit(newcomers) if newcomers else []
                self._deliver(emissions)
                self._deliver(self._batch.step())
        except Exception:
            # The edge of the thread: without this, callers would wait for ever.
            logger.exception("the inference engine failed")
            self._stop(EngineStoppedError("the model server failed; its log holds the traceback."))

    def _next_newcomers(self) -> list[Generation] | None:
        """Wait until there is work; return who joins the batch, or None when the engine is to end."""
        with self._changed:
            while not (self._stopped or self._waiting or self._owners or self._publications):
                self._changed.wait()
            if self._stopped:
                return None
            if self._something_cancelled:
                self._something_cancelled = False
                self._batch.discard(lambda generation: self._owners[generation].cancelled)
                self._owners = {g: owner for g, owner in self._owners.items() if not owner.cancelled}
            return self._take_turns()

    def _publish_pending(self) -> None:
        while self._publications:
            publication = self._publications[0]
            try:
                self._batch.publish(publication.weights, publication.version)
            except OsmosisError as error:
                publication.settle(error)
            else:
                publication.settle()
            # Remove it last, so that the engine notifies waiters on any error.
            self._publications.popleft()

    def _take_turns(self) -> list[Generation]:
        """Take sequences from the queue, one of each submission in turn, as many as one step may read."""
        accepted: list[Generation] = []
        longest = 0
        while self._queue and len(accepted) < self._batch.free:
            submission = self._queue[0]
            longest = max(longest, len(submission.waiting[0].prompt))
            if accepted and (len(accepted) + 1) * longest > PREFILL_BUDGET_TOKENS:
                break
            generation = submission.waiting.popleft()
            self._queue.popleft()
            if submission.waiting:
                self._queue.append(submission)
            self._owners[generation] = submission
            self._prompt_tokens += len(generation.prompt)
            accepted.append(generation)
        self._waiting -= len(accepted)
        return accepted

    def _deliver(self, emissions: Sequence[Emission]) -> None:
        """Notify the listeners, after updating the counters that they may read."""
        deliveries = [(self._owners[emission.generation].listener, emission) for emission in emissions]
        finished = [emission.generation for emission in emissions if emission.finish_reason]
        with self._changed:
            self._generated_tokens += len(emissions)
            self._finished += len(finished)
            self._finish_times.extend([time.monotonic()] * len(finished))
            for generation in finished:
                del self._owners[generation]
        for listener, emission in deliveries:
            listener.emitted(emission)

    def _stop(self, error: EngineStoppedError) -> None:
        with self._changed:
            if self._stopped:
                return
            self._stopped = error
            abandoned = {*self._queue, *self._owners.values()}
            self._queue.clear()
            self._waiting = 0
            unpublished = [*self._publications]
            self._changed.notify()
        for submission in abandoned:
            submission.listener.failed(error)
        for publication in unpublished:
            publication.settle(error)

    def _retry_after_s(self) -> int:
        """Return when the queue should be empty, going by how fast sequences finished lately."""
        times = self._finish_times
        elapsed = time.monotonic() - times[0] if times else 0.0
        if elapsed <= 0.0:
            return 1
        return min(LONGEST_RETRY_AFTER_S, max(1, math.ceil(self._waiting * elapsed / len(times))))

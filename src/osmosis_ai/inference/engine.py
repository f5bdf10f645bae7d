"""Generate text with a network (``model`` on NumPy, ``torch_engine`` on torch): sampling, batching, the engine's thread.

Sampling has no generator state: a hash of (seed, position) decides the token at a position, so neither the rest of the
batch, nor restarts, nor the library matter. The hash is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
number generators", OOPSLA 2014; constants of Stafford's variant 13). It is applied to the seed first, so that
neighbouring seeds do not give shifted copies of one stream.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from osmosis_ai.errors import OsmosisError

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FinishReason = Literal["stop", "length"]

# Below this temperature the choice is the most likely token: dividing by it could overflow.
GREEDY_BELOW = 1e-5
# Padded prompt tokens read between two decoding steps: bounds how long new sequences delay the others.
PREFILL_BUDGET_TOKENS = 2048
# Sequences that a training run's engine generates at once.
MAX_BATCH = 128
# Retry-After is estimated from the last so many finished sequences.
RATE_WINDOW = 64
MAX_RETRY_AFTER_S = 60
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FAILED = "the model server failed; its log holds the traceback."
_REQUEST = re.compile(r"tried to allocate ([\d.]+) (\w+)", re.IGNORECASE)
LESS_MEMORY = "lower max_response_length, max_prompt_length or rollout_batch_size, or use vLLM"


def random_stream(seed: int | None, choice: int = 0) -> int:
    """Return the 64-bit key of the random numbers of one choice of a request."""
    key = int.from_bytes(os.urandom(8), "big") if seed is None else seed % 2**64
    if choice == 0:
        return key
    return int(_mix(_mix(np.array([key], np.uint64)) + np.uint64(choice))[0])


def uniforms(streams: NDArray[np.uint64], positions: Ints) -> Floats:
    """Return the numbers in [0, 1) that decide the tokens at ``positions``; 53 random bits each."""
    counters = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    fractions: Floats = (_mix(_mix(streams) + counters) >> np.uint64(11)) * 2.0**-53
    return fractions


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every output bit depends on every input bit."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


# The state of each running sequence in a batch. ``position`` is that of the next token.
SAMPLING_ROW = np.dtype(
    [
        *(("generated", "i8"), ("last_token", "i8"), ("position", "i8"), ("top_logprobs", "i8")),
        *(("stream", "u8"), ("temperature", "f8"), ("top_p", "f8")),
    ]
)
SamplingRows = NDArray[np.void]
# A token, its log-probability before ``top_p``, and the likeliest tokens with theirs.
Drawn = tuple[int, float, tuple[tuple[int, float], ...]]


def draw_tokens(xp: Any, logits: Any, sampling: SamplingRows) -> list[Drawn]:
    """Draw a token for each row of R x V logits, which are an array of ``xp``: NumPy or torch."""
    array = partial(xp.asarray, device=logits.device)
    greedy = sampling["temperature"] < GREEDY_BELOW
    divisors = np.where(greedy, 1.0, sampling["temperature"])[:, None]
    # Natural logarithms of the distributions at each row's temperature.
    log_probs = xp.asarray(logits, dtype=xp.float64) / array(divisors)
    log_probs -= xp.amax(log_probs, axis=1, keepdims=True)
    log_probs -= xp.log(xp.exp(log_probs).sum(axis=1, keepdims=True))
    probabilities = xp.exp(log_probs)
    truncated = np.flatnonzero(sampling["top_p"] < 1.0)
    if len(truncated):
        which = array(truncated)
        probabilities[which] = _nucleus(xp, probabilities[which], array(sampling["top_p"][truncated]))
    sums = xp.cumsum(probabilities, axis=1)
    total = sums[:, -1]
    numbers = array(uniforms(sampling["stream"], sampling["position"]))
    # Rounding must not carry the threshold to the total, where no token is left to choose.
    thresholds = xp.minimum(numbers * total, xp.nextafter(total, xp.zeros_like(total)))
    tokens = (sums <= thresholds[:, None]).sum(axis=1)
    if greedy.any():
        tokens = xp.where(array(greedy), log_probs.argmax(axis=1), tokens)
    rows = xp.arange(len(tokens), device=logits.device)
    likeliest: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    counts = sampling["top_logprobs"].tolist()
    if most := max(counts):
        order = xp.argsort(-log_probs, axis=1, stable=True)[:, :most]
        ids, values = order.tolist(), log_probs[rows[:, None], order].tolist()
        pairs = [list(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]
        likeliest = [tuple(row[:count]) for row, count in zip(pairs, counts, strict=True)]
    return list(zip(tokens.tolist(), log_probs[rows, tokens].tolist(), likeliest, strict=True))


def _nucleus(xp: Any, probabilities: Any, top_ps: Any) -> Any:
    """Zero all but the fewest most likely tokens whose sum reaches ``top_p``; ties go to the lower id."""
    rows = xp.arange(len(probabilities), device=probabilities.device)[:, None]
    order = xp.argsort(-probabilities, axis=1, stable=True)
    ranked = probabilities[rows, order]
    before = xp.cumsum(ranked, axis=1) - ranked
    before[:, 0] = -1.0  # the most likely token always stays
    kept = xp.zeros_like(probabilities)
    kept[rows, order] = ranked * (before < top_ps[:, None])
    return kept


@dataclass(frozen=True)
class Dimensions:
    """The interface of a network for batches and requests."""

    max_positions: int
    end_token_ids: frozenset[int]


class LanguageModel(Protocol):
    """A causal language model, used by one thread at a time; the types of caches and logits are its own.

    A cache has the keys and values of a number of slots, the first ``running`` of which can be extended.
    ``copy(source, target, length)`` replaces what a slot holds (with length 0, by nothing), and
    ``fit(rows, positions)`` says how many of the first slots are in use and how long they are; ``nbytes`` is its size.
    """

    @property
    def config(self) -> Dimensions: ...

    @property
    def fingerprint(self) -> str: ...

    def new_cache(self, running: int, kept: int) -> Any: ...

    def extend(self, cache: Any, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> Any:
        """Append R x S right-padded tokens to the slots ``rows``; R x V logits after the wanted ones."""

    def draw(self, logits: Any, sources: Sequence[int] | slice, sampling: SamplingRows) -> list[Drawn]:
        """Draw one token for each row of ``logits[sources]``."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace only the named tensors, atomically; raises OsmosisError if a name or a shape does not fit."""


def check_shapes(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise OsmosisError if a tensor of ``given`` has no counterpart of its shape."""
    for name, tensor in given.items():
        shape, expected = tuple(tensor.shape), tuple(own[name].shape) if name in own else None
        if shape != expected:
            wrong = f"it has the shape {shape}, not {expected}"
            problem = wrong if expected else "the model has none of this name"
            raise OsmosisError(f"the tensor `{name}` does not fit the model: {problem}.")


@dataclass(frozen=True, slots=True)
class SampledToken:
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A request for one continuation of one prompt; requests of one ``rollout`` share a prefix."""

    prompt: tuple[int, ...]
    max_tokens: int
    stream: int
    stop_tokens: frozenset[int]
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int = 0
    rollout: object | None = None


@dataclass(frozen=True, slots=True)
class Emission:
    """A token of a generation, and the reason if it is the last one."""

    generation: Generation
    token: SampledToken
    finish_reason: FinishReason | None


def refused_memory(error: BaseException) -> str | None:
    """Return the size of the allocation that failed, if ``error`` is torch's or Python's lack of memory."""
    is_torch = type(error).__module__.partition(".")[0] == "torch" and "OutOfMemory" in type(error).__name__
    # On a CPU, torch raises a plain RuntimeError.
    if not (is_torch or isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
        return None
    request = _REQUEST.search(str(error))
    if request is None:
        return "more memory"
    return f"{float(request[1]) / 2**30:.2f} GiB" if request[2] == "bytes" else f"{request[1]} {request[2]}"


def cache_bytes(sequences: int, positions: int, *, layers: int, width: int, number_bytes: int) -> int:
    """Return the most that the torch engine allocates for the keys and values of its sequences.

    Args:
        sequences: Running and kept sequences together; a training run has :func:`cached_sequences` of them.
        positions: Tokens of the longest sequence, prompt included.
        width: Numbers that one layer stores of a token: twice the key-value heads times their dimension.
        number_bytes: 2 for bfloat16 and 4 for float32.
    """
    return sequences * positions * layers * width * number_bytes


def cached_sequences(rollouts: int) -> int:
    """Return how many sequences a training run's engine caches, given the rollouts of a step."""
    return min(rollouts, 2 * MAX_BATCH)


class SequenceSlots:
    """Cache slots of generating sequences (the first ``running``) and of ended ones.

    A new sequence copies its longest cached prefix and computes only the rest: copying a position costs a thousandth of
    computing it. At most ``running + kept`` sequences are cached, so those that run displace ended ones.
    """

    def __init__(self, model: LanguageModel, *, running: int, kept: int) -> None:
        self.cache = model.new_cache(running, running + kept)
        slots = 2 * running + kept
        self.lengths: Ints = np.zeros(slots, np.int64)
        self.tokens = np.zeros((slots, model.config.max_positions), np.int32)
        self._kept = slice(running, slots)
        self._last_used = np.zeros(slots, np.int64)
        self._clock = 0

    def fill(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Record that ``slot`` has ``tokens`` from position ``start`` on, and nothing after them."""
        self.lengths[slot] = end = start + len(tokens)
        self.tokens[slot, start:end] = tokens

    def copy(self, source: int, target: int, length: int) -> None:
        if source != target:
            self.cache.copy(source, target, length)
            self.tokens[target, :length] = self.tokens[source, :length]
        self.lengths[target] = length

    def keep(self, slot: int) -> None:
        """Cache an ended sequence in a free slot: there is one, because it ran until now."""
        free = self._kept.start + int(self.lengths[self._kept].argmin())
        self.copy(slot, free, int(self.lengths[slot]))
        self._touch(free)

    def take_prefix(self, prompt: Sequence[int], target: int) -> int:
        """Copy the longest cached prefix of ``prompt`` to ``target``; return its length in tokens.

        An ended sequence that is continued from its end is not needed any more.
        """
        wanted = np.array(prompt[:-1], np.int32)
        equal = self.tokens[:, : len(wanted)] == wanted
        # The first difference of each slot, or the whole length.
        common = np.where(equal.all(axis=1), len(wanted), equal.argmin(axis=1) if len(wanted) else 0)
        known = np.minimum(common, self.lengths)
        best = int(known.argmax())
        length = int(known[best])
        self._touch(best)
        self.copy(best, target, length)
        if best >= self._kept.start and length == self.lengths[best]:
            self._forget(best)
        return length

    def make_room(self, running: int) -> None:
        """Forget the least recently used ended sequences, as far as ``running`` ones need their places."""
        kept = self._kept.start + np.flatnonzero(self.lengths[self._kept])
        surplus = len(kept) + running - (self._kept.stop - self._kept.start)
        for slot in kept[self._last_used[kept].argsort()][: max(0, surplus)].tolist():
            self._forget(slot)

    def forget_kept(self) -> None:
        for slot in self._kept.start + np.flatnonzero(self.lengths[self._kept]):
            self._forget(int(slot))

    def _forget(self, slot: int) -> None:
        self.cache.copy(slot, slot, 0)
        self.lengths[slot] = 0

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._last_used[slot] = self._clock


class ContinuousBatch:
    """The generating sequences, in the first slots without gaps; they join and leave between two steps.

    Results depend neither on slots, nor on other sequences, nor on cached prompts.
    """

    def __init__(self, model: LanguageModel, capacity: int, *, kept: int = 32) -> None:
        self.capacity = capacity
        self.version = 0
        self._model = model
        self._slots = SequenceSlots(model, running=capacity, kept=kept)
        self._running: list[Generation] = []
        self._columns = np.zeros(capacity, SAMPLING_ROW)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def free(self) -> int:
        return self.capacity - len(self._running)

    @property
    def cache_bytes(self) -> int:
        return int(self._slots.cache.nbytes)

    def admit(self, newcomers: Sequence[Generation]) -> list[Emission]:
        """Read the prompts of ``newcomers`` together and draw the first token of each."""
        first = len(self._running)
        # Equal prompts are read once: in the first slots, then copied to the others.
        ordered = sorted(newcomers, key=lambda generation: generation.prompt)
        distinct = list(dict.fromkeys(generation.prompt for generation in ordered))
        running = first + len(newcomers)
        longest = max(*map(len, distinct), int(self._slots.lengths[:first].max(initial=0)))
        self._slots.cache.fit(running, longest)
        starts = np.array(
            [self._slots.take_prefix(prompt, first + row) for row, prompt in enumerate(distinct)]
        )
        self._slots.make_room(running)
        rest = [prompt[known:] for prompt, known in zip(distinct, starts.tolist(), strict=True)]
        logits = self._extend(first, rest, starts)
        sources = [distinct.index(generation.prompt) for generation in ordered]
        # From the last slot down, a copy never overwrites a prompt that is still to be copied:
        # prompts are in order, so none is after the slots that need it.
        for offset in reversed(range(len(ordered))):
            self._slots.copy(first + sources[offset], first + offset, len(ordered[offset].prompt))
        for slot, g in enumerate(ordered, first):
            self._columns[slot] = 0, 0, 0, g.top_logprobs, g.stream, g.temperature, g.top_p
        self._running += ordered
        return self._draw(first, logits, sources)

    def step(self) -> list[Emission]:
        count = len(self._running)
        if not count:
            return []
        rows, first = slice(0, count), np.zeros(count, np.int64)
        lasts = self._columns["last_token"][rows]
        logits = self._model.extend(self._slots.cache, rows, lasts[:, None], self._slots.lengths[rows], first)
        self._slots.tokens[np.arange(count), self._slots.lengths[rows]] = lasts
        self._slots.lengths[rows] += 1
        return self._draw(0, logits, slice(None))

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace weights and recompute the cache of the running sequences."""
        self._model.load_weights(weights)
        self.version = version
        texts = [
            self._slots.tokens[slot, : self._slots.lengths[slot]].tolist()
            for slot in range(len(self._running))
        ]
        self._slots.forget_kept()
        if texts:
            self._extend(0, texts, np.zeros(len(texts), np.int64))

    def discard(self, unwanted: Callable[[Generation], bool]) -> None:
        self._vacate(slot for slot, generation in enumerate(self._running) if unwanted(generation))

    def _extend(self, first: int, texts: Sequence[Sequence[int]], starts: Ints) -> Any:
        """Append tokens to the slots from ``first`` on; logits after the last token of each text."""
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)] = tokens
        wanted = np.array([len(tokens) - 1 for tokens in texts])
        rows = slice(first, first + len(texts))
        logits = self._model.extend(self._slots.cache, rows, ids, starts, wanted)
        for row, tokens in enumerate(texts):
            self._slots.fill(first + row, tokens, int(starts[row]))
        return logits

    def _draw(self, first: int, logits: Any, sources: Sequence[int] | slice) -> list[Emission]:
        """Draw a token for every slot from ``first`` on; finished sequences leave."""
        rows = slice(first, len(self._running))
        generations, columns = self._running[rows], self._columns[rows]
        columns["position"] = self._slots.lengths[rows]
        drawn = self._model.draw(logits, sources, columns)
        columns["last_token"] = [token for token, _, _ in drawn]
        columns["generated"] += 1
        emissions, finished = [], []
        for row, generation in enumerate(generations):
            token = SampledToken(*drawn[row], self.version)
            reason: FinishReason | None = None
            if token.id in generation.stop_tokens:
                reason = "stop"
            elif columns["generated"][row] >= generation.max_tokens:
                reason = "length"
            emissions.append(Emission(generation, token, reason))
            if reason:
                finished.append(first + row)
        self._vacate(finished)
        return emissions

    def _vacate(self, slots: Iterable[int]) -> None:
        """Free slots; from the highest down, so that the sequence moved into a hole is one that stays."""
        highest_first = sorted(slots, reverse=True)
        for slot in highest_first:
            self._slots.keep(slot)
            last = len(self._running) - 1
            if slot != last:
                self._slots.copy(last, slot, int(self._slots.lengths[last]))
                self._running[slot] = self._running[last]
                self._columns[slot] = self._columns[last]
            self._slots.lengths[last] = 0
            self._running.pop()
        if highest_first:
            count = len(self._running)
            self._slots.cache.fit(count, int(self._slots.lengths[:count].max(initial=0)))


class EngineBusyError(OsmosisError):
    """The queue is full; try again after ``retry_after_s`` seconds."""

    default_code = "RATE_LIMITED"

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(
            f"the model server is busy: {waiting} sequences are waiting already.",
            hint=f"try again in {retry_after_s} s, or with fewer requests at once",
        )
        self.retry_after_s = retry_after_s


class EngineStoppedError(OsmosisError):
    """The engine was closed, or it failed and its log has the reason."""

    default_code = "INTERNAL"


class Listener(Protocol):
    """Receives a submission's tokens on the engine's thread; is quick and does not raise."""

    def emitted(self, emission: Emission) -> None: ...

    def failed(self, error: EngineStoppedError) -> None: ...


@dataclass(eq=False)
class Submission:
    """The choices of one request, in the queue or in the batch."""

    engine: InferenceEngine
    waiting: deque[Generation]
    listener: Listener
    cancelled: bool = False

    def cancel(self) -> None:
        self.engine.cancel(self)


class InferenceEngine:
    """Runs a model for any number of threads; a context manager that starts and ends its own thread."""

    def __init__(
        self, model: LanguageModel, *, max_batch: int = 32, max_waiting: int = 1024, kept: int = 32
    ) -> None:
        self.model = model
        # The reason why the engine has stopped.
        self.failure: EngineStoppedError | None = None
        self._batch = ContinuousBatch(model, max_batch, kept=kept)
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._queue: deque[Submission] = deque()
        self._waiting = 0
        self._publications: deque[tuple[Mapping[str, Any], int, Future[None]]] = deque()
        self._owners: dict[Generation, Submission] = {}
        self._finish_times: deque[float] = deque(maxlen=RATE_WINDOW)
        self._finished = self._prompt_tokens = self._completion_tokens = 0
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

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Submission:
        with self._changed:
            if self.failure:
                raise self.failure
            if self._waiting and self._waiting + len(generations) > self._max_waiting:
                raise EngineBusyError(self._waiting, self._retry_after_s())
            submission = Submission(self, deque(generations), listener)
            self._queue.append(submission)
            self._waiting += len(generations)
            self._changed.notify()
        return submission

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace weights between two steps and wait until it is done; generation continues with them."""
        done: Future[None] = Future()
        with self._changed:
            if self.failure:
                raise self.failure
            self._publications.append((weights, version, done))
            self._changed.notify()
        done.result()

    def cancel(self, submission: Submission) -> None:
        with self._changed:
            submission.cancelled = True
            if submission in self._queue:
                self._queue.remove(submission)
                self._waiting -= len(submission.waiting)
                submission.waiting.clear()
            self._changed.notify()

    def stats(self) -> dict[str, int]:
        """Count sequences and tokens: the first two now, the others since the engine started."""
        with self._changed:
            return {
                "running": len(self._owners),
                "waiting": self._waiting,
                "finished": self._finished,
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self._completion_tokens,
            }

    def _run(self) -> None:
        try:
            while (newcomers := self._next_newcomers()) is not None:
                self._publish_pending()
                self._deliver(self._batch.admit(newcomers) if newcomers else [])
                self._deliver(self._batch.step())
        except Exception as error:
            # The edge of the thread: without this, callers would wait for ever.
            failure = self._explained(error)
            logger.error("the inference engine failed: %s", failure, exc_info=refused_memory(error) is None)
            self._stop(failure)

    def _next_newcomers(self) -> list[Generation] | None:
        """Wait for work; return the sequences that join the batch, or None when the engine stops."""
        with self._changed:
            while not (self.failure or self._waiting or self._owners or self._publications):
                self._changed.wait()
            if self.failure:
                return None
            if any(owner.cancelled for owner in self._owners.values()):
                self._batch.discard(lambda generation: self._owners[generation].cancelled)
                self._owners = {g: owner for g, owner in self._owners.items() if not owner.cancelled}
            return self._take_turns()

    def _publish_pending(self) -> None:
        while True:
            with self._changed:
                if not self._publications:
                    return
                weights, version, done = self._publications.popleft()
            try:
                self._batch.publish(weights, version)
                done.set_result(None)
            except OsmosisError as error:
                done.set_exception(error)
            except Exception as error:
                done.set_exception(self._explained(error))
                raise

    def _explained(self, error: Exception) -> EngineStoppedError:
        refused = refused_memory(error)
        if refused is None:
            return EngineStoppedError(_FAILED)
        return EngineStoppedError(
            f"The model server ran out of memory: {refused} could not be allocated. The KV cache of "
            f"{len(self._batch)} running sequences and of ended ones uses {self._batch.cache_bytes / 2**30:.2f} GiB.",
            hint=LESS_MEMORY,
        )

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
        listeners = [self._owners[emission.generation].listener for emission in emissions]
        finished = [emission.generation for emission in emissions if emission.finish_reason]
        with self._changed:
            self._completion_tokens += len(emissions)
            self._finished += len(finished)
            self._finish_times.extend([time.monotonic()] * len(finished))
            for generation in finished:
                del self._owners[generation]
        for listener, emission in zip(listeners, emissions, strict=True):
            listener.emitted(emission)

    def _stop(self, error: EngineStoppedError) -> None:
        with self._changed:
            if self.failure:
                return
            self.failure = error
            abandoned = {*self._queue, *self._owners.values()}
            self._queue.clear()
            self._waiting = 0
            unpublished, self._publications = self._publications, deque()
            self._changed.notify()
        for submission in abandoned:
            submission.listener.failed(error)
        for _, _, done in unpublished:
            done.set_exception(error)

    def _retry_after_s(self) -> int:
        """Estimate when the queue is empty, from the recent rate of finished sequences."""
        times = self._finish_times
        per_sequence = (time.monotonic() - times[0]) / len(times) if times else 0.0
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(self._waiting * per_sequence)))

"""What a rollout's model calls were, so that a call is sampled once and counted once.

A client that lost its connection sends the same request again. It is the same call, and gets the
answer of the first, when its client says it is a retry (``x-stainless-retry-count``), or when the
earlier answer was never fully delivered. The same request without these signs is a new call:
agents do sample one prompt several times. Answers are kept only as long as a retry can come:
the latest ones of an open rollout, within a budget of bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from osmosis_ai.driving.conversation import MOST_KEPT_BYTES, LastCall
from osmosis_ai.llm.completion import TokenUsage
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.finish_reasons import FinishReason

KEPT_ANSWER_BYTES = 256 * 1024


@dataclass
class RolloutUsage:
    """What the model calls of one rollout came to."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    uncounted: int = 0
    cost_usd: float | None = 0.0
    model_latency_s: list[float] = field(default_factory=list)
    requests: int = 0
    cut_off_since: float | None = None
    last_error: ModelCallError | None = None
    finish_reasons: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] | None = None


class Answer:
    """The bytes a call answered, as they come; any number of readers follow from the beginning."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.finished = False
        self.error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def append(self, piece: bytes) -> None:
        """Add bytes for all readers."""
        self.pieces.append(piece)
        self._wake()

    def finish(self, error: Exception | None = None) -> None:
        """Say that nothing more comes, and why when that is a failure."""
        if not self.finished:
            self.finished, self.error = True, error
            self._wake()

    def size(self) -> int:
        """How many bytes are kept."""
        return sum(map(len, self.pieces))

    async def wait_beyond(self, position: int, *, timeout_s: float | None = None) -> bool:
        """Wait for more than ``position`` pieces or the end; False when the time is up before."""
        while len(self.pieces) <= position and not self.finished:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            if timeout_s is None:
                await change
            elif not (await asyncio.wait((change,), timeout=timeout_s))[0]:
                self._waiting.remove(change)
                return False
        return True

    async def wait_finished(self) -> None:
        """Wait for the end."""
        while not self.finished:
            await self.wait_beyond(len(self.pieces))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)


class Delivery:
    """One attempt to hand an answer to a client."""

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._transport = transport
        self._complete = False

    @property
    def connected(self) -> bool:
        """Whether the client is still there."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def lost(self) -> bool:
        """Whether the client went away before it had everything."""
        return not self._complete and not self.connected

    def completed(self) -> None:
        """Note that everything was written to a client that is still there."""
        self._complete = self.connected


class Call:
    """One model call of a rollout."""

    def __init__(self, index: int, digest: bytes) -> None:
        self.index = index
        self.digest = digest
        self.request: bytes | None = None
        self.recorded = False
        self.began = time.monotonic()
        self.answer = Answer()
        self.draft: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self._deliveries: list[Delivery] = []

    def delivery(self, transport: asyncio.BaseTransport | None) -> Delivery:
        """Begin to hand the answer to a client."""
        delivery = Delivery(transport)
        self._deliveries.append(delivery)
        return delivery

    @property
    def failed(self) -> bool:
        """Whether it ended in an error: nothing was sampled, asking again is a new call."""
        return self.answer.error is not None

    @property
    def cut_off(self) -> bool:
        """Whether there were clients, and none of them stayed for its answer."""
        return bool(self._deliveries) and self.abandoned

    @property
    def abandoned(self) -> bool:
        """Whether every client that asked went away before it had everything."""
        return all(delivery.lost for delivery in self._deliveries)


@dataclass
class CallMetrics:
    """The facts of one answered call; token ids and logprobs where the endpoint gave them."""

    usage: TokenUsage | None = None
    cost_usd: float | None = None
    latency_s: float = 0.0
    attempts: int = 1
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    ended_at: datetime | None = None
    finish: FinishReason = field(default_factory=FinishReason)

    def read(self, response: Mapping[str, Any]) -> None:
        """Take the tokens a completion or a chunk of one names; chunks add up."""
        self.finish.read(response)
        ids = response.get("prompt_token_ids")
        for choice in response.get("choices") or ():
            # The conversation goes on with the first choice; of the others only the tokens count.
            if isinstance(choice, dict) and not choice.get("index"):
                self._read_choice(choice)
                ids = ids or choice.get("prompt_token_ids")
        if isinstance(ids, list):
            self.prompt_token_ids = ids

    def _read_choice(self, choice: Mapping[str, Any]) -> None:
        extra = choice.get("provider_specific_fields")
        ids = choice.get("token_ids") or (extra.get("token_ids") if isinstance(extra, dict) else None)
        if isinstance(ids, list):
            self.completion_token_ids = [*(self.completion_token_ids or ()), *ids]
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        if isinstance(entries, list):
            values = [entry["logprob"] for entry in entries if isinstance(entry, dict) and "logprob" in entry]
            self.logprobs = [*(self.logprobs or ()), *values]

    def report(self, model: str) -> dict[str, Any]:
        """Return the entry of the trajectory report (ATIF metrics), unknown facts left out."""
        usage = self.usage
        entry = {
            "model_name": model,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "cost_usd": self.cost_usd,
            "prompt_token_ids": self.prompt_token_ids,
            "completion_token_ids": self.completion_token_ids,
            "logprobs": self.logprobs,
            "extra": self._course(),
        }
        return {name: value for name, value in entry.items() if value is not None}

    def _course(self) -> dict[str, Any]:
        took: dict[str, Any] = {"latency_ms": round(self.latency_s * 1000, 3), "attempts": self.attempts}
        if self.finish.value is not None:
            took["finish_reason"] = self.finish.value
        if self.ended_at is None:
            return took
        began = self.ended_at - timedelta(seconds=self.latency_s)
        return {**took, "started_at": began.isoformat(timespec="milliseconds")}


class RolloutCalls:
    """The calls of one open rollout."""

    def __init__(self) -> None:
        self._next_index = 0
        self._by_digest: dict[bytes, list[Call]] = {}
        self._kept: OrderedDict[Call, int] = OrderedDict()
        self._kept_bytes = 0
        self._metrics: dict[int, CallMetrics] = {}
        self._freed_indices: dict[bytes, int] = {}
        self._last_failure: tuple[int, ModelCallError] | None = None
        self._last_answered = -1
        self._last_recorded: Call | None = None
        self._last_begun: Call | None = None

    def earlier(self, content: bytes, *, is_retry: bool) -> tuple[bytes, Call | None]:
        """Find the call that this request repeats, if it repeats one."""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        calls = [call for call in self._by_digest.get(digest, ()) if not call.failed]
        for call in calls:
            if call.abandoned:
                return digest, call
        return digest, calls[-1] if is_retry and calls else None

    def begin(
        self, digest: bytes, content: bytes = b"", *, recorded: bool = False, most: int = MOST_KEPT_BYTES
    ) -> Call:
        """Count a new call."""
        index = self._freed_indices.pop(digest, None)
        if index is None:
            index, self._next_index = self._next_index, self._next_index + 1
        call = Call(index, digest)
        kept = bool(content) and (recorded or len(content) <= most)
        call.request = content if kept else None
        call.recorded = recorded
        last, self._last_begun = self._last_begun, call
        if last is not None and not last.recorded and last.answer.finished:
            last.request = None
        self._by_digest.setdefault(digest, []).append(call)
        return call

    def answered(self, call: Call, metrics: CallMetrics) -> None:
        """Record a call that was answered, and keep its answer for a client that asks again."""
        metrics.ended_at = datetime.now(timezone.utc)
        self._metrics[call.index] = metrics
        self._last_answered = max(self._last_answered, call.index)
        if call.recorded:
            self._keep_conversation(call)
        elif call is not self._last_begun:
            call.request = None
        size = call.answer.size()
        self._kept[call] = size
        self._kept_bytes += size
        while self._kept_bytes > KEPT_ANSWER_BYTES and len(self._kept) > 1:
            oldest, oldest_size = self._kept.popitem(last=False)
            self._kept_bytes -= oldest_size
            self._forget(oldest)

    def conversation(self) -> list[dict[str, Any]] | None:
        """Return what was said in the last recorded call that was answered; None before there is one."""
        last = self._last_recorded
        return None if last is None else LastCall(last.request or b"{}", last.answer.pieces).messages()

    def last_call(self) -> LastCall | None:
        """Return the latest call, answered or not; None when there is none, or it was too long to be kept."""
        last = self._last_begun
        if last is None or last.request is None:
            return None
        return LastCall(last.request, (*last.answer.pieces, *last.draft))

    def failed(self, call: Call, error: Exception) -> None:
        """Record a call that failed for good."""
        if isinstance(error, ModelCallError):
            self._last_failure = call.index, error
        self._freed_indices[call.digest] = call.index
        self._forget(call)

    def cancel(self) -> None:
        """Give up what is still under way."""
        for calls in self._by_digest.values():
            for call in calls:
                if call.task is not None:
                    call.task.cancel()

    def usage(self, model: str) -> RolloutUsage:
        """Add everything up."""
        total = RolloutUsage(calls=len(self._metrics), requests=self._next_index)
        cut_off = (call.began for calls in self._by_digest.values() for call in calls if call.cut_off)
        total.cut_off_since = min(cut_off, default=None)
        if self._last_failure is not None and self._last_failure[0] > self._last_answered:
            total.last_error = self._last_failure[1]
        ordered = [self._metrics[index] for index in sorted(self._metrics)]
        costs = [metrics.cost_usd for metrics in ordered]
        known = [cost for cost in costs if cost is not None]
        total.cost_usd = math.fsum(known) if len(known) == len(costs) else None
        for metrics in ordered:
            total.model_latency_s.append(metrics.latency_s)
            if (finish := metrics.finish.value) is not None:
                total.finish_reasons[finish] = total.finish_reasons.get(finish, 0) + 1
            if metrics.usage is None:
                total.uncounted += 1
            else:
                total.prompt_tokens += metrics.usage.prompt_tokens
                total.completion_tokens += metrics.usage.completion_tokens
                total.total_tokens += metrics.usage.total_tokens
        if ordered:
            sample = {"model_name": model, "llm_call_metrics": [metrics.report(model) for metrics in ordered]}
            total.report = {"model_name": model, "samples": {"main": sample}}
        return total

    def _keep_conversation(self, call: Call) -> None:
        last = self._last_recorded
        older = call if last is not None and last.index > call.index else last
        if older is not None:
            older.request = None  # one conversation at a time is kept
        if older is not call:
            self._last_recorded = call

    def _forget(self, call: Call) -> None:
        calls = self._by_digest[call.digest]
        calls.remove(call)
        if not calls:
            del self._by_digest[call.digest]

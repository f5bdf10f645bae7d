"""Rollouts in the server's own process: each in a task, under deadlines, in one of a few slots.

A rollout holds its slot until its grading and both callbacks are over. Whatever user code does
(raise, hang, block, exit, return nonsense), the outcome is an ExecutionResult. What that code is,
and how it is called, is up to the subclass.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar

from pydantic import ValidationError

from ...artifacts import artifact_root
from ...context import RolloutContext, rollout_contextvar
from ...judge_calls import counting_judge_calls
from ...types.execution import ExecutionRequest, ExecutionResult
from ...types.protocol import RolloutErrorCategory, RolloutStatus
from ...types.sample import RolloutSample
from ..base import ExecutionBackend, ResultCallback
from .deadline import DeadlineExceededError, run_within
from .ledger import RolloutLedger
from .slots import SlotLimiter

logger = logging.getLogger(__name__)

QUEUE_LIMIT = 10_000
"""How many rollouts may wait for a slot; beyond it the server answers 429."""

_MESSAGE_LIMIT = 10_000
_MOST_CAUSES = 5


class InProcessBackend(ExecutionBackend):
    """Runs user code in this process.

    Args:
        max_concurrent: the number of slots; None for no limit.
    """

    agent_word: ClassVar[str] = "workflow"
    """What the user calls the code that :meth:`produce` runs."""

    def __init__(self, max_concurrent: int | None) -> None:
        self.limiter = SlotLimiter(max_concurrent)
        self.artifact_root = artifact_root()
        self._ledger = RolloutLedger()

    @abstractmethod
    async def produce(self, request: ExecutionRequest) -> RolloutSample | None:
        """Run the agent and return its sample; what it raises is how it failed."""

    @abstractmethod
    async def judge(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        """Grade a sample in place; what it raises is how grading failed."""

    def ungradable(self, request: ExecutionRequest, sample: RolloutSample | None) -> str | None:
        """Return why a finished rollout cannot be graded at all; None when it can."""
        return None

    def grading_budget_s(self, request: ExecutionRequest) -> float | None:
        """Return how many seconds :meth:`judge` may take; None where it keeps to the budget by itself."""
        return request.grader_timeout_sec

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionResult:
        """Run, report, grade, report.

        Raises:
            ValueError: when a rollout of this id is already running.
        """
        entry = self._ledger.open(request.id, asyncio.current_task())
        started = time.monotonic()
        holds_slot = False
        try:
            holds_slot = await self.limiter.acquire(request.agent_timeout_sec)
            entry.status = RolloutStatus.RUNNING
            result = await self.run_workflow(request, queued_sec=time.monotonic() - started)
            await on_workflow_complete(result)
            if on_grader_complete is not None:
                entry.status = RolloutStatus.GRADING
                result = await self._grade(request, result)
                await on_grader_complete(result)
            entry.status, entry.err_message = result.status, result.err_message
            if result.sample is not None and not result.sample.remove_sample:
                entry.reward = result.sample.reward
            return result
        except asyncio.CancelledError:
            entry.status = RolloutStatus.CANCELLED
            raise
        except BaseException as error:
            entry.status, entry.err_message = RolloutStatus.FAILURE, describe(error)
            raise
        finally:
            if holds_slot:
                self.limiter.release()
            self._ledger.close(request.id)

    async def run_workflow(self, request: ExecutionRequest, *, queued_sec: float = 0.0) -> ExecutionResult:
        """Run the workflow alone and return how it ended; never raises but for cancellation.

        Args:
            request: the rollout.
            queued_sec: seconds of the agent's budget already spent waiting.
        """
        budget_s = request.agent_timeout_sec
        remaining_s = None if budget_s is None else max(budget_s - queued_sec, 0.0)
        try:
            sample = await run_within(self.produce(request), remaining_s)
        except DeadlineExceededError:
            message = f"the {self.agent_word} did not finish within its {budget_s:g}s deadline"
            if queued_sec >= 0.1:
                message += f" ({queued_sec:.1f}s of it spent in the queue)"
            return _failure(message, RolloutErrorCategory.TIMEOUT)
        except Exception as error:  # the user's code: whatever it raises is how the workflow ended
            logger.warning("the %s of rollout %s failed", self.agent_word, request.id, exc_info=error)
            return _failure(describe(error), _categorize(error), error=error)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)

    async def run_grader(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        """Grade a workflow's result alone and return how that ended; failures keep the sample."""
        with counting_judge_calls() as asked:
            graded = await self._run_grader(request, result)
        if result.sample is not None:
            for name, said in asked.to_fields().items():
                result.sample.extra_fields.setdefault(name, said)
        return graded

    async def _run_grader(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        budget_s = self.grading_budget_s(request)
        try:
            await run_within(self.judge(request, result.sample), budget_s)
        except DeadlineExceededError:
            message = f"the grader did not finish within its {budget_s:g}s deadline"
            return _failure(message, RolloutErrorCategory.TIMEOUT, result.sample)
        except Exception as error:  # the user's code: whatever it raises is how the grading ended
            logger.warning("the grader of rollout %s failed", request.id, exc_info=error)
            return _failure(describe(error), _categorize(error), result.sample, error=error)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=result.sample)

    def has_capacity(self) -> bool:
        """Whether the queue has room for another rollout."""
        return self.limiter.queued < QUEUE_LIMIT

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """Return where a rollout stands; None when it is unknown or ended too long ago."""
        entry = self._ledger.find(rollout_id)
        if entry is None:
            return None
        return {"status": entry.status, "reward": entry.reward, "err_message": entry.err_message}

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, str]:
        """Cancel queued and running rollouts; they report nothing more."""
        return self._ledger.cancel(ids, prefix, all)

    def health(self) -> dict[str, Any]:
        """Return the slots: how many there are, how many are taken, how many rollouts wait."""
        return {
            "status": "ok",
            "concurrency": {
                "max_concurrent": self.limiter.max_concurrent,
                "queued": self.limiter.queued,
                "running": self.limiter.running,
            },
        }

    async def _grade(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        if result.status is not RolloutStatus.SUCCESS:
            # The terminal report says why: whoever reads only the grader's callback still knows.
            return _failure(result.err_message, result.err_category)
        if reason := self.ungradable(request, result.sample):
            return _failure(reason)
        return await self.run_grader(request, result)


def active_rollout(rollout_id: str) -> RolloutContext:
    """Return the context to run in: the one the server opened, else one from the environment."""
    active = rollout_contextvar.get()
    if active is None:
        return RolloutContext(rollout_id=rollout_id)
    if active.sample_source is None and active.rollout_id in ("", rollout_id):
        return active
    return RolloutContext(active.chat_completions_url, active.api_key, rollout_id)


def awaitable(value: Any, method: str) -> Awaitable[Any]:
    """Return what the user's ``method`` returned, once it is sure that it can be awaited.

    Raises:
        TypeError: it cannot.
    """
    if not inspect.isawaitable(value):
        raise TypeError(f"`{method}` must be `async def`; it returned {type(value).__name__}")
    return value


def _failure(
    message: str | None,
    category: RolloutErrorCategory | None = None,
    sample: RolloutSample | None = None,
    *,
    error: BaseException | None = None,
) -> ExecutionResult:
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample,
        err_message=message,
        err_category=category,
        extra_fields={"traceback": traceback_of(error)} if error is not None else None,
    )


def _categorize(error: BaseException) -> RolloutErrorCategory:
    # asyncio's own TimeoutError is another class before Python 3.11.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return RolloutErrorCategory.TIMEOUT
    if isinstance(error, (ValueError, TypeError, AssertionError)):
        return RolloutErrorCategory.VALIDATION_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def text_of(error: BaseException) -> str:
    """Return the text of an error of user code, which may raise another one when it is asked for it."""
    try:
        return str(error)
    except Exception as failure:
        return f"{type(error).__name__}, whose text cannot be had ({type(failure).__name__})"


def traceback_of(error: BaseException) -> str:
    """Return where an error of user code came from and what had led to it, of bounded length: its end tells the most.

    What the errors say is left out: it may hold a secret, and the error's own words are reported anyway.
    """
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < _MOST_CAUSES:
        frames = "".join(traceback.format_tb(cause.__traceback__))
        parts.insert(0, f"Traceback (most recent call last):\n{frames}{type(cause).__name__}\n")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    text = "\nwhich led to:\n\n".join(parts)
    return text if len(text) <= _MESSAGE_LIMIT else f"…\n{text[-_MESSAGE_LIMIT:]}"


def describe(error: BaseException) -> str:
    """Return what an error of user code says, in one line and of bounded length."""
    if isinstance(error, ValidationError):
        # Its own text is several lines, with an address of its makers' documentation.
        places = ((".".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors())
        return "; ".join(f"{place}: {what}" if place else what for place, what in places)[:_MESSAGE_LIMIT]
    text = text_of(error)
    # A KeyError's text is only the key; some errors have none at all.
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text[:_MESSAGE_LIMIT]

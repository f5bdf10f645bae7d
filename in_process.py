"""Run rollouts in the server process, each in a task with deadlines and a concurrency slot.

A rollout keeps its slot until grading and both callbacks are done. User code that raises, hangs, blocks,
exits or returns an invalid value still produces an ExecutionResult. Subclasses define which code runs.
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
"""Maximum number of rollouts waiting for a slot. Beyond it, the server answers 429."""

_MESSAGE_LIMIT = 10_000
_MOST_CAUSES = 5


class InProcessBackend(ExecutionBackend):
    """Runs user code in this process.

    Args:
        max_concurrent: The number of slots; None means unlimited.
    """

    agent_word: ClassVar[str] = "workflow"
    """Name of the code run by :meth:`produce`, for messages."""

    def __init__(self, max_concurrent: int | None) -> None:
        self.limiter = SlotLimiter(max_concurrent)
        self.artifact_root = artifact_root()
        self._ledger = RolloutLedger()

    @abstractmethod
    async def produce(self, request: ExecutionRequest) -> RolloutSample | None:
        """Run the agent and return its sample. An exception fails the rollout."""

    @abstractmethod
    async def judge(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        """Grade a sample in place. An exception fails the grading."""

    def ungradable(self, request: ExecutionRequest, sample: RolloutSample | None) -> str | None:
        """Return why a finished rollout cannot be graded, or None if it can."""
        return None

    def grading_budget_s(self, request: ExecutionRequest) -> float | None:
        """Return the time limit of :meth:`judge` in seconds; None if it enforces the limit itself."""
        return request.grader_timeout_sec

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionResult:
        """Run the workflow, report its result, then grade it and report the grade.

        Raises:
            ValueError: A rollout with this id is already running.
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
        """Run only the workflow and return its result. Raises nothing except cancellation.

        Args:
            request: The rollout.
            queued_sec: Seconds of the agent's budget already spent waiting.
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
        except Exception as error:  # any error of the user's code is the workflow's result
            logger.warning("the %s of rollout %s failed", self.agent_word, request.id, exc_info=error)
            return _failure(describe(error), _categorize(error), error=error)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)

    async def run_grader(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        """Grade a workflow's result. A failed grading keeps the sample."""
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
        except Exception as error:  # any error of the user's code is the grading's result
            logger.warning("the grader of rollout %s failed", request.id, exc_info=error)
            return _failure(describe(error), _categorize(error), result.sample, error=error)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=result.sample)

    def has_capacity(self) -> bool:
        """Whether the queue has room for another rollout."""
        return self.limiter.queued < QUEUE_LIMIT

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """Return a rollout's status, or None if it is unknown or finished too long ago."""
        entry = self._ledger.find(rollout_id)
        if entry is None:
            return None
        return {"status": entry.status, "reward": entry.reward, "err_message": entry.err_message}

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, str]:
        """Cancel queued and running rollouts. They send no further callbacks."""
        return self._ledger.cancel(ids, prefix, all)

    def health(self) -> dict[str, Any]:
        """Return the number of slots, used slots and queued rollouts."""
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
            # Repeat the reason for receivers that read only the grader's callback.
            return _failure(result.err_message, result.err_category)
        if reason := self.ungradable(request, result.sample):
            return _failure(reason)
        return await self.run_grader(request, result)


def active_rollout(rollout_id: str) -> RolloutContext:
    """Return the context opened by the server, or one built from the environment."""
    active = rollout_contextvar.get()
    if active is None:
        return RolloutContext(rollout_id=rollout_id)
    if active.sample_source is None and active.rollout_id in ("", rollout_id):
        return active
    return RolloutContext(active.chat_completions_url, active.api_key, rollout_id)


def awaitable(value: Any, method: str) -> Awaitable[Any]:
    """Return ``value`` if it is awaitable.

    Raises:
        TypeError: It is not awaitable.
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
    # Before Python 3.11, asyncio's TimeoutError is a separate class.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return RolloutErrorCategory.TIMEOUT
    if isinstance(error, (ValueError, TypeError, AssertionError)):
        return RolloutErrorCategory.VALIDATION_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def text_of(error: BaseException) -> str:
    """Return the text of a user error, whose ``__str__`` may raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"{type(error).__name__}, whose text cannot be had ({type(failure).__name__})"


def traceback_of(error: BaseException) -> str:
    """Return a user error's traceback with its causes, truncated at the start.

    Error messages are omitted: they may hold secrets, and the error's own message is reported separately.
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
    """Return a one-line description of a user error, of bounded length."""
    if isinstance(error, ValidationError):
        # pydantic's own text has several lines and a link to its documentation.
        places = ((".".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors())
        return "; ".join(f"{place}: {what}" if place else what for place, what in places)[:_MESSAGE_LIMIT]
    text = text_of(error)
    # A KeyError's text is only the key; some errors have no text.
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text[:_MESSAGE_LIMIT]

"""Execution backends of the rollout server.

:class:`InProcessBackend` runs rollouts in the server process, each in a task with a concurrency slot and time limits.

A rollout keeps its slot until grading and both callbacks are done. User code that raises, hangs, blocks,
exits or returns an invalid value still produces an ExecutionResult. :class:`LocalBackend` runs workflows and graders.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.artifacts import ArtifactsOnDemand, artifact_root
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, RolloutContext, rollout_contextvar
from osmosis_ai.rollout.extra_fields import counting_judge_calls
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    RolloutStatusResponse,
    coerce_output,
)
from osmosis_ai.rollout.utils.imports import resolve_class, resolve_object

logger = logging.getLogger(__name__)

T = TypeVar("T")

QUEUE_LIMIT = 10_000  # waiting rollouts; beyond it, the server answers 429
FINISHED_LIMIT = 10_000  # finished rollouts whose status is kept
DEFAULT_MAX_CONCURRENT = 4
CANCEL_GRACE_S = 5.0  # for user code to clean up after its cancellation

# The event loop holds only weak references: without these, abandoned tasks could be collected while running.
_left_behind: set[asyncio.Task[Any]] = set()

_MESSAGE_LIMIT = 10_000
_STATUS_MESSAGE_LIMIT = 500
_MOST_CAUSES = 5

ResultCallback = Callable[[ExecutionResult], Awaitable[None]]
"""Receives the result of a workflow or grader."""


class ExecutionBackend(ABC):
    """Base class for execution backends. Only :meth:`execute` is required."""

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionResult | None:
        """Run one rollout to completion. Without ``on_grader_complete``, grading is skipped.

        Each callback is called once. The server reads the returned final result only if :attr:`capture_final_result`
        is true.
        """

    @property
    def capture_final_result(self) -> bool:
        """Whether the archive stores the result of :meth:`execute` instead of the callbacks' results."""
        return False

    def has_capacity(self) -> bool:
        """Whether the backend accepts another rollout. If not, the server answers 429."""
        return True

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """Return ``status``, ``reward`` and ``err_message`` of a rollout, or None if it is unknown."""
        return None

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, str]:
        """Cancel the selected rollouts and return the outcome of each."""
        return {}

    def health(self) -> dict[str, Any]:
        """Return the response body of ``GET /health``."""
        return {"status": "ok"}


class DeadlineExceededError(Exception):
    """The code did not return before its deadline."""


class SlotLimiter:
    """A fair semaphore with timeouts and counters; ``max_concurrent=None`` means unlimited.

    On Python 3.10 and 3.11, ``asyncio.Semaphore`` under ``asyncio.wait_for`` can lose a slot when timeout and release coincide.
    """

    def __init__(self, max_concurrent: int | None) -> None:
        self.max_concurrent = max_concurrent
        self.running = 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    async def acquire(self, timeout_s: float | None = None) -> bool:
        """Wait up to ``timeout_s`` seconds for a slot and return whether one was acquired."""
        if self.max_concurrent is None or self.running < self.max_concurrent:
            self.running += 1
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            await asyncio.wait((turn,), timeout=timeout_s)
        except asyncio.CancelledError:
            if turn.done():
                self.release()
            raise
        finally:
            self._waiting.pop(turn, None)
        return turn.done()

    def release(self) -> None:
        """Release a slot, passing it to the first waiter."""
        if self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            turn.set_result(None)
        else:
            self.running -= 1


class InProcessBackend(ExecutionBackend):
    """Runs user code in this process, in ``max_concurrent`` slots (None: unlimited)."""

    agent_word: ClassVar[str] = "workflow"  # what `produce` runs, for messages

    def __init__(self, max_concurrent: int | None) -> None:
        self.limiter = SlotLimiter(max_concurrent)
        self.artifact_root = artifact_root()
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._active: dict[str, RolloutStatusResponse] = {}
        self._finished: OrderedDict[str, RolloutStatusResponse] = OrderedDict()

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
        state = RolloutStatusResponse(rollout_id=request.id, status=RolloutStatus.QUEUED)
        self._active[request.id] = state
        if (task := asyncio.current_task()) is not None:
            self._tasks[request.id] = task
        started = time.monotonic()
        holds_slot = False
        try:
            holds_slot = await self.limiter.acquire(request.agent_timeout_sec)
            state.status = RolloutStatus.RUNNING
            result = await self.run_workflow(request, queued_sec=time.monotonic() - started)
            await on_workflow_complete(result)
            if on_grader_complete is not None:
                state.status = RolloutStatus.GRADING
                if result.status is not RolloutStatus.SUCCESS:
                    # Repeat the reason for receivers that read only the grader's callback.
                    result = _failure(result.err_message, result.err_category)
                elif reason := self.ungradable(request, result.sample):
                    result = _failure(reason)
                else:
                    result = await self.run_grader(request, result)
                await on_grader_complete(result)
            state.status, state.err_message = result.status, result.err_message
            if result.sample is not None and not result.sample.remove_sample:
                state.reward = result.sample.reward
            return result
        except asyncio.CancelledError:
            state.status = RolloutStatus.CANCELLED
            raise
        except BaseException as error:
            state.status, state.err_message = RolloutStatus.FAILURE, describe(error)
            raise
        finally:
            if holds_slot:
                self.limiter.release()
            state.err_message = state.err_message and state.err_message[:_STATUS_MESSAGE_LIMIT]
            for table in (self._tasks, self._active, self._finished):
                table.pop(request.id, None)
            self._finished[request.id] = state
            if len(self._finished) > FINISHED_LIMIT:
                self._finished.popitem(last=False)

    async def run_workflow(self, request: ExecutionRequest, *, queued_sec: float = 0.0) -> ExecutionResult:
        """Run only the workflow and return its result. Raises nothing except cancellation.

        ``queued_sec`` seconds of the agent's budget have already been spent waiting.
        """
        budget_s = request.agent_timeout_sec
        remaining_s = None if budget_s is None else max(budget_s - queued_sec, 0.0)
        try:
            sample = await run_within(self.produce(request), remaining_s)
        except Exception as error:  # any error of the user's code is the workflow's result
            result = _failed(error, self.agent_word, request.id, budget_s)
            if isinstance(error, DeadlineExceededError) and queued_sec >= 0.1:
                result.err_message = f"{result.err_message} ({queued_sec:.1f}s of it spent in the queue)"
            return result
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)

    async def run_grader(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        """Grade a workflow's result. A failed grading keeps the sample."""
        budget_s = self.grading_budget_s(request)
        graded = ExecutionResult(status=RolloutStatus.SUCCESS, sample=result.sample)
        with counting_judge_calls() as calls:
            try:
                await run_within(self.judge(request, result.sample), budget_s)
            except Exception as error:  # any error of the user's code is the grading's result
                graded = _failed(error, "grader", request.id, budget_s)
                graded.sample = result.sample
        if result.sample is not None:
            for name, value in calls.to_fields().items():
                result.sample.extra_fields.setdefault(name, value)
        return graded

    def has_capacity(self) -> bool:
        return self.limiter.queued < QUEUE_LIMIT

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        state = self._active.get(rollout_id) or self._finished.get(rollout_id)
        return state.model_dump(exclude={"rollout_id"}) if state is not None else None

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, str]:
        """Cancel queued and running rollouts. They send no further callbacks."""
        if ids is None:
            ids = [name for name in self._active if all or (prefix is not None and name.startswith(prefix))]
        outcomes = dict.fromkeys(ids, "not_found")
        for name in outcomes.keys() & self._tasks.keys():
            self._tasks[name].cancel()
            queued = self._active[name].status is RolloutStatus.QUEUED
            outcomes[name] = "cancelled_queued" if queued else "cancelled_running"
        return outcomes

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


class _WorkflowContext(ArtifactsOnDemand, AgentWorkflowContext[Any]):
    pass


class _GraderContext(ArtifactsOnDemand, GraderContext):
    pass


class LocalBackend(InProcessBackend):
    """Runs a project's workflow and grader in this process. Arguments may be named as ``"module:name"``.

    Args:
        workflow: An :class:`AgentWorkflow` class, or an instance that is shared by all rollouts.
        workflow_config: Its ``concurrency.max_concurrent`` is the number of slots (None: unlimited). The default
            without a configuration is four.
        grader: A :class:`Grader` class. Without a grader, rollouts are not graded.
        grader_config: The grader's configuration.

    Raises TypeError, ValueError or ImportError if an argument is invalid or cannot be loaded.
    """

    def __init__(
        self, *, workflow: Any, workflow_config: Any = None, grader: Any = None, grader_config: Any = None
    ) -> None:
        workflow = resolve_object(workflow, "workflow")
        self._workflow = workflow if isinstance(workflow, AgentWorkflow) else None
        self.workflow_cls = resolve_class(type(workflow) if self._workflow else workflow, "workflow", "run")
        self.workflow_config = resolve_object(workflow_config, "workflow_config")
        self.grader_cls: Any = None if grader is None else resolve_class(grader, "grader", "grade")
        self.grader_config = resolve_object(grader_config, "grader_config")
        concurrency = getattr(self.workflow_config, "concurrency", None)
        super().__init__(
            DEFAULT_MAX_CONCURRENT
            if self.workflow_config is None
            else getattr(concurrency, "max_concurrent", None)
        )

    async def produce(self, request: ExecutionRequest) -> RolloutSample | None:
        config = copy.deepcopy(self.workflow_config)
        workflow = self._workflow or self.workflow_cls(config)
        context = _WorkflowContext(prompt=request.prompt, config=config, metadata=request.metadata)
        context.artifacts_home = self.artifact_root / request.id
        with active_rollout(request.id) as rollout:
            output = coerce_output(await awaitable(workflow.run(context), "run"))
            if output is None:
                sample = await rollout.get_sample()
                if sample is not None and not isinstance(sample, RolloutSample):
                    raise TypeError(
                        f"the sample source returned {type(sample).__name__}, not a RolloutSample"
                    )
                return sample
        if output.messages is None:
            return None
        return RolloutSample(messages=output.messages, label=request.label, metrics=output.metrics)

    async def judge(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        # A grader's model calls must never be recorded as the policy's.
        rollout_contextvar.set(None)
        grader = self.grader_cls(self.grader_config)
        context = _GraderContext(label=request.label, sample=sample, metadata=request.metadata)
        context.artifacts_home = self.artifact_root / request.id
        await awaitable(grader.grade(context), "grade")
        if sample is None:
            raise ValueError(
                "No sample to grade: the workflow returned no messages and registered no sample source"
            )
        if sample.reward is None and not sample.remove_sample:
            raise ValueError("Sample has no reward after grading: call `ctx.set_reward` in `grade`")

    def ungradable(self, request: ExecutionRequest, sample: RolloutSample | None) -> str | None:
        if self.grader_cls is None:
            return "nothing was graded: the server has no grader"
        if request.label is None and request.metadata is None:
            return "nothing was graded: the row has neither a label nor metadata"
        return None


async def run_within(work: Coroutine[Any, Any, T], budget_s: float | None) -> T:
    """Run ``work`` in its own task for at most ``budget_s`` seconds; None means no limit.

    Raises its errors, or DeadlineExceededError. A late result (swallowed cancellation, blocked event loop) is discarded,
    and a task that ignores its cancellation is abandoned after a grace period.
    """
    if budget_s is not None and budget_s <= 0:
        work.close()
        raise DeadlineExceededError
    started = time.monotonic()
    task = asyncio.ensure_future(_contain(work))
    try:
        await asyncio.wait((task,), timeout=budget_s)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not task.done():
        await _stop(task)
        raise DeadlineExceededError
    if task.cancelled():
        raise RuntimeError("the code cancelled its own task")
    error = task.exception()
    if error is None and budget_s is not None and time.monotonic() - started > budget_s:
        raise DeadlineExceededError
    return task.result()


async def _contain(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except SystemExit as error:
        # asyncio passes SystemExit on to the event loop, which would end every other rollout.
        raise RuntimeError(f"the code tried to exit the process (status {error.code})") from error


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _left_behind.add(task)
    task.add_done_callback(_forget)
    await asyncio.wait((task,), timeout=CANCEL_GRACE_S)
    if not task.done():
        logger.error("the code ignored its cancellation for %gs and was left behind", CANCEL_GRACE_S)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.debug("a cancelled task ended with an error", exc_info=task.exception())


def active_rollout(rollout_id: str) -> RolloutContext:
    """Return the context opened by the server, or one built from the environment."""
    active = rollout_contextvar.get()
    if active is None:
        return RolloutContext(rollout_id=rollout_id)
    if active.sample_source is None and active.rollout_id in ("", rollout_id):
        return active
    return RolloutContext(active.chat_completions_url, active.api_key, rollout_id)


def awaitable(value: Any, method: str) -> Awaitable[Any]:
    """Return ``value``, or raise TypeError if it is not awaitable."""
    if not inspect.isawaitable(value):
        raise TypeError(f"`{method}` must be `async def`; it returned {type(value).__name__}")
    return value


def _failure(message: str | None, category: RolloutErrorCategory | None = None) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.FAILURE, err_message=message, err_category=category)


def _failed(error: Exception, who: str, rollout_id: str, budget_s: float | None) -> ExecutionResult:
    """Return the result of user code that raised ``error`` or did not end in time."""
    if isinstance(error, DeadlineExceededError):
        message = f"the {who} did not finish within its {budget_s:g}s deadline"
        return _failure(message, RolloutErrorCategory.TIMEOUT)
    logger.warning("the %s of rollout %s failed", who, rollout_id, exc_info=error)
    category = RolloutErrorCategory.AGENT_ERROR
    # Before Python 3.11, asyncio's TimeoutError is a separate class.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        category = RolloutErrorCategory.TIMEOUT
    elif isinstance(error, (ValueError, TypeError, AssertionError)):
        category = RolloutErrorCategory.VALIDATION_ERROR
    result = _failure(describe(error), category)
    result.extra_fields = {"traceback": traceback_of(error)}
    return result


def text_of(error: BaseException) -> str:
    """Return the text of a user error, whose ``__str__`` may raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"{type(error).__name__}, whose message is unavailable ({type(failure).__name__})"


def traceback_of(error: BaseException) -> str:
    """Return a user error's traceback with its causes, without messages, which may hold secrets."""
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


# An attribute of this package, too; the module needs the class above.
from osmosis_ai.rollout.backend import local as local  # noqa: E402

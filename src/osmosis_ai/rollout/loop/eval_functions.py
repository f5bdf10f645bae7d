"""Eval functions: what scores a finished conversation, found by name and called so that nothing they do hurts others.

A call ends in a finite number or in a reason why there is none: a function that raises, hangs, blocks its thread,
exits the process or returns nonsense leaves its own score *unscored*, and only that. Unscored is not zero.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import numbers
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError

from ..backend.local.deadline import DeadlineExceededError, run_within
from ..backend.local.in_process import describe
from ..types.sample import snapshot

logger = logging.getLogger(__name__)

EvalFnMode = Literal["simple", "full"]
Messages = list[dict[str, Any]]

AGENT_SCORE = "agent"
"""The name of the score that is the agent's own reward."""

_MODES: dict[str, EvalFnMode] = {"solution_str": "simple", "messages": "full"}
_REASON_CHARS = 500


class EvalFnError(OsmosisError):
    """An eval function cannot be loaded or called, or returned what is no score."""


@dataclass(frozen=True, slots=True)
class EvalScore:
    """What one call came to: a finite ``value``, or the ``reason`` why there is none, and the error behind it."""

    value: float | None = None
    reason: str | None = None
    error: Exception | None = None


class EvalFnWrapper:
    """One eval function, its name and how it is called.

    A function whose first parameter is ``solution_str`` gets the last answer (``solution_str``, ``ground_truth``,
    ``extra_info``); one whose first parameter is ``messages`` gets the conversation (``messages``, ``ground_truth``,
    ``metadata``). All three are always passed, by name.

    Args:
        fn: a function, async or not, or an object that can be called.
        name: how its scores are called; ``module:function`` for one that was loaded.

    Raises:
        EvalFnError: for what cannot be called, or has another first parameter.
    """

    def __init__(self, fn: Callable[..., Any] | str, name: str | Callable[..., Any] = "") -> None:
        self.fn: Any = fn
        self.name: str = name if isinstance(name, str) else str(fn)
        if isinstance(fn, str) and callable(name):
            self.fn = name  # either order tells which is which
        self.name = self.name or str(getattr(fn, "__name__", type(fn).__name__))
        self.mode: EvalFnMode = _mode_of(self.fn, self.name)

    async def __call__(
        self, messages: Messages, ground_truth: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> float:
        """Return the score of a conversation.

        Raises:
            EvalFnError: when the function returned no finite number.
            Exception: what the function raised.
        """
        return await self._call(messages, ground_truth, metadata, None)

    async def score(
        self,
        messages: Messages,
        ground_truth: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> EvalScore:
        """Return the score of a conversation, or why there is none; never raises but for cancellation.

        Args:
            messages: the conversation, oldest message first.
            ground_truth: the right answer; None if the row has none.
            metadata: the row's columns.
            timeout_s: how long the function may take, in seconds; None is unbounded.
        """
        try:
            return EvalScore(await self._call(messages, ground_truth, metadata, timeout_s))
        except DeadlineExceededError as error:
            return EvalScore(reason=f"the function did not return within {timeout_s:g}s", error=error)
        except EvalFnError as error:
            return EvalScore(reason=error.message, error=error)
        except Exception as error:  # the user's code: whatever it raises is why there is no score
            logger.warning("eval function %s raised", self.name, exc_info=error)
            name, text = type(error).__name__, describe(error)
            # Errors of this package are sentences, and some texts begin with the error's name as it is.
            told = isinstance(error, OsmosisError) or text.startswith(name)
            reason = text if told else f"{name}: {text}"
            return EvalScore(reason=reason[:_REASON_CHARS], error=error)

    async def _call(
        self,
        messages: Messages,
        ground_truth: str | None,
        metadata: Mapping[str, Any] | None,
        timeout_s: float | None,
    ) -> float:
        about = {} if metadata is None else _own_copy(metadata)
        given: dict[str, Any] = (
            {"solution_str": last_answer(messages), "ground_truth": ground_truth, "extra_info": about}
            if self.mode == "simple"
            else {"messages": _own_copy(messages), "ground_truth": ground_truth, "metadata": about}
        )
        return finite_score(await run_within(_called(self.fn, given, timeout_s), timeout_s))


def load_eval_fn(path: str) -> EvalFnWrapper:
    """Load the eval function that ``module:function`` names; the current directory is searched first.

    Raises:
        EvalFnError: it cannot be loaded, or is no eval function.
    """
    from .exceptions import AgentLoopLoadError
    from .loading import load_attribute

    try:
        function = load_attribute(path, what="eval function", example="rewards:compute_reward")
    except AgentLoopLoadError as error:
        raise EvalFnError(error.message, hint=error.hint) from error
    return EvalFnWrapper(function, path)


def load_eval_fns(paths: Sequence[str]) -> list[EvalFnWrapper]:
    """Load several, in order; each keeps the path it was loaded by as its name.

    Raises:
        EvalFnError: one of them cannot be loaded, or stands there twice.
    """
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise EvalFnError(f"Duplicate eval function path: '{path}' is given more than once.")
        seen.add(path)
    return [load_eval_fn(path) for path in paths]


def wrap_eval_fns(functions: Any) -> list[EvalFnWrapper]:
    """Wrap the functions of a module's ``eval_fns = [...]``; a string there is a ``module:function``.

    Raises:
        EvalFnError: it is no list, one of them is no eval function, or two have the same name.
    """
    if not isinstance(functions, (list, tuple)):
        raise EvalFnError(f"`eval_fns` must be a list of functions, not {_shown(functions)}.")
    wrapped = [
        function
        if isinstance(function, EvalFnWrapper)
        else load_eval_fn(function)
        if isinstance(function, str)
        else EvalFnWrapper(function)
        for function in functions
    ]
    # The agent's own reward is a score of that name.
    names = [AGENT_SCORE, *(each.name for each in wrapped)]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise EvalFnError(
            f"two scores would be called '{repeated[0]}'; give each eval function a name of its own."
        )
    return wrapped


def last_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of the last assistant message that has any; ``""`` when none has."""
    for message in reversed(messages):
        if message.get("role") == "assistant" and (content := message.get("content")) is not None:
            return content if isinstance(content, str) else str(content)
    return ""


def finite_score(value: Any) -> float:
    """Return what a function returned, as a finite float; NumPy's numbers are numbers.

    Raises:
        EvalFnError: it is none.
    """
    if not isinstance(value, numbers.Real):
        raise EvalFnError(f"the function must return a number, not {_shown(value)}")
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise EvalFnError(f"the function must return a finite number, not {score}")
    return score


def _own_copy(value: Any) -> Any:
    """Return what a function may change without changing what others see, and what is kept."""
    try:
        return snapshot(value)
    except Exception:  # the objects inside are the agent's own, and may not be copied
        return value


def _shown(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"


def _mode_of(fn: Any, name: str) -> EvalFnMode:
    if not callable(fn) or isinstance(fn, type):
        raise EvalFnError(f"eval function '{name}' must be a function, not {_shown(fn)}.")
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        raise EvalFnError(f"eval function '{name}' has parameters that cannot be read.") from None
    first = parameters[0] if parameters else None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    mode = _MODES.get(first.name) if first is not None and first.kind in by_name else None
    if mode is None:
        found = f"not '{first.name}'" if first is not None else "and it has none"
        raise EvalFnError(
            f"the first parameter of eval function '{name}' must be 'solution_str' (scores the last answer) or "
            f"'messages' (scores the conversation), {found}."
        )
    return mode


async def _called(fn: Callable[..., Any], given: Mapping[str, Any], timeout_s: float | None) -> Any:
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004 - an object's own method
        return await fn(**given)
    started = time.monotonic()
    value = await _in_thread(lambda: fn(**given))
    if not inspect.isawaitable(value):
        return value
    # A plain function may hand out a coroutine; it runs here, in what is left of the time.
    left_s = None if timeout_s is None else timeout_s - (time.monotonic() - started)
    if left_s is not None and left_s <= 0:
        _close(value)
    return await run_within(_awaited(value), left_s)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _close(value: Any) -> None:
    """Let go of what a function returned too late: Python warns of a coroutine that nobody awaits."""
    if inspect.iscoroutine(value):
        value.close()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a thread of its own that nobody waits for at the end of the process.

    A pool would be full of functions that hang, and would keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if outcome.done():
            _close(value)
        elif error is None:
            outcome.set_result(value)
        else:
            outcome.set_exception(error)

    def run() -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            value = context.run(work)
        except BaseException as error:
            failure = error
        if isinstance(failure, StopIteration) or not isinstance(failure, (Exception, type(None))):
            # Neither can be the outcome of a future; the exit of a process is not for the event loop to see.
            failure = RuntimeError(
                f"the function raised {type(failure).__name__}: {failure}".removesuffix(": ")
            )
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:
            _close(value)
            logger.debug("an eval function returned after its event loop had ended")

    threading.Thread(target=run, name="osmosis-eval-fn", daemon=True).start()
    try:
        return await outcome
    except asyncio.CancelledError:
        if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
            _close(outcome.result())  # it came in the moment in which its time was over
        raise

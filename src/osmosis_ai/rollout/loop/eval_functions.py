"""Load and call eval functions, which score finished conversations.

A call returns a finite number or a reason why there is none. A function that raises, hangs, blocks its thread,
exits the process or returns an invalid value leaves only its own score *unscored*, which is not zero.
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
"""Name of the score that holds the agent's own reward."""

_MODES: dict[str, EvalFnMode] = {"solution_str": "simple", "messages": "full"}
_REASON_CHARS = 500


class EvalFnError(OsmosisError):
    """An eval function cannot be loaded or called, or returned an invalid score."""


@dataclass(frozen=True, slots=True)
class EvalScore:
    """Result of one call: a finite ``value``, or the ``reason`` for a missing one and the underlying error."""

    value: float | None = None
    reason: str | None = None
    error: Exception | None = None


class EvalFnWrapper:
    """A named eval function with its calling convention.

    If the first parameter is ``solution_str``, the function receives the last answer (``solution_str``,
    ``ground_truth``, ``extra_info``). If it is ``messages``, it receives the conversation (``messages``,
    ``ground_truth``, ``metadata``). All three are always passed by name.

    Args:
        fn: A sync or async callable.
        name: Name of its scores; ``module:function`` for a loaded function.

    Raises:
        EvalFnError: ``fn`` is not callable, or its first parameter has another name.
    """

    def __init__(self, fn: Callable[..., Any] | str, name: str | Callable[..., Any] = "") -> None:
        self.fn: Any = fn
        self.name: str = name if isinstance(name, str) else str(fn)
        if isinstance(fn, str) and callable(name):
            self.fn = name  # accept either argument order
        self.name = self.name or str(getattr(fn, "__name__", type(fn).__name__))
        self.mode: EvalFnMode = _mode_of(self.fn, self.name)

    async def __call__(
        self, messages: Messages, ground_truth: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> float:
        """Return the score of a conversation.

        Raises:
            EvalFnError: The function did not return a finite number.
            Exception: Any error raised by the function.
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
        """Return the score of a conversation or the reason for a missing one. Raises nothing except cancellation.

        Args:
            messages: The conversation, oldest message first.
            ground_truth: The right answer; None if the row has none.
            metadata: The row's columns.
            timeout_s: Time limit in seconds; None means no limit.
        """
        try:
            return EvalScore(await self._call(messages, ground_truth, metadata, timeout_s))
        except DeadlineExceededError as error:
            return EvalScore(reason=f"the function did not return within {timeout_s:g}s", error=error)
        except EvalFnError as error:
            return EvalScore(reason=error.message, error=error)
        except Exception as error:  # any error of the user's code is the reason for a missing score
            logger.warning("eval function %s raised", self.name, exc_info=error)
            name, text = type(error).__name__, describe(error)
            # This package's errors are full sentences, and some texts already start with the error's name.
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
    """Load the eval function named by ``module:function``, searching the current directory first.

    Raises:
        EvalFnError: It cannot be loaded or is not an eval function.
    """
    from .exceptions import AgentLoopLoadError
    from .loading import load_attribute

    try:
        function = load_attribute(path, what="eval function", example="rewards:compute_reward")
    except AgentLoopLoadError as error:
        raise EvalFnError(error.message, hint=error.hint) from error
    return EvalFnWrapper(function, path)


def load_eval_fns(paths: Sequence[str]) -> list[EvalFnWrapper]:
    """Load several eval functions in order, named by their paths.

    Raises:
        EvalFnError: A function cannot be loaded, or a path is repeated.
    """
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise EvalFnError(f"Duplicate eval function path: '{path}' is given more than once.")
        seen.add(path)
    return [load_eval_fn(path) for path in paths]


def wrap_eval_fns(functions: Any) -> list[EvalFnWrapper]:
    """Wrap the functions of a module's ``eval_fns = [...]``. A string there means ``module:function``.

    Raises:
        EvalFnError: It is not a list, an item is not an eval function, or two names are equal.
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
    """Return the content of the last non-empty assistant message; ``""`` if there is none."""
    for message in reversed(messages):
        if message.get("role") == "assistant" and (content := message.get("content")) is not None:
            return content if isinstance(content, str) else str(content)
    return ""


def finite_score(value: Any) -> float:
    """Return a function's result as a finite float; NumPy numbers are accepted.

    Raises:
        EvalFnError: It is not a finite number.
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
    """Copy a value so that a function's changes stay invisible to others."""
    try:
        return snapshot(value)
    except Exception:  # agents' objects may not be copyable
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
    # A plain function may return a coroutine; it runs here, in the remaining time.
    left_s = None if timeout_s is None else timeout_s - (time.monotonic() - started)
    if left_s is not None and left_s <= 0:
        _close(value)
    return await run_within(_awaited(value), left_s)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _close(value: Any) -> None:
    """Close a coroutine that arrived too late, since Python warns about unawaited ones."""
    if inspect.iscoroutine(value):
        value.close()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in its own thread, which does not block process exit.

    In a pool, hanging functions would use up all threads and keep the process from exiting.
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
            # A future cannot hold either of these, and the event loop must not see SystemExit.
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
            _close(outcome.result())  # it arrived just as the time ran out
        raise

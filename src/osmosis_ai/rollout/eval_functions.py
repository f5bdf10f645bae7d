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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError

from .backend import DeadlineExceededError, describe, run_within
from .cli_utils import load_attribute
from .core.exceptions import AgentLoopLoadError
from .types import snapshot

logger = logging.getLogger(__name__)

EvalFnMode = Literal["simple", "full"]
Messages = list[dict[str, Any]]

AGENT_SCORE = "agent"  # the score that holds the agent's own reward
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
        """Return the score of a conversation. Raises the function's errors, or EvalFnError without a finite number."""
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

        ``metadata`` are the columns of the dataset row.
        """
        try:
            return EvalScore(await self._call(messages, ground_truth, metadata, timeout_s))
        except DeadlineExceededError as error:
            return EvalScore(reason=f"the function did not return within {timeout_s:g}s", error=error)
        except EvalFnError as error:
            return EvalScore(reason=error.message, error=error)
        except Exception as error:  # any error of the user's code is the reason for a missing score
            logger.warning("eval function %s raised", self.name, exc_info=error)
            name, reason = type(error).__name__, describe(error)
            # This package's errors are full sentences, and some texts already start with the error's name.
            if not isinstance(error, OsmosisError) and not reason.startswith(name):
                reason = f"{name}: {reason}"
            return EvalScore(reason=reason[:_REASON_CHARS], error=error)

    async def _call(
        self,
        messages: Messages,
        ground_truth: str | None,
        metadata: Mapping[str, Any] | None,
        timeout_s: float | None,
    ) -> float:
        row = {} if metadata is None else _own_copy(metadata)
        arguments: dict[str, Any] = (
            {"solution_str": last_answer(messages), "ground_truth": ground_truth, "extra_info": row}
            if self.mode == "simple"
            else {"messages": _own_copy(messages), "ground_truth": ground_truth, "metadata": row}
        )
        return finite_score(await run_within(_call(self.fn, arguments), timeout_s))


def load_eval_fn(path: str) -> EvalFnWrapper:
    """Load the eval function named by ``module:function``, searching the current directory first."""
    try:
        function = load_attribute(path, what="eval function", example="rewards:compute_reward")
    except AgentLoopLoadError as error:
        raise EvalFnError(error.message, hint=error.hint) from error
    return EvalFnWrapper(function, path)


def load_eval_fns(paths: Sequence[str]) -> list[EvalFnWrapper]:
    """Load several eval functions in order, named by their paths. A path must not be repeated."""
    for path in paths:
        if paths.count(path) > 1:
            raise EvalFnError(f"Duplicate eval function path: '{path}' is given more than once.")
    return [load_eval_fn(path) for path in paths]


def wrap_eval_fns(functions: Any) -> list[EvalFnWrapper]:
    """Wrap the functions of a module's ``eval_fns = [...]``. A string there means ``module:function``."""
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
    """Return a function's result as a finite float; NumPy numbers are accepted."""
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


async def _call(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004 - an object's own method
        return await fn(**arguments)
    value = await _in_thread(lambda: fn(**arguments))
    # A plain function may return a coroutine.
    return await value if inspect.isawaitable(value) else value


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in its own daemon thread: in a pool, hanging functions would use up all threads and block the exit."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome.set_result(context.run(work))
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                # A future cannot hold StopIteration, and the event loop must not see SystemExit.
                reason = f"the function raised {type(error).__name__}: {error}".removesuffix(": ")
                error = RuntimeError(reason)
            outcome.set_exception(error)

    threading.Thread(target=run, name="osmosis-eval-fn", daemon=True).start()
    return await asyncio.wrap_future(outcome)

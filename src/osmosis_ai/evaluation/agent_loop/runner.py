"""One row through an agent loop, in this process: from the row to what came of it.

Whatever the agent does, its row ends in a :class:`LocalRunResult`, with the tokens that it took, and its client
is left without tools. Only what ends the command (cancellation, an interrupt) passes through.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from osmosis_ai.evaluation.agent_loop.errors import LocalExecutionError, ToolValidationError
from osmosis_ai.llm.finish_reasons import FLAGGED_NAMES

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import Dispatcher, Stop
    from osmosis_ai.rollout.loop.agent import CompletionsResult, RolloutAgentLoop, RolloutResult
    from osmosis_ai.rollout.loop.schemas import RolloutMetrics, RolloutRequest

Item = TypeVar("Item")
Done = TypeVar("Done")

DEFAULT_MODEL = "gpt-5-mini"
"""The model of `osmosis test` where none is named."""
DEFAULT_MAX_TURNS = 10
LOCAL_DEBUG_DIR = "./local_debug"


@runtime_checkable
class LocalLLMClientProtocol(Protocol):
    """The model of a rollout in this process; a test may give its own."""

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply."""
        ...

    def set_tools(self, tools: Sequence[Any]) -> None:
        """Offer these tools with every call from now on."""
        ...

    def clear_tools(self) -> None:
        """Offer no tools any more."""
        ...

    def reset_metrics(self) -> None:
        """Count from zero."""
        ...

    def get_metrics(self) -> RolloutMetrics:
        """Return what the calls since the last reset came to."""
        ...


@dataclass
class LocalRunResult:
    """What came of one row."""

    row_index: int
    success: bool
    result: RolloutResult | None = None
    error: str | None = None
    duration_ms: float = 0.0
    token_usage: dict[str, int] = field(default_factory=dict)
    raised: str | None = None
    finish_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def flagged_finishes(self) -> list[str]:
        """In words, what happened to replies: truncated, filtered or refused."""
        return [name for reason, name in FLAGGED_NAMES.items() if reason in self.finish_reasons]

    @property
    def total_tokens(self) -> int:
        """Tokens read and written."""
        return self.token_usage.get("total_tokens", 0)


@dataclass
class LocalBatchResult:
    """What came of several rows, in their order."""

    results: list[LocalRunResult]
    total: int
    passed: int
    failed: int
    total_duration_ms: float
    total_tokens: int


class LocalRolloutRunner:
    """Runs an agent loop on rows, one after the other."""

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: LocalLLMClientProtocol,
        debug: bool = False,
        debug_dir: str | Path | None = None,
        rollout_id_prefix: str = "local",
        request_metadata: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.agent_loop = agent_loop
        self.llm_client = llm_client
        self.debug = debug
        self.debug_dir = (debug_dir or LOCAL_DEBUG_DIR) if debug else None
        self.rollout_id_prefix = rollout_id_prefix
        self.request_metadata = dict(request_metadata or {})
        self.timeout_s = timeout_s

    async def run_single(
        self,
        row: Mapping[str, Any],
        row_index: int,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        rollout_id: str | None = None,
        request_metadata: Mapping[str, Any] | None = None,
    ) -> LocalRunResult:
        """Run the agent on one row."""
        from osmosis_ai.evaluation.agent_loop.dataset import dataset_row_to_request

        self._tell_client("reset_metrics")
        before = self._counted_before()
        started = time.perf_counter()
        result, error, failure = None, None, None
        try:
            request = dataset_row_to_request(
                row,
                row_index,
                max_turns=max_turns,
                completion_params=completion_params,
                rollout_id_prefix=self.rollout_id_prefix,
                rollout_id=rollout_id,
                metadata_overrides={**self.request_metadata, **(request_metadata or {})},
            )
            result = await self._run_agent(request)
            error = _error_of(result)
        except ToolValidationError as refused:
            error = f"Tool validation error: {refused}"
        except (
            Exception,
            SystemExit,
        ) as raised:  # the agent is the user's code, and what it raises is its row's result
            error = str(raised) or type(raised).__name__
            failure = describe_raised(raised)
        finally:
            self._tell_client("clear_tools")
        return LocalRunResult(
            row_index,
            success=error is None,
            result=result,
            error=error,
            duration_ms=(time.perf_counter() - started) * 1000.0,
            token_usage=self._token_usage(result, before),
            raised=failure,
            finish_reasons=dict(getattr(self.llm_client, "finish_reasons", {})),
        )

    async def run_batch(
        self,
        rows: Iterable[Mapping[str, Any]],
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        on_progress: Callable[[int, int, LocalRunResult], None] | None = None,
        start_index: int = 0,
    ) -> LocalBatchResult:
        """Run the agent on rows, one after the other."""
        started = time.perf_counter()
        chosen = list(rows)
        results = []
        for number, row in enumerate(chosen):
            result = await self.run_single(row, start_index + number, max_turns, completion_params)
            results.append(result)
            if on_progress is not None:
                on_progress(number + 1, len(chosen), result)
        passed = sum(result.success for result in results)
        return LocalBatchResult(
            results=results,
            total=len(results),
            passed=passed,
            failed=len(results) - passed,
            total_duration_ms=(time.perf_counter() - started) * 1000.0,
            total_tokens=sum(result.total_tokens for result in results),
        )

    def _tell_client(self, method: str, *given: Any) -> None:
        """Call a method of the client; a test's own may have ``chat_completions`` and ``get_metrics`` alone."""
        call = getattr(self.llm_client, method, None)
        if call is not None:
            call(*given)

    def _counted_before(self) -> dict[str, int]:
        """Return what a client that cannot count from zero has counted up to now."""
        resets = hasattr(self.llm_client, "reset_metrics")
        return {} if resets else token_usage(self.llm_client.get_metrics())

    def _token_usage(self, result: RolloutResult | None, before: Mapping[str, int]) -> dict[str, int]:
        """Return what the client counted; an agent that asks its model past the client tells it in its result."""
        counted = {
            name: count - before.get(name, 0)
            for name, count in token_usage(self.llm_client.get_metrics()).items()
        }
        told = getattr(result, "metrics", None)
        return counted if told is None or any(counted.values()) else token_usage(told)

    async def _run_agent(self, request: RolloutRequest) -> RolloutResult:
        from osmosis_ai.rollout.loop.context import AgentLoopContext

        tools = self.agent_loop.get_tools(request)
        validate_tools(tools)
        self._tell_client("set_tools", tools)
        if self.debug_dir is not None:
            debug_dir = Path(self.debug_dir)
            if not debug_dir.exists():
                debug_dir.mkdir(parents=True)
                (debug_dir / ".gitignore").write_text("*\n")
        context = AgentLoopContext(
            request=request,
            tools=tools,
            llm=self.llm_client,
            _start_time=time.monotonic(),
            _debug_dir=self.debug_dir,
        )
        running: Any = self.agent_loop.run(context)  # type: ignore[arg-type]
        if not isinstance(running, Awaitable):
            raise LocalExecutionError(f"{type(self.agent_loop).__name__}.run must be `async def`.")
        return await _within(running, self.timeout_s)


async def _within(running: Awaitable[RolloutResult], timeout_s: float | None) -> RolloutResult:
    from osmosis_ai.rollout.backend.local.deadline import DeadlineExceededError, run_within

    async def waiting() -> RolloutResult:
        return await running

    try:
        return await run_within(waiting(), timeout_s)
    except DeadlineExceededError:
        raise LocalExecutionError(f"the agent did not end within {timeout_s:g} s.") from None


async def run_all(
    items: Iterable[Item],
    run_one: Callable[[Item], Awaitable[Done]],
    *,
    limit: int,
    done: Callable[[int, Item, Done], None],
    started: Callable[[Dispatcher[tuple[int, Item]]], None] = lambda _: None,
) -> Stop | None:
    """Run every item, at most ``limit`` at once, none waiting for another."""
    from osmosis_ai.controller.dispatcher import Dispatcher

    async def attempt(numbered: tuple[int, Item]) -> bool:
        number, item = numbered
        done(number, item, await run_one(item))
        return True

    dispatcher = Dispatcher(iter(enumerate(items)), attempt, limit=limit)
    started(dispatcher)
    stop = await dispatcher.run()
    if stop is not None and stop.error is not None:
        raise stop.error
    return stop


def validate_tools(tools: Any) -> None:
    """Check what ``get_tools`` returned: schemas, or dicts of the same shape.

    Raises:
        ToolValidationError: naming the tool and what is wrong with it.
    """
    from osmosis_ai.rollout.loop.tool_schemas import tool_problems

    if not isinstance(tools, list):
        given = "None" if tools is None else type(tools).__name__
        raise ToolValidationError(f"get_tools returned {given}; it must return a list.")
    for number, tool in enumerate(tools):
        wrong = [
            f"{problem.field}: {problem.message}"
            for problem in tool_problems(_tool_view(tool), f"tools[{number}]")
            # A dict goes to the model as it stands; a schema promises OpenAI's shape.
            if problem.is_error
            or (problem.code == "PARAMETERS_TYPE_NOT_OBJECT" and not isinstance(tool, Mapping))
        ]
        if wrong:
            raise ToolValidationError(f"{'; '.join(wrong)}.")


def _tool_view(tool: Any) -> Any:
    """Return a tool as the dict that a model would be sent; an object of another class by its attributes."""
    from pydantic import BaseModel

    from osmosis_ai.rollout.loop.tool_schemas import tool_payload

    if isinstance(tool, BaseModel | Mapping):
        return tool_payload(tool)
    function = getattr(tool, "function", None)
    if function is None or isinstance(function, Mapping):
        return {"type": "function", "function": function}
    seen = {name: getattr(function, name, None) for name in ("name", "description", "parameters")}
    parameters = seen["parameters"]
    if parameters is not None and not isinstance(parameters, Mapping):
        seen["parameters"] = {"type": getattr(parameters, "type", "object")}
    return {"type": "function", "function": seen}


def describe_raised(error: BaseException) -> str:
    """Return an exception as one line: our own in its words, the user's with its type and place."""
    from osmosis_ai.errors import OsmosisError
    from osmosis_ai.rollout.loop.loading import describe_failure

    return error.message if isinstance(error, OsmosisError) else describe_failure(error)


def _error_of(result: Any) -> str | None:
    """Return why a rollout is no success; None when it is one."""
    status = getattr(result, "status", None)
    if status is None:
        return f"run returned {type(result).__name__}; it must return what ctx.complete(...) or ctx.error(...) gives"
    if getattr(status, "value", status) == "COMPLETED":
        return None
    return result.error_message or f"the agent ended with status {getattr(status, 'value', status)}"


def token_usage(metrics: RolloutMetrics) -> dict[str, int]:
    """Return the token counts of a result; what a test's own client counts may be no number, which is 0."""
    prompt, written, calls = (
        count if isinstance(count, int) else 0
        for count in (metrics.prompt_tokens, metrics.response_tokens, metrics.num_llm_calls)
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "num_llm_calls": calls,
    }

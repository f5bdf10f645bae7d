"""Run an agent loop on rows in this process: ``LocalRolloutRunner``, and ``LocalTestRunner`` of `osmosis test`.

Whatever the agent does, its row ends in a :class:`LocalRunResult`. Only cancellation and interrupts pass through.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.inputs import (
    DEFAULT_MAX_TURNS,
    LocalExecutionError,
    ToolValidationError,
    dataset_row_to_request,
)
from osmosis_ai.llm.finish_reasons import FLAGGED_NAMES

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import Dispatcher, Stop
    from osmosis_ai.rollout.loop.agent import CompletionsResult, RolloutAgentLoop, RolloutResult
    from osmosis_ai.rollout.loop.schemas import RolloutMetrics, RolloutRequest

Item = TypeVar("Item")
Done = TypeVar("Done")


@runtime_checkable
class LocalLLMClientProtocol(Protocol):
    """The model of a rollout in this process."""

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult: ...

    def set_tools(self, tools: Sequence[Any]) -> None: ...

    def clear_tools(self) -> None: ...

    def reset_metrics(self) -> None: ...

    def get_metrics(self) -> RolloutMetrics: ...


@dataclass
class LocalRunResult:
    """The result of one row; ``raised`` adds the type and place of the agent's exception to ``error``."""

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
        """What happened to replies: truncated, filtered or refused."""
        return [name for reason, name in FLAGGED_NAMES.items() if reason in self.finish_reasons]

    @property
    def total_tokens(self) -> int:
        return self.token_usage.get("total_tokens", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the row's entry in the results file of `osmosis test`."""
        from osmosis_ai.rollout.loop.eval_functions import EvalFnError, finite_score

        reward, finish_reason = (
            getattr(self.result, "reward", None),
            getattr(self.result, "finish_reason", None),
        )
        try:
            reward = None if reward is None else finite_score(reward)
        except EvalFnError:
            reward = None
        return {
            "row_index": self.row_index,
            "success": self.success,
            "error": self.error,
            "duration_ms": self.duration_ms,
            "token_usage": self.token_usage,
            "reward": reward,
            "finish_reason": None if finish_reason is None else str(finish_reason),
            **({"finish_reasons": self.finish_reasons} if self.finish_reasons else {}),
        }


@dataclass
class LocalBatchResult:
    """The results of several rows, in their order."""

    results: list[LocalRunResult]
    total: int
    passed: int
    failed: int
    total_duration_ms: float
    total_tokens: int


class LocalRolloutRunner:
    """Runs an agent loop on rows, one after the other.

    A client may lack every method of :class:`LocalLLMClientProtocol` except ``chat_completions`` and ``get_metrics``.
    """

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
        self.debug_dir = (debug_dir or "./local_debug") if debug else None
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
        from osmosis_ai.rollout.loop.loading import describe_failure

        self._call_client("reset_metrics")
        can_reset = hasattr(self.llm_client, "reset_metrics")
        before = {} if can_reset else token_usage(self.llm_client.get_metrics())
        started = time.perf_counter()
        result, error, raised = None, None, None
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
        except (Exception, SystemExit) as failure:  # whatever the user's code raises is its row's result
            error = str(failure) or type(failure).__name__
            raised = failure.message if isinstance(failure, OsmosisError) else describe_failure(failure)
        finally:
            self._call_client("clear_tools")
        counted = token_usage(self.llm_client.get_metrics())
        counted = {name: count - before.get(name, 0) for name, count in counted.items()}
        own_metrics = getattr(result, "metrics", None)
        if own_metrics is not None and not any(counted.values()):
            counted = token_usage(own_metrics)  # the agent called a model without the client
        return LocalRunResult(
            row_index,
            success=error is None,
            result=result,
            error=error,
            duration_ms=(time.perf_counter() - started) * 1000.0,
            token_usage=counted,
            raised=raised,
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
        """Run the agent on rows, one after the other; ``start_index`` is the index of the first."""
        started = time.perf_counter()
        rows, results = list(rows), []
        for number, row in enumerate(rows):
            result = await self.run_single(row, start_index + number, max_turns, completion_params)
            results.append(result)
            if on_progress is not None:
                on_progress(number + 1, len(rows), result)
        passed = sum(result.success for result in results)
        return LocalBatchResult(
            results=results,
            total=len(results),
            passed=passed,
            failed=len(results) - passed,
            total_duration_ms=(time.perf_counter() - started) * 1000.0,
            total_tokens=sum(result.total_tokens for result in results),
        )

    def _call_client(self, method: str, *arguments: Any) -> None:
        call = getattr(self.llm_client, method, None)
        if call is not None:
            call(*arguments)

    async def _run_agent(self, request: RolloutRequest) -> Any:
        from osmosis_ai.rollout.backend.local.deadline import DeadlineExceededError, run_within
        from osmosis_ai.rollout.loop.context import AgentLoopContext

        tools = self.agent_loop.get_tools(request)
        validate_tools(tools)
        self._call_client("set_tools", tools)
        if self.debug_dir is not None and not Path(self.debug_dir).exists():
            Path(self.debug_dir).mkdir(parents=True)
            (Path(self.debug_dir) / ".gitignore").write_text("*\n")
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

        async def run() -> Any:
            return await running

        try:
            return await run_within(run(), self.timeout_s)
        except DeadlineExceededError:
            raise LocalExecutionError(f"the agent did not end within {self.timeout_s:g} s.") from None


class LocalTestRunner(LocalRolloutRunner):
    """Runs an agent loop on rows, with rollout ids ``test-<row>``."""

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: LocalLLMClientProtocol,
        debug: bool = False,
        debug_dir: str | Path | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(
            agent_loop,
            llm_client,
            debug,
            debug_dir or "./test_debug",
            rollout_id_prefix="test",
            request_metadata={"execution_mode": "test", "test_mode": True},
            timeout_s=timeout_s,
        )


# The SDK's names.
LocalTestRunResult = LocalRunResult
LocalTestBatchResult = LocalBatchResult


async def run_all(
    items: Iterable[Item],
    run_one: Callable[[Item], Awaitable[Done]],
    *,
    limit: int,
    done: Callable[[int, Item, Done], None],
    started: Callable[[Dispatcher[tuple[int, Item]]], None] = lambda _: None,
) -> Stop | None:
    """Run ``run_one`` on all items, at most ``limit`` at once; an error of ``done`` stops it."""
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
    """Check the result of ``get_tools``: schemas, dicts or objects of the same shape.

    Raises:
        ToolValidationError: the message names the first invalid tool and its problems.
    """
    from pydantic import BaseModel

    from osmosis_ai.rollout.loop.tool_schemas import tool_payload, tool_problems

    if not isinstance(tools, list):
        given = "None" if tools is None else type(tools).__name__
        raise ToolValidationError(f"get_tools returned {given}; it must return a list.")
    for number, tool in enumerate(tools):
        known = isinstance(tool, BaseModel | Mapping)
        problems = [
            f"{problem.field}: {problem.message}"
            for problem in tool_problems(
                tool_payload(tool) if known else _tool_dict(tool), f"tools[{number}]"
            )
            # A dict is sent unchanged; anything else must have OpenAI's shape.
            if problem.is_error
            or (problem.code == "PARAMETERS_TYPE_NOT_OBJECT" and not isinstance(tool, Mapping))
        ]
        if problems:
            raise ToolValidationError(f"{'; '.join(problems)}.")


def _tool_dict(tool: Any) -> dict[str, Any]:
    """Return an object that is neither a schema nor a dict as a tool's dict, read by its attributes."""
    function = getattr(tool, "function", None)
    if function is not None and not isinstance(function, Mapping):
        parameters = getattr(function, "parameters", None)
        if parameters is not None and not isinstance(parameters, Mapping):
            parameters = {"type": getattr(parameters, "type", "object")}
        function = {
            "name": getattr(function, "name", None),
            "description": getattr(function, "description", None),
            "parameters": parameters,
        }
    return {"type": "function", "function": function}


def _error_of(result: Any) -> str | None:
    """Return why a rollout failed; None if it succeeded."""
    status = getattr(result, "status", None)
    if status is None:
        return f"run returned {type(result).__name__}; it must return what ctx.complete(...) or ctx.error(...) gives"
    status = getattr(status, "value", status)
    if status == "COMPLETED":
        return None
    return result.error_message or f"the agent ended with status {status}"


def token_usage(metrics: RolloutMetrics) -> dict[str, int]:
    """Return the token counts of a result; a count of a user's client that is no integer counts as 0."""
    prompt, completion, calls = (
        count if isinstance(count, int) else 0
        for count in (metrics.prompt_tokens, metrics.response_tokens, metrics.num_llm_calls)
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "num_llm_calls": calls,
    }


def format_duration(duration_ms: float) -> str:
    """Return ``250ms``, ``12.3s`` or ``2m5.0s``."""
    if duration_ms < 1000:
        return f"{duration_ms:.0f}ms"
    minutes, seconds = divmod(duration_ms / 1000, 60)
    return f"{int(minutes)}m{seconds:.1f}s" if minutes else f"{seconds:.1f}s"


def format_tokens(tokens: int) -> str:
    """Return a number of tokens with thousands separated."""
    return f"{tokens:,}"

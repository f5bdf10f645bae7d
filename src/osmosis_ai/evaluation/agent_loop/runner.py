"""Run agent loops in this process: the runners, results and report of the 0.2 SDK.

Every row ends with a result; only cancellation and interrupts propagate. A failed run has no scores. If an eval
function returns no finite number, its score is missing and ``unscored`` has the reason. A missing score never passes:
the documented statistics count it as 0.0, the estimates leave it out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.inputs import (
    DEFAULT_MAX_TURNS,
    LocalExecutionError,
    ToolValidationError,
    dataset_row_to_request,
)
from osmosis_ai.llm.replies import FLAGGED_NAMES
from osmosis_ai.rollout.backend import DeadlineExceededError, awaitable, run_within
from osmosis_ai.rollout.cli_utils import describe_failure
from osmosis_ai.rollout.core.base import AgentLoopContext, LLMClientProtocol, RolloutAgentLoop, RolloutResult
from osmosis_ai.rollout.core.schemas import RolloutMetrics, RolloutRequest
from osmosis_ai.rollout.eval_functions import EvalFnError, finite_score, wrap_eval_fns
from osmosis_ai.rollout.tools import tool_problems
from osmosis_ai.statistics import estimates as statistics
from osmosis_ai.statistics import pass_at_k as unbiased
from osmosis_ai.statistics.estimates import Estimate

logger = logging.getLogger(__name__)

DOCUMENTED_KS = (1, 3, 5, 10)


@runtime_checkable
class LocalLLMClientProtocol(LLMClientProtocol, Protocol):
    """Model of an agent loop in this process."""

    def set_tools(self, tools: Sequence[Any]) -> None: ...
    def clear_tools(self) -> None: ...
    def reset_metrics(self) -> None: ...


@dataclass
class LocalRunResult:
    """Result of one row; ``raised`` is ``error`` with the exception's type and its line in the user's code."""

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
        """Problems of the model's replies: truncated, filtered or refused."""
        return [name for reason, name in FLAGGED_NAMES.items() if reason in self.finish_reasons]

    @property
    def total_tokens(self) -> int:
        return self.token_usage.get("total_tokens", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the row's entry in the results file of `osmosis test`."""
        reward = finish_reason = None
        if self.result is not None:
            finish_reason = str(self.result.finish_reason)
            with suppress(EvalFnError):
                reward = finite_score(self.result.reward)
        return {
            "row_index": self.row_index,
            "success": self.success,
            "error": self.error,
            "duration_ms": self.duration_ms,
            "token_usage": self.token_usage,
            "reward": reward,
            "finish_reason": finish_reason,
            **({"finish_reasons": self.finish_reasons} if self.finish_reasons else {}),
        }


@dataclass
class LocalBatchResult:
    """Results of several rows, in order."""

    results: list[LocalRunResult]
    total: int
    passed: int
    failed: int
    total_duration_ms: float
    total_tokens: int


@dataclass
class LocalRolloutRunner:
    """Runs an agent loop on rows, one after the other.

    The client needs only the methods ``chat_completions`` and ``get_metrics``.
    """

    agent_loop: RolloutAgentLoop
    llm_client: LocalLLMClientProtocol
    debug: bool = False
    debug_dir: str | Path | None = None
    rollout_id_prefix: str = "local"
    request_metadata: Mapping[str, Any] | None = None
    timeout_s: float | None = None
    default_debug_dir: ClassVar[str] = "./local_debug"

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
        self._call_client("reset_metrics")
        before = token_usage(self.llm_client.get_metrics())
        started = time.perf_counter()
        run = LocalRunResult(row_index, success=False)
        try:
            request = dataset_row_to_request(
                row,
                row_index,
                max_turns,
                completion_params=completion_params,
                rollout_id=rollout_id or f"{self.rollout_id_prefix}-{row_index}",
                metadata_overrides={**(self.request_metadata or {}), **(request_metadata or {})},
            )
            run.result = await self._run_agent(request)
            status = getattr(run.result.status, "value", run.result.status)
            if status != "COMPLETED":
                run.error = run.result.error_message or f"the agent ended with status {status}"
        except ToolValidationError as error:
            run.error = f"Tool validation error: {error}"
        except (Exception, SystemExit) as error:  # raised by the user's code
            run.error = str(error) or type(error).__name__
            run.raised = error.message if isinstance(error, OsmosisError) else describe_failure(error)
        finally:
            self._call_client("clear_tools")
        run.success = run.error is None
        run.duration_ms = (time.perf_counter() - started) * 1000.0
        usage = token_usage(self.llm_client.get_metrics())
        run.token_usage = {name: count - before[name] for name, count in usage.items()}
        if run.result is not None and run.result.metrics is not None and not any(run.token_usage.values()):
            run.token_usage = token_usage(run.result.metrics)  # the agent called a model without the client
        run.finish_reasons = dict(getattr(self.llm_client, "finish_reasons", {}))
        return run

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
        duration_ms = (time.perf_counter() - started) * 1000.0
        passed, tokens = sum(run.success for run in results), sum(run.total_tokens for run in results)
        return LocalBatchResult(results, len(rows), passed, len(rows) - passed, duration_ms, tokens)

    def _call_client(self, method: str, *arguments: Any) -> None:
        call = getattr(self.llm_client, method, None)
        if call is not None:
            call(*arguments)

    async def _run_agent(self, request: RolloutRequest) -> RolloutResult:
        tools = self.agent_loop.get_tools(request)
        validate_tools(tools)
        self._call_client("set_tools", tools)
        debug_dir = (self.debug_dir or self.default_debug_dir) if self.debug else None
        context = AgentLoopContext(
            request, tools, self.llm_client, _start_time=time.monotonic(), _debug_dir=debug_dir
        )
        running: Any = awaitable(self.agent_loop.run(context), "run")  # type: ignore[arg-type]
        try:
            result = await run_within(running, self.timeout_s)
        except DeadlineExceededError:
            raise LocalExecutionError(f"the agent did not finish within {self.timeout_s:g} s.") from None
        if not isinstance(result, RolloutResult):
            returned = type(result).__name__
            raise LocalExecutionError(
                f"run returned {returned}; it must return ctx.complete(...) or ctx.error(...)"
            )
        return result


@dataclass
class LocalTestRunner(LocalRolloutRunner):
    """Runs an agent loop on rows, with rollout ids ``test-<row>``."""

    rollout_id_prefix: str = "test"
    request_metadata: Mapping[str, Any] | None = field(
        default_factory=lambda: {"execution_mode": "test", "test_mode": True}
    )
    default_debug_dir: ClassVar[str] = "./test_debug"


# Names of the public SDK.
LocalTestRunResult = LocalRunResult
LocalTestBatchResult = LocalBatchResult


def validate_tools(tools: Any) -> None:
    """Check the result of ``get_tools``: schemas, dicts or objects with the same attributes.

    Raises:
        ToolValidationError: the message names the first invalid tool and its problems.
    """
    if not isinstance(tools, list):
        given = "None" if tools is None else type(tools).__name__
        raise ToolValidationError(f"get_tools returned {given}; it must return a list.")
    for number, tool in enumerate(tools):
        problems = [
            f"{problem.field}: {problem.message}"
            for problem in tool_problems(_as_tool(tool), f"tools[{number}]")
            # Providers may accept other parameters in a dict, which is sent unchanged.
            if problem.is_error
            or (problem.code == "PARAMETERS_TYPE_NOT_OBJECT" and not isinstance(tool, Mapping))
        ]
        if problems:
            raise ToolValidationError(f"{'; '.join(problems)}.")


def _as_tool(tool: Any) -> Any:
    """Return a tool; an object that is neither a schema nor a dict becomes a dict of its attributes."""
    if isinstance(tool, BaseModel | Mapping):
        return tool
    function = getattr(tool, "function", None)
    if function is not None and not isinstance(function, Mapping):
        function = {name: getattr(function, name, None) for name in ("name", "description", "parameters")}
        parameters = function["parameters"]
        if parameters is not None and not isinstance(parameters, Mapping):
            function["parameters"] = {"type": getattr(parameters, "type", "object")}
    return {"type": "function", "function": function}


def token_usage(metrics: RolloutMetrics) -> dict[str, int]:
    """Return the token counts of a result; counts that are not integers become 0."""
    counts = (metrics.prompt_tokens, metrics.response_tokens, metrics.num_llm_calls)
    prompt, completion, calls = (count if isinstance(count, int) else 0 for count in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "num_llm_calls": calls,
    }


@dataclass
class EvalEvalSummary:
    """Statistics of one eval function."""

    mean: float
    std: float
    min: float
    max: float
    pass_at_k: dict[int, float] = field(default_factory=dict)
    scored: int = 0
    unscored: int = 0
    estimate: Estimate | None = None
    pass_at_k_estimates: dict[int, Estimate] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the documented fields of a results file, and further ones."""
        fields = asdict(self)
        documented = {f"pass_at_{k}": value for k, value in fields.pop("pass_at_k").items()}
        return fields | documented


def summarize_scores(
    rows: Sequence[Sequence[float | None]],
    *,
    n_runs: int,
    pass_threshold: float,
    ks: Collection[int] = (),
    clusters: Sequence[int] | None = None,
) -> EvalEvalSummary:
    """Return the statistics of one eval function.

    Args:
        rows: the scores of each row's runs; None is a missing score.
        n_runs: planned runs per row; with one there is no documented pass@k.
        pass_threshold: lowest score that passes.
        ks: additional values of k for pass@k.
        clusters: a number per row; rows with equal numbers are duplicates and count as one in intervals.
    """
    scored = [(index, score) for index, row in enumerate(rows) for score in row if score is not None]
    attempts = [sum(score is not None for score in row) for row in rows]
    passes = [sum(score is not None and score >= pass_threshold for score in row) for row in rows]
    documented_ks = {k for k in (*DOCUMENTED_KS, *ks) if k <= n_runs}
    documented = {}
    if n_runs > 1 and rows:
        for k in sorted(documented_ks):
            by_row = [pass_at_k(len(row), passed, k) for row, passed in zip(rows, passes, strict=True)]
            documented[k] = sum(by_row) / len(rows)
    powers_of_two = {1 << exponent for exponent in range(n_runs.bit_length())}
    estimates = {
        k: unbiased.estimate_pass_at_k(attempts, passes, k, clusters)
        for k in sorted(documented_ks | powers_of_two)
    }
    with_zeros = [score or 0.0 for row in rows for score in row]
    described = statistics.describe(with_zeros or [0.0])
    assert described is not None
    return EvalEvalSummary(
        mean=described.mean,
        std=described.std,
        min=described.min,
        max=described.max,
        pass_at_k=documented,
        scored=len(scored),
        unscored=len(with_zeros) - len(scored),
        estimate=statistics.estimate_reward(
            [score for _, score in scored],
            [index for index, _ in scored],
            [clusters[index] for index, _ in scored] if clusters is not None else None,
        ),
        pass_at_k_estimates={k: estimate for k, estimate in estimates.items() if estimate is not None},
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that one of ``k`` of ``n`` runs passes if ``c`` of the ``n`` did; 1 if ``n <= k``."""
    if c <= 0:
        return 0.0
    return 1.0 if n <= k or c >= n else unbiased.pass_at_k(n, c, k)


@dataclass
class InProcessRunResult:
    """One run of one row."""

    run_index: int
    success: bool
    scores: dict[str, float] = field(default_factory=dict)
    duration_ms: float = 0.0
    tokens: int = 0
    error: str | None = None
    unscored: dict[str, str] = field(default_factory=dict)


@dataclass
class EvalRowResult:
    """Runs of one row."""

    row_index: int
    runs: list[InProcessRunResult]


@dataclass
class EvalResult:
    """All rows, with a summary of each eval function."""

    rows: list[EvalRowResult]
    eval_summaries: dict[str, EvalEvalSummary]
    total_rows: int
    total_runs: int
    total_tokens: int
    total_duration_ms: float
    n_runs: int
    pass_threshold: float


@dataclass
class InProcessEvalRunner:
    """Evaluates an agent loop on rows; concurrent runs need ``llm_client_factory``, since each has its own client."""

    agent_loop: RolloutAgentLoop
    llm_client: LocalLLMClientProtocol
    eval_fns: Sequence[Any]
    debug: bool = False
    debug_dir: str | Path | None = None
    llm_client_factory: Callable[[], LocalLLMClientProtocol] | None = None

    def __post_init__(self) -> None:
        self.eval_fns = wrap_eval_fns(self.eval_fns)

    async def run_single(
        self,
        row: Mapping[str, Any],
        row_index: int,
        run_index: int,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        runner: LocalRolloutRunner | None = None,
    ) -> InProcessRunResult:
        """Run the agent on a row once and score the result."""
        ran = await (runner or self._runner(self.llm_client)).run_single(
            row,
            row_index,
            max_turns,
            completion_params,
            rollout_id=f"eval-{row_index}-run-{run_index}",
            request_metadata={"execution_mode": "eval", "run_index": run_index},
        )
        run = InProcessRunResult(run_index, ran.success, {}, ran.duration_ms, ran.total_tokens, ran.error)
        if ran.success and ran.result is not None:
            for eval_fn in self.eval_fns:
                score = await eval_fn.score(ran.result.final_messages, row.get("ground_truth"), dict(row))
                if score.value is not None:
                    run.scores[eval_fn.name] = score.value
                else:
                    run.unscored[eval_fn.name] = score.reason or "the function returned no score"
        return run

    async def run_eval(
        self,
        rows: Sequence[Mapping[str, Any]],
        n_runs: int = 1,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        pass_threshold: float = 1.0,
        on_progress: Callable[[int, int, InProcessRunResult], None] | None = None,
        start_index: int = 0,
        batch_size: int = 1,
    ) -> EvalResult:
        """Run every row ``n_runs`` times, at most ``batch_size`` runs at once."""
        if n_runs < 1 or batch_size < 1:
            raise ValueError("n_runs and batch_size must be >= 1.")
        total = len(rows) * n_runs
        clients: list[LocalLLMClientProtocol] = []
        if batch_size > 1 and self.llm_client_factory is None:
            logger.warning("running one at a time: concurrent runs need an llm_client_factory")
        elif batch_size > 1 and self.llm_client_factory is not None:
            clients = [self.llm_client_factory() for _ in range(min(batch_size, total))]
        started = time.perf_counter()
        pending = product(range(len(rows)), range(n_runs))
        runs: dict[tuple[int, int], InProcessRunResult] = {}

        async def work(client: LocalLLMClientProtocol) -> None:
            runner = self._runner(client)
            for position, run_index in pending:
                run = await self.run_single(
                    rows[position], start_index + position, run_index, max_turns, completion_params, runner
                )
                runs[position, run_index] = run
                if on_progress is not None:
                    on_progress(len(runs), total, run)

        workers = [asyncio.create_task(work(client)) for client in clients or [self.llm_client]]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for client in clients:
                if hasattr(client, "close"):
                    await client.close()
        duration_ms = (time.perf_counter() - started) * 1000.0
        results = [
            EvalRowResult(start_index + position, [runs[position, run] for run in range(n_runs)])
            for position in range(len(rows))
        ]
        summaries = {}
        for name in (eval_fn.name for eval_fn in self.eval_fns):
            scores = [[run.scores.get(name) for run in row.runs] for row in results]
            summaries[name] = summarize_scores(scores, n_runs=n_runs, pass_threshold=pass_threshold)
        tokens = sum(run.tokens for run in runs.values())
        return EvalResult(results, summaries, len(rows), total, tokens, duration_ms, n_runs, pass_threshold)

    def _runner(self, client: LocalLLMClientProtocol) -> LocalRolloutRunner:
        return LocalRolloutRunner(self.agent_loop, client, self.debug, self.debug_dir)


# Names of the public SDK.
EvalRunResult = InProcessRunResult
EvalRunner = InProcessEvalRunner


def format_eval_report(result: EvalResult, console: Any = None) -> str:
    """Return the report of an evaluation as plain text; also print it if a console is given."""
    ks = sorted({k for summary in result.eval_summaries.values() for k in summary.pass_at_k})
    table = [["Eval Function", "Mean", "Min", "Max", "Std", *(f"pass@{k}" for k in ks), "Scored", "95% CI"]]
    for name, summary in result.eval_summaries.items():
        estimate, interval = summary.estimate, "-"
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            interval = f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
        numbers = [f"{value:.3f}" for value in (summary.mean, summary.min, summary.max, summary.std)]
        chances = [f"{summary.pass_at_k[k]:.1%}" for k in ks]
        scored = f"{summary.scored}/{summary.scored + summary.unscored}"
        table.append([name, *numbers, *chances, scored, interval])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "Evaluation Results:",
        f"  Rows: {result.total_rows}",
        f"  Runs per row: {result.n_runs}",
        f"  Total runs: {result.total_runs}",
        f"  Duration: {format_duration(result.total_duration_ms)}",
        f"  Total tokens: {format_tokens(result.total_tokens)}",
        "",
    ]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {' | '.join(cells).rstrip()}")
    text = "\n".join(lines)
    if console is not None:
        console.print(text)
    return text


def format_duration(duration_ms: float) -> str:
    """Return ``250ms``, ``12.3s`` or ``2m5.0s``."""
    if duration_ms < 1000:
        return f"{duration_ms:.0f}ms"
    minutes, seconds = divmod(duration_ms / 1000, 60)
    return f"{int(minutes)}m{seconds:.1f}s" if minutes else f"{seconds:.1f}s"


def format_tokens(tokens: int) -> str:
    """Return a number of tokens with thousands separators."""
    return f"{tokens:,}"

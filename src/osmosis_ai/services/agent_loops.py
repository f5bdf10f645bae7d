"""`osmosis validate`, `osmosis test` and `osmosis serve`: check an agent loop, run it on rows of a file, serve it.

A test finds problems with the options, the agent, the file and the results path before it asks the model. A probe
finds problems with the model before the first row.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import MissingExtraError, OsmosisError
from osmosis_ai.evaluation.agent_loop.inputs import (
    DEFAULT_MAX_TURNS,
    DatasetReader,
    LoopRow,
    build_completion_params,
)
from osmosis_ai.evaluation.agent_loop.runner import LocalRolloutRunner, LocalRunResult, LocalTestRunner
from osmosis_ai.rollout.cli_utils import load_agent_loop
from osmosis_ai.rollout.core.base import RolloutAgentLoop
from osmosis_ai.rollout.validator import validate_agent_loop

if TYPE_CHECKING:  # `validate` needs neither a model nor a server
    from osmosis_ai.evaluation.agent_loop.interactive import SessionTerminal
    from osmosis_ai.evaluation.hooks import RunHooks
    from osmosis_ai.llm.client import ModelClient
    from osmosis_ai.llm.providers import ModelEndpoint
    from osmosis_ai.rollout.server.serve import AgentServer, ServeOptions

TRIAL_MODEL = "osmosis/tiny"
"""The built-in model of a self-test: it needs no key and no network."""

TRIAL_TIMEOUT_S = 120.0
"""Time limit of a self-test, in seconds."""

_TRIAL_TOKENS = 32
_CALLS_AT_ONCE = 64


def validate(module: str, *, run: bool) -> dict[str, Any]:
    """Check the agent loop ``module:attribute``, and return its description for the JSON output.

    With ``run``, also run it once on :data:`TRIAL_MODEL`. The details of an error list the agent's problems.
    """
    agent = load_agent_loop(module)
    found = validate_agent_loop(agent)
    problems = {
        kind: [{"code": each.code, "message": each.message, "field": each.field} for each in listed]
        for kind, listed in (("errors", found.errors), ("warnings", found.warnings))
    }
    if not found.valid:
        many = "1 error" if len(found.errors) == 1 else f"{len(found.errors)} errors"
        lines = [f"Agent loop '{found.agent_name or module}' is not valid: {many}", *map(str, found.errors)]
        raise OsmosisError("\n  ".join(lines), details=problems)
    return {
        "valid": True,
        "agent_name": agent.name,
        "tool_count": found.tool_count,
        **problems,
        "run": _try(agent) if run else None,
    }


def _try(agent: RolloutAgentLoop) -> dict[str, Any]:
    result = asyncio.run(_run_once(agent))
    if not result.success:
        raise OsmosisError(
            f"The run of agent loop '{agent.name}' failed: {result.raised or result.error}",
            details={"errors": [{"code": "RUN_FAILED", "message": result.error, "field": "run"}]},
        )
    return {
        "model": TRIAL_MODEL,
        "model_calls": result.token_usage["num_llm_calls"],
        "finish_reason": "" if result.result is None else result.result.finish_reason,
        "duration_ms": result.duration_ms,
    }


async def _run_once(agent: RolloutAgentLoop) -> LocalRunResult:
    from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient
    from osmosis_ai.evaluation.sources import open_policy
    from osmosis_ai.llm.client import ModelClient

    row = {"system_prompt": "You are a helpful assistant.", "user_prompt": "Hello.", "ground_truth": ""}
    async with (
        open_policy(TRIAL_MODEL, os.environ, lambda _: None) as endpoint,
        ModelClient(endpoint) as client,
    ):
        runner = LocalRolloutRunner(
            agent,
            ExternalLLMClient(client=client),
            rollout_id_prefix="validation",
            request_metadata={"_validation": True},
            timeout_s=TRIAL_TIMEOUT_S,
        )
        return await runner.run_single(row, 0, max_turns=1, completion_params={"max_tokens": _TRIAL_TOKENS})


@dataclass(frozen=True, kw_only=True)
class LoopRequest:
    """The options that `osmosis test` and `osmosis eval -m` share.

    Attributes:
        module: the agent loop, as ``module:attribute``.
        base_url: an OpenAI-compatible endpoint; the model's name is passed to it unchanged.
        temperature, max_tokens: passed to the agent in ``request.completion_params``.
        batch_size: attempts at once.
        debug: write the agent's events to files.
        probe: send the model one request before the first attempt.
    """

    module: str
    dataset: Path
    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_turns: int = DEFAULT_MAX_TURNS
    temperature: float | None = None
    max_tokens: int | None = None
    limit: int | None = None
    offset: int = 0
    batch_size: int = 1
    output: Path | None = None
    debug: bool = False
    probe: bool = True

    def __post_init__(self) -> None:
        require_at_least("--batch-size", self.batch_size, 1)
        require_at_least("--max-turns", self.max_turns, 1)
        require_at_least("--max-tokens", self.max_tokens, 1)
        require_at_least("--limit", self.limit, 1)
        require_at_least("--offset", self.offset, 0)
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise OsmosisError("--temperature must be a finite number >= 0.")

    @property
    def completion_params(self) -> dict[str, Any]:
        return build_completion_params(self.temperature, self.max_tokens)

    def open_model(
        self, env: Mapping[str, str], warn: Callable[[Exception], None]
    ) -> AbstractAsyncContextManager[ModelEndpoint]:
        """Open the model, with a probe if requested; ``warn`` receives a failed probe that is no reason to stop."""
        from osmosis_ai.evaluation.agent_loop.llm_client import open_endpoint

        return open_endpoint(
            self.model, env, warn, api_key=self.api_key, base_url=self.base_url, probing=self.probe
        )


def require_at_least(option: str, value: float | None, least: int) -> None:
    if value is not None and value < least:
        raise OsmosisError(f"{option} must be >= {least}.")


@dataclass(frozen=True, kw_only=True)
class AgentTestRequest(LoopRequest):
    """The options of a test.

    Attributes:
        timeout_s: time limit of the agent for a row, in seconds.
        row: the first row of an interactive session.
    """

    timeout_s: float
    interactive: bool = False
    row: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("--row", self.row, 0)
        if self.row is not None and not self.interactive:
            raise OsmosisError("--row needs --interactive.", hint="for one row use '--offset N --limit 1'")
        if self.interactive and self.batch_size > 1:
            raise OsmosisError("--interactive runs one row at a time; leave out --batch-size.")


@dataclass(frozen=True)
class PreparedAgentTest:
    """A test whose agent is loaded and whose ``total`` rows are checked."""

    request: AgentTestRequest
    agent: RolloutAgentLoop
    reader: DatasetReader
    total: int

    @asynccontextmanager
    async def opened(self, outcome: AgentTestOutcome) -> AsyncIterator[ModelClient]:
        """Open the model; at the end, write the results file of ``outcome``."""
        from osmosis_ai.evaluation.agent_loop.eval_run import write_results
        from osmosis_ai.llm.client import ModelClient

        request, connections = self.request, max(_CALLS_AT_ONCE, self.request.batch_size)
        async with (
            request.open_model(os.environ, lambda _: None) as endpoint,
            ModelClient(endpoint, max_connections=connections) as client,
        ):
            started = time.perf_counter()
            try:
                yield client
            finally:
                outcome.duration_ms = (time.perf_counter() - started) * 1000.0
                if request.output is not None and outcome.rows:
                    write_results(request.output, outcome.to_json())


@dataclass
class AgentTestOutcome:
    """The results of the rows: the entries of the results file, and the failed rows with the reason.

    ``affected`` counts the rows with a truncated, filtered or refused reply, by that word.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    planned: int = 0
    duration_ms: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)
    affected: Counter[str] = field(default_factory=Counter)

    @property
    def passed(self) -> int:
        return sum(row["success"] for row in self.rows)

    @property
    def pending(self) -> int:
        return self.planned - len(self.rows)

    @property
    def uncounted(self) -> int:
        """The number of rows whose model did not report its tokens."""
        counts = [row["token_usage"] for row in self.rows]
        return sum(bool(count.get("num_llm_calls") and not count.get("total_tokens")) for count in counts)

    @property
    def total_tokens(self) -> int:
        return sum(row["token_usage"].get("total_tokens", 0) for row in self.rows)

    def add(self, result: LocalRunResult) -> None:
        self.rows.append(result.to_json())
        self.affected.update(result.flagged_finishes)
        if not result.success:
            self.failures.append((result.row_index, result.raised or result.error or "failed"))

    def to_json(self) -> dict[str, Any]:
        return {
            "summary": {
                "total": len(self.rows),
                "passed": self.passed,
                "failed": len(self.failures),
                "total_duration_ms": self.duration_ms,
                "total_tokens": self.total_tokens,
                **({"rows_without_tokens": self.uncounted} if self.uncounted else {}),
            },
            "results": self.rows,
        }


def prepare_agent_test(request: AgentTestRequest) -> PreparedAgentTest:
    """Load the agent and find the rows."""
    from osmosis_ai.evaluation.agent_loop.eval_run import require_writable_results

    if request.output is not None:
        require_writable_results(request.output)
    agent = load_agent_loop(request.module)
    reader = DatasetReader(request.dataset)
    # All rows are read before the first one runs, so that a bad row does not waste the model calls before it.
    total = sum(1 for _ in reader.iter_rows(request.limit, request.offset))
    if total == 0:
        raise OsmosisError(
            f"No rows to test: {request.dataset} has {len(reader)}, and --offset is {request.offset}."
        )
    return PreparedAgentTest(request, agent, reader, total)


async def run_agent_test(
    prepared: PreparedAgentTest, hooks: RunHooks, *, row_ended: Callable[[int, int, LocalRunResult], None]
) -> AgentTestOutcome:
    """Run every row; an interrupted test keeps the finished rows.

    ``row_ended`` receives the number of finished rows, the number of all rows, and the result of each row in order.
    """
    from osmosis_ai.controller.dispatcher import Dispatcher, Stop
    from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient

    request = prepared.request
    outcome = AgentTestOutcome(planned=prepared.total)
    finished: dict[int, LocalRunResult] = {}
    async with prepared.opened(outcome) as model:

        async def run_row(item: tuple[int, LoopRow]) -> bool:
            index, row = item
            runner = LocalTestRunner(
                prepared.agent, ExternalLLMClient(client=model), request.debug, timeout_s=request.timeout_s
            )
            finished[index] = await runner.run_single(
                row, index, request.max_turns, request.completion_params
            )
            # Rows are reported in order.
            while (result := finished.pop(request.offset + len(outcome.rows), None)) is not None:
                outcome.add(result)
                row_ended(len(outcome.rows), prepared.total, result)
            return True

        rows = enumerate(prepared.reader.iter_rows(request.limit, request.offset), start=request.offset)
        dispatcher = Dispatcher(rows, run_row, limit=request.batch_size)
        try:
            hooks.started(lambda: dispatcher.halt(Stop("interrupted", "interrupted")))
            stop = await dispatcher.run()
            if stop is not None and stop.error is not None:
                raise stop.error
        finally:
            hooks.ended()
            for index in sorted(finished):
                outcome.add(finished[index])
    return outcome


async def run_session(prepared: PreparedAgentTest, terminal: SessionTerminal) -> AgentTestOutcome:
    """Let the user step through rows; for a row that ran several times, the last result is kept."""
    from osmosis_ai.evaluation.agent_loop.interactive import InteractiveRunner
    from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient

    request = prepared.request
    outcome = AgentTestOutcome()
    async with prepared.opened(outcome) as model:
        session = InteractiveRunner(
            prepared.agent, ExternalLLMClient(client=model), request.debug, terminal=terminal
        )
        try:
            await session.run_session(
                lambda index: next(prepared.reader.iter_rows(1, index)),
                range(request.offset, request.offset + prepared.total),
                request.max_turns,
                request.completion_params,
                request.row,
            )
        finally:
            last = {result.row_index: result for result in session.results}
            for index in sorted(last):
                outcome.add(last[index])
            outcome.planned = len(outcome.rows)
    return outcome


def prepare(module: str, options: ServeOptions) -> AgentServer:
    """Return the server of the agent loop ``module:attribute``, bound to its port."""
    from osmosis_ai.rollout.server.serve import prepare_server

    try:
        return prepare_server(module, options)
    except ImportError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError):
            raise
        raise MissingExtraError("server", str(cause.name)) from error

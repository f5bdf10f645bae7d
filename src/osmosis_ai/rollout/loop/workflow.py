"""Run an agent loop as a rollout: map the row to a request, the calls to the run's model and the result to a sample.

Failures of the agent or an eval function use the error categories of the rollout protocol, as for workflows and
graders. The first eval function gives the reward. Without eval functions, the agent's own reward is used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ..backend.local.deadline import DeadlineExceededError
from ..backend.local.in_process import awaitable, describe
from ..types.execution import ExecutionRequest
from ..types.sample import RolloutSample
from .agent import RolloutAgentLoop, RolloutResult
from .bridge_client import BridgeLLMClient
from .context import AgentLoopContext
from .eval_functions import AGENT_SCORE, EvalFnError, EvalFnWrapper, EvalScore, finite_score
from .outcome import LoopOutcome, read_outcome
from .schemas import RolloutRequest
from .tool_schemas import InvalidToolError, check_tools

if TYPE_CHECKING:
    from ..context import RolloutContext

SETTINGS_ENV = "_OSMOSIS_AGENT_LOOP"
"""Variable that passes :class:`HostedLoopSettings` to a rollout's server as JSON."""


class HostedLoopSettings(BaseModel):
    """How a rollout's server hosts an agent loop. Defaults match a rollout directory.

    Attributes:
        eval_fns: ``module:function`` references; None uses the ``eval_fns`` of the agent's module.
        max_turns: Passed to the agent.
        max_tokens_total: Passed to the agent.
        completion_params: Passed to the agent for its calls.
        metadata: Added to every request's metadata.
        rollout_ids: Prefix of the agent's ids, as in ``eval-3-run-0``; None uses the engine's ids.
        debug_dir: Directory for the agent's events, if any.
        needs_reward: Whether an attempt without a reward counts as failed.
    """

    model_config = ConfigDict(extra="forbid")

    eval_fns: list[str] | None = None
    max_turns: int = 10
    max_tokens_total: int = 8192
    completion_params: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    rollout_ids: str | None = None
    debug_dir: str | None = None
    needs_reward: bool = True


class AgentFailedError(Exception):
    """The agent raised an exception or returned ``ctx.error``; holds its text."""


class GradingFailedError(Exception):
    """The eval function that gives the reward raised an exception."""


@dataclass(frozen=True)
class HostedLoop:
    """An agent loop and its eval functions; safe for concurrent rollouts.

    Attributes:
        agent: Runs the rollouts.
        eval_fns: Score the results.
        settings: How the agent is hosted.
    """

    agent: RolloutAgentLoop
    eval_fns: Sequence[EvalFnWrapper] = ()
    settings: HostedLoopSettings = field(default_factory=HostedLoopSettings)

    async def run(self, request: ExecutionRequest, rollout: RolloutContext) -> RolloutSample:
        """Run one rollout and return its ungraded sample.

        Args:
            request: The rollout.
            rollout: Context with the model.

        Raises:
            AgentFailedError: The agent raised or reported an error.
            TypeError, ValueError: The agent returned an invalid result.
            TimeoutError: An operation of the agent timed out.
        """
        asked = loop_request(request, rollout, self.settings)
        tools = self._tools(asked)
        context = AgentLoopContext(
            request=asked,
            tools=tools,
            llm=BridgeLLMClient(rollout, tools),
            _start_time=time.monotonic(),
            _debug_dir=self.settings.debug_dir,
        )
        running = awaitable(self.agent.run(context), "run")  # type: ignore[arg-type]
        try:
            result = await running
        except (TimeoutError, asyncio.TimeoutError):
            raise
        except Exception as error:  # any error of the user's code is the agent's failure
            raise AgentFailedError(describe(error)) from error
        return _sample_of(result, request)

    async def grade(self, request: ExecutionRequest, sample: RolloutSample) -> None:
        """Score a sample with all eval functions concurrently and set its reward.

        Each function has the grader's whole budget. A slow function does not affect the others' scores.

        Raises:
            TimeoutError, ValueError, GradingFailedError: The reward is missing, and the settings require one.
        """
        row, answer = dataset_row(request), right_answer(request)
        found = await asyncio.gather(
            *(
                function.score(sample.messages, answer, row, timeout_s=request.grader_timeout_sec)
                for function in self.eval_fns
            )
        )
        outcome = read_outcome(sample.extra_fields)
        for function, score in zip(self.eval_fns, found, strict=True):
            _keep(outcome, function.name, score)
        sample.extra_fields |= outcome.to_fields()
        sample.metrics |= outcome.scores
        sample.reward = outcome.scores.get(self.reward_name)
        if sample.reward is None and self.settings.needs_reward and found:
            _fail(self.reward_name, found[0])

    @property
    def reward_name(self) -> str:
        """Name of the score that is the reward."""
        return self.eval_fns[0].name if self.eval_fns else AGENT_SCORE

    def without_reward(self, sample: RolloutSample | None) -> str | None:
        """Return why a sample cannot be graded, or None if it can."""
        outcome = read_outcome(sample.extra_fields if sample is not None else {})
        if self.eval_fns or not self.settings.needs_reward or AGENT_SCORE in outcome.scores:
            return None
        return "nothing was graded: " + outcome.unscored.get(
            AGENT_SCORE,
            "the agent gave no reward (`ctx.complete(..., reward=...)`), and there are no `eval_fns = [...]` beside it",
        )

    def _tools(self, request: RolloutRequest) -> list[Any]:
        try:
            return check_tools(self.agent.get_tools(request), self.agent.name)
        except InvalidToolError as error:
            raise ValueError(f"Tool validation error: {error.message}") from error
        except (Exception, SystemExit) as error:  # the user's code
            raise AgentFailedError(f"`get_tools` failed: {describe(error)}") from error


def loop_request(
    request: ExecutionRequest, rollout: RolloutContext, settings: HostedLoopSettings
) -> RolloutRequest:
    """Return the agent's request for a dataset row.

    Raises:
        pydantic.ValidationError: (a ``ValueError``) The row is invalid, such as metadata beyond the limit.
    """
    where = request.extra_fields or {}
    row, attempt = where.get("source_row_index", where.get("row_index")), where.get("run_index")
    metadata: dict[str, Any] = {"ground_truth": right_answer(request)}
    if row is not None:
        metadata["row_index"] = row
    metadata |= (request.metadata or {}) | settings.metadata
    if attempt is not None:
        metadata["run_index"] = attempt
    return RolloutRequest(
        rollout_id=f"{settings.rollout_ids}-{row}-run-{attempt}" if settings.rollout_ids else request.id,
        server_url=rollout.chat_completions_url,
        messages=list(request.prompt),
        completion_params=dict(settings.completion_params),
        max_turns=settings.max_turns,
        max_tokens_total=settings.max_tokens_total,
        metadata=metadata,
        api_key=rollout.api_key,
    )


def right_answer(request: ExecutionRequest) -> str | None:
    """Return the row's ground truth: its label, or else the metadata field of that name."""
    if request.label is not None:
        return request.label
    named = (request.metadata or {}).get("ground_truth")
    return named if isinstance(named, str) and named else None


def dataset_row(request: ExecutionRequest) -> dict[str, Any]:
    """Return the dataset row: prompts, ground truth and all other columns."""
    row: dict[str, Any] = {}
    for role, column in (("system", "system_prompt"), ("user", "user_prompt")):
        said = [message.get("content") for message in request.prompt if message.get("role") == role]
        if said:
            row[column] = said[0]
    return row | {"ground_truth": right_answer(request)} | (request.metadata or {})


def _sample_of(result: Any, request: ExecutionRequest) -> RolloutSample:
    if not isinstance(result, RolloutResult):
        raise TypeError(
            "`run` must return a RolloutResult (`return ctx.complete(...)`), "
            f"but it returned {type(result).__name__}"
        )
    status = getattr(result.status, "value", result.status)
    if status == "ERROR":
        raise AgentFailedError(result.error_message or "the agent ended with an error, without saying why")
    if status != "COMPLETED":
        raise ValueError(f"the status of a RolloutResult is COMPLETED or ERROR, not {status!r}")
    outcome = LoopOutcome(str(result.finish_reason))
    if result.reward is not None:
        try:
            _keep(outcome, AGENT_SCORE, EvalScore(finite_score(result.reward)))
        except EvalFnError:
            _keep(
                outcome,
                AGENT_SCORE,
                EvalScore(reason=f"the agent's reward is not a finite number: {result.reward!r:.60}"),
            )
    return RolloutSample(
        messages=result.final_messages, label=request.label, extra_fields=outcome.to_fields()
    )


def _keep(outcome: LoopOutcome, name: str, score: EvalScore) -> None:
    if score.value is not None:
        outcome.scores[name] = score.value
    else:
        outcome.unscored[name] = score.reason or "it gave no score"


def _fail(name: str, score: EvalScore) -> None:
    words = f"eval function '{name}': {score.reason}"
    if isinstance(score.error, DeadlineExceededError):
        raise TimeoutError(words)
    raise (ValueError if isinstance(score.error, EvalFnError) else GradingFailedError)(words)

"""Run an agent loop behind the rollout server, for controllers of workflows.

A dataset row becomes the agent's request, its model is the rollout's endpoint, and its result becomes a sample. The
first eval function gives the reward; without eval functions, the agent's own reward is used.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .backend import DeadlineExceededError, InProcessBackend, active_rollout, awaitable, describe
from .cli_utils import AGENT_NAME, APP_NAME, EVAL_FNS_NAME, load_agent_loop
from .client import BridgeLLMClient
from .context import rollout_contextvar
from .core.base import AgentLoopContext, RolloutAgentLoop, RolloutResult
from .core.exceptions import AgentLoopLoadError
from .core.schemas import RolloutRequest
from .eval_functions import (
    AGENT_SCORE,
    EvalFnError,
    EvalFnWrapper,
    finite_score,
    load_eval_fns,
    wrap_eval_fns,
)
from .extra_fields import LoopOutcome, read_outcome
from .tools import InvalidToolError, check_tools
from .types import ExecutionRequest, RolloutSample

if TYPE_CHECKING:
    from .context import RolloutContext

SETTINGS_ENV = "_OSMOSIS_AGENT_LOOP"  # HostedLoopSettings as JSON


class HostedLoopSettings(BaseModel):
    """How a rollout's server hosts an agent loop. Defaults match a rollout directory.

    Without ``eval_fns`` (``module:function`` references), the ``eval_fns`` of the agent's module score. ``rollout_ids`` is the
    prefix of the agent's ids, as in ``eval-3-run-0``. With ``needs_reward``, an attempt without a reward fails.
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


class AgentLoopBackend(InProcessBackend):
    """Runs an agent loop in this process. Only the controller limits concurrency."""

    agent_word: ClassVar[str] = "agent"

    def __init__(
        self,
        agent: RolloutAgentLoop,
        eval_fns: Sequence[EvalFnWrapper] = (),
        settings: HostedLoopSettings | None = None,
    ) -> None:
        super().__init__(max_concurrent=None)
        self.agent = agent
        self.eval_fns = eval_fns
        self.settings = settings or HostedLoopSettings()

    async def produce(self, request: ExecutionRequest) -> RolloutSample:
        with active_rollout(request.id) as rollout:
            loop_request = self._request(request, rollout)
            tools = self._tools(loop_request)
            context = AgentLoopContext(
                request=loop_request,
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
                raise RuntimeError(describe(error)) from error
            return _sample(result, request.label)

    def _request(self, request: ExecutionRequest, rollout: RolloutContext) -> RolloutRequest:
        """Return the agent's request for a dataset row. Raises pydantic's ValidationError, a ValueError."""
        settings, extra_fields = self.settings, request.extra_fields or {}
        row = extra_fields.get("source_row_index", extra_fields.get("row_index"))
        attempt = extra_fields.get("run_index")
        metadata: dict[str, Any] = {"ground_truth": _ground_truth(request)}
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

    def _tools(self, request: RolloutRequest) -> list[Any]:
        try:
            return check_tools(self.agent.get_tools(request), self.agent.name)
        except InvalidToolError as error:
            raise ValueError(f"Tool validation error: {error.message}") from error
        except (Exception, SystemExit) as error:  # the user's code
            raise RuntimeError(f"`get_tools` failed: {describe(error)}") from error

    async def judge(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        """Score a sample with all eval functions concurrently and set its reward.

        Each function has the grader's whole budget. A slow function does not affect the others' scores.
        """
        # A function's model calls must never be recorded as the policy's.
        rollout_contextvar.set(None)
        if sample is None:
            return
        answer, row = _ground_truth(request), _dataset_row(request)
        scores = await asyncio.gather(
            *(
                function.score(sample.messages, answer, row, timeout_s=request.grader_timeout_sec)
                for function in self.eval_fns
            )
        )
        outcome = read_outcome(sample.extra_fields)
        for function, score in zip(self.eval_fns, scores, strict=True):
            if score.value is not None:
                outcome.scores[function.name] = score.value
            else:
                outcome.unscored[function.name] = score.reason or "it gave no score"
        sample.extra_fields |= outcome.to_fields()
        sample.metrics |= outcome.scores
        reward_name = self.eval_fns[0].name if self.eval_fns else AGENT_SCORE
        sample.reward = outcome.scores.get(reward_name)
        if sample.reward is None and self.settings.needs_reward and scores:
            message = f"eval function '{reward_name}': {scores[0].reason}"
            if isinstance(scores[0].error, DeadlineExceededError):
                raise TimeoutError(message)
            raise (ValueError if isinstance(scores[0].error, EvalFnError) else RuntimeError)(message)

    def ungradable(self, request: ExecutionRequest, sample: RolloutSample | None) -> str | None:
        outcome = read_outcome(sample.extra_fields if sample is not None else {})
        if self.eval_fns or not self.settings.needs_reward or AGENT_SCORE in outcome.scores:
            return None
        return "nothing was graded: " + outcome.unscored.get(
            AGENT_SCORE,
            "the agent gave no reward (`ctx.complete(..., reward=...)`), and its module has no `eval_fns = [...]`",
        )

    def grading_budget_s(self, request: ExecutionRequest) -> float | None:
        return None  # each eval function enforces the budget itself


def _ground_truth(request: ExecutionRequest) -> str | None:
    """Return the row's ground truth: its label, or else the metadata field of that name."""
    if request.label is not None:
        return request.label
    stored = (request.metadata or {}).get("ground_truth")
    return stored if isinstance(stored, str) and stored else None


def _dataset_row(request: ExecutionRequest) -> dict[str, Any]:
    """Return the dataset row: prompts, ground truth and all other columns."""
    row: dict[str, Any] = {}
    for role, column in (("system", "system_prompt"), ("user", "user_prompt")):
        contents = [message.get("content") for message in request.prompt if message.get("role") == role]
        if contents:
            row[column] = contents[0]
    return row | {"ground_truth": _ground_truth(request)} | (request.metadata or {})


def _sample(result: Any, label: str | None) -> RolloutSample:
    if not isinstance(result, RolloutResult):
        raise TypeError(
            "`run` must return a RolloutResult (`return ctx.complete(...)`), "
            f"but it returned {type(result).__name__}"
        )
    status = getattr(result.status, "value", result.status)
    if status == "ERROR":
        raise RuntimeError(result.error_message or "the agent ended with an error without a message")
    if status != "COMPLETED":
        raise ValueError(f"the status of a RolloutResult is COMPLETED or ERROR, not {status!r}")
    outcome = LoopOutcome(str(result.finish_reason))
    if result.reward is not None:
        try:
            outcome.scores[AGENT_SCORE] = finite_score(result.reward)
        except EvalFnError:
            reason = f"the agent's reward is not a finite number: {result.reward!r:.60}"
            outcome.unscored[AGENT_SCORE] = reason
    return RolloutSample(messages=result.final_messages, label=label, extra_fields=outcome.to_fields())


def serve_reference(reference: str) -> None:
    """Serve the agent named by ``module:attribute`` until the process is asked to stop."""
    agent = load_agent_loop(reference)
    _serve(agent, sys.modules[reference.rpartition(":")[0]])


def serve_entrypoint(entrypoint: Path) -> None:
    """Serve the agent of a rollout directory's entrypoint, imported under its own name instead of ``__main__``."""
    name = entrypoint.stem
    spec = importlib.util.spec_from_file_location(name, entrypoint)
    if spec is None or spec.loader is None:
        raise AgentLoopLoadError(f"{entrypoint.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _serve(agent_of(module, entrypoint.name), module)


def agent_of(module: ModuleType, shown: str) -> RolloutAgentLoop:
    """Return a module's ``agent_loop``, or else the agent its ``app`` was created from."""
    if hasattr(module, AGENT_NAME):
        return load_agent_loop(f"{module.__name__}:{AGENT_NAME}")
    state = getattr(getattr(module, APP_NAME, None), "state", None)
    agent: RolloutAgentLoop | None = getattr(state, AGENT_NAME, None)
    if agent is None:
        raise AgentLoopLoadError(
            f"{shown} holds no agent: neither `{AGENT_NAME} = …` nor `{APP_NAME} = create_app(…)`"
        )
    return agent


def read_settings(environ: Mapping[str, str]) -> HostedLoopSettings:
    """Read the hosting settings from the variable ``_OSMOSIS_AGENT_LOOP``."""
    try:
        return HostedLoopSettings.model_validate_json(environ.get(SETTINGS_ENV) or "{}")
    except ValidationError as error:
        raise AgentLoopLoadError(f"`{SETTINGS_ENV}` is invalid: {describe(error)}") from error


def module_backend(
    agent: RolloutAgentLoop, module: ModuleType, settings: HostedLoopSettings
) -> AgentLoopBackend:
    """Combine an agent with the eval functions of its settings, or else of its module."""
    if settings.eval_fns is not None:
        return AgentLoopBackend(agent, load_eval_fns(settings.eval_fns), settings)
    return AgentLoopBackend(agent, wrap_eval_fns(getattr(module, EVAL_FNS_NAME, ())), settings)


def _serve(agent: RolloutAgentLoop, module: ModuleType) -> None:
    import uvicorn

    from .server import create_rollout_server

    app = create_rollout_server(backend=module_backend(agent, module, read_settings(os.environ)))
    host, port = os.environ["_OSMOSIS_ROLLOUT_HOST"], int(os.environ["_OSMOSIS_ROLLOUT_PORT"])
    uvicorn.run(app, host=host, port=port, log_level="warning")

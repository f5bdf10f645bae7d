"""Serve an agent loop through the rollout server, for drivers of workflows.

An agent is named by ``module:attribute`` (classic commands) or by an entrypoint of a rollout directory
(:mod:`.entrypoints`). An entrypoint is imported under its own name, so that its
``if __name__ == "__main__":`` block does not run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from pydantic import ValidationError

from ..backend.local.in_process import InProcessBackend, active_rollout, describe
from ..context import rollout_contextvar
from .entrypoints import AGENT_NAME, APP_NAME, EVAL_FNS_NAME
from .exceptions import AgentLoopLoadError
from .workflow import SETTINGS_ENV, HostedLoop, HostedLoopSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..types.execution import ExecutionRequest
    from ..types.sample import RolloutSample
    from .agent import RolloutAgentLoop

_APP_AGENT = "agent_loop"


class AgentLoopBackend(InProcessBackend):
    """Runs an agent loop in this process. Only the controller limits concurrency."""

    agent_word: ClassVar[str] = "agent"

    def __init__(self, loop: HostedLoop) -> None:
        super().__init__(max_concurrent=None)
        self.loop = loop

    async def produce(self, request: ExecutionRequest) -> RolloutSample:
        """Run the agent and return its sample."""
        with active_rollout(request.id) as rollout:
            return await self.loop.run(request, rollout)

    async def judge(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        """Run the eval functions on the sample."""
        # A function's model calls must never be recorded as the policy's.
        rollout_contextvar.set(None)
        if sample is not None:
            await self.loop.grade(request, sample)

    def ungradable(self, request: ExecutionRequest, sample: RolloutSample | None) -> str | None:
        """Return why a finished rollout cannot be graded, or None if it can."""
        return self.loop.without_reward(sample)

    def grading_budget_s(self, request: ExecutionRequest) -> float | None:
        """Each eval function enforces the budget itself, so that a slow one does not affect the others' scores."""
        return None


def serve_reference(reference: str) -> None:
    """Serve the agent named by ``module:attribute`` until the process is asked to stop.

    Raises:
        OsmosisError: The agent, an eval function or the settings are invalid.
    """
    from .loading import load_agent_loop

    agent = load_agent_loop(reference)
    _serve(agent, sys.modules[reference.rpartition(":")[0]])


def serve_entrypoint(entrypoint: Path) -> None:
    """Serve the agent of a rollout directory's entrypoint. Raises like :func:`serve_reference`."""
    module = _imported(entrypoint)
    _serve(agent_of(module, entrypoint.name), module)


def agent_of(module: ModuleType, shown: str) -> RolloutAgentLoop:
    """Return a module's ``agent_loop``, or else the agent its ``app`` was created from.

    Args:
        module: The entrypoint's module.
        shown: Its name in errors.

    Raises:
        AgentLoopLoadError: The module has no agent.
    """
    from .loading import load_agent_loop

    if hasattr(module, AGENT_NAME):
        return load_agent_loop(f"{module.__name__}:{AGENT_NAME}")
    served = getattr(getattr(module, APP_NAME, None), "state", None)
    found: RolloutAgentLoop | None = getattr(served, _APP_AGENT, None)
    if found is None:
        raise AgentLoopLoadError(
            f"{shown} holds no agent: neither `{AGENT_NAME} = …` nor `{APP_NAME} = create_app(…)`"
        )
    return found


def read_settings(environ: Mapping[str, str]) -> HostedLoopSettings:
    """Read the hosting settings from the variable ``_OSMOSIS_AGENT_LOOP``.

    Raises:
        AgentLoopLoadError: The value is invalid.
    """
    try:
        return HostedLoopSettings.model_validate_json(environ.get(SETTINGS_ENV) or "{}")
    except ValidationError as error:
        raise AgentLoopLoadError(f"`{SETTINGS_ENV}` cannot be read: {describe(error)}") from error


def hosted_loop(agent: RolloutAgentLoop, module: ModuleType, settings: HostedLoopSettings) -> HostedLoop:
    """Combine an agent with the eval functions of its settings, or else of its module.

    Raises:
        EvalFnError: An eval function is invalid.
    """
    from .eval_functions import load_eval_fns, wrap_eval_fns

    if settings.eval_fns is not None:
        return HostedLoop(agent, load_eval_fns(settings.eval_fns), settings)
    return HostedLoop(agent, wrap_eval_fns(getattr(module, EVAL_FNS_NAME, ())), settings)


def rollout_app(loop: HostedLoop) -> FastAPI:
    """Return the application that serves an agent to a controller of workflows."""
    from ..server import create_rollout_server

    return create_rollout_server(backend=AgentLoopBackend(loop))


def _serve(agent: RolloutAgentLoop, module: ModuleType) -> None:
    import uvicorn

    app = rollout_app(hosted_loop(agent, module, read_settings(os.environ)))
    host, port = os.environ["_OSMOSIS_ROLLOUT_HOST"], int(os.environ["_OSMOSIS_ROLLOUT_PORT"])
    uvicorn.run(app, host=host, port=port, log_level="warning")


def _imported(entrypoint: Path) -> ModuleType:
    """Import a file under its own name, even if that is not a valid module name."""
    name = entrypoint.stem
    spec = importlib.util.spec_from_file_location(name, entrypoint)
    if spec is None or spec.loader is None:
        raise AgentLoopLoadError(f"{entrypoint.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

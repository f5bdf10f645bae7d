"""Validate an agent loop's name, tools and ``run`` method without running it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .cli_utils import describe_failure
from .core.exceptions import OsmosisRolloutError
from .core.schemas import RolloutRequest
from .tools import tool_problems


@dataclass
class ValidationError:
    """One validation problem with a documented code; ``details`` is machine-readable."""

    code: str
    message: str
    field: str | None = None
    details: dict[str, Any] | None = None

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"[{self.code}] {where}{self.message}"


class AgentLoopValidationError(OsmosisRolloutError):
    """An agent loop is invalid; see ``errors``."""

    def __init__(self, errors: list[ValidationError]) -> None:
        listed = "; ".join(str(error) for error in errors)
        super().__init__(f"the agent loop has {len(errors)} error(s): {listed}")
        self.errors = errors


@dataclass
class ValidationResult:
    """Result of a validation; truthy if the agent loop can be run."""

    valid: bool
    errors: list[ValidationError] = field(default_factory=list)
    warnings: list[ValidationError] = field(default_factory=list)
    agent_name: str | None = None
    tool_count: int = 0

    def __bool__(self) -> bool:
        return self.valid

    def raise_if_invalid(self) -> None:
        """Raise :class:`AgentLoopValidationError` if there are errors."""
        if not self.valid:
            raise AgentLoopValidationError(self.errors)


def validate_agent_loop(agent_loop: Any, *, request: RolloutRequest | None = None) -> ValidationResult:
    """Validate an agent loop without running it.

    Args:
        agent_loop: An object of any type.
        request: Argument for ``get_tools`` (default: a request with a greeting).
    """
    tools, tool_errors = _tools(agent_loop, request or _example_request())
    errors = [*_name_errors(agent_loop), *tool_errors]
    warnings: list[ValidationError] = []
    for index, tool in enumerate(tools):
        for problem in tool_problems(tool, f"tools[{index}]"):
            found = ValidationError(problem.code, problem.message, problem.field, {"tool_index": index})
            (errors if problem.is_error else warnings).append(found)
    errors += _run_errors(agent_loop)
    name = getattr(agent_loop, "name", None)
    return ValidationResult(
        valid=not errors,
        errors=errors,
        warnings=warnings,
        agent_name=name if isinstance(name, str) else None,
        tool_count=len(tools),
    )


def _example_request() -> RolloutRequest:
    return RolloutRequest(
        rollout_id="validation-test-rollout",
        server_url="http://localhost:8080",
        messages=[{"role": "user", "content": "Hello"}],
        completion_params={},
        metadata={"_validation": True},
    )


def _name_errors(agent_loop: Any) -> Iterator[ValidationError]:
    name = getattr(agent_loop, "name", None)
    if name is None:
        yield ValidationError("MISSING_NAME", "the agent loop has no 'name'", "name")
    elif not isinstance(name, str):
        yield ValidationError("INVALID_NAME_TYPE", f"the name is a text, not {type(name).__name__}", "name")
    elif not name.strip():
        yield ValidationError("EMPTY_NAME", "the name is empty", "name")


def _tools(agent_loop: Any, request: RolloutRequest) -> tuple[list[Any], list[ValidationError]]:
    """Return the agent's tools, or the problem that prevents reading them."""
    try:
        tools = agent_loop.get_tools(request)
    except (Exception, SystemExit) as error:
        code, message = "GET_TOOLS_EXCEPTION", f"get_tools raised {describe_failure(error)}"
    else:
        if isinstance(tools, list):
            return tools, []
        code, message = "GET_TOOLS_INVALID_TYPE", f"get_tools returns a list, not {type(tools).__name__}"
        if tools is None:
            code = "GET_TOOLS_RETURNS_NONE"
            message = "get_tools returned None; return [] when there are no tools"
        if inspect.iscoroutine(tools):
            tools.close()
    return [], [ValidationError(code, message, "get_tools")]


def _run_errors(agent_loop: Any) -> Iterator[ValidationError]:
    run = getattr(agent_loop, "run", None)
    if run is None:
        yield ValidationError("MISSING_RUN_METHOD", "the agent loop has no 'run' method", "run")
    elif not callable(run):
        yield ValidationError("RUN_NOT_CALLABLE", f"'run' is {type(run).__name__}, no method", "run")
    elif not inspect.iscoroutinefunction(run) and not inspect.iscoroutinefunction(type(run).__call__):
        yield ValidationError("RUN_NOT_ASYNC", "'run' is not async: write `async def run(self, ctx)`", "run")

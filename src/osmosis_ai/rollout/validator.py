"""Validate an agent loop's name, tools and ``run`` method without running it."""

from __future__ import annotations

import inspect
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
    errors: list[ValidationError] = []
    warnings: list[ValidationError] = []
    tools: list[Any] = []

    def add(field: str, code: str, message: str) -> None:
        errors.append(ValidationError(code, message, field))

    name = getattr(agent_loop, "name", None)
    if name is None:
        add("name", "MISSING_NAME", "the agent loop has no 'name'")
    elif not isinstance(name, str):
        add("name", "INVALID_NAME_TYPE", f"the name must be a string, not {type(name).__name__}")
    elif not name.strip():
        add("name", "EMPTY_NAME", "the name is empty")
    example = RolloutRequest(
        rollout_id="validation-test-rollout",
        server_url="http://localhost:8080",
        messages=[{"role": "user", "content": "Hello"}],
        completion_params={},
        metadata={"_validation": True},
    )
    try:
        found = agent_loop.get_tools(request or example)
    except (Exception, SystemExit) as error:
        add("get_tools", "GET_TOOLS_EXCEPTION", f"get_tools raised {describe_failure(error)}")
    else:
        if isinstance(found, list):
            tools = found
        elif found is None:
            message = "get_tools returned None; return [] when there are no tools"
            add("get_tools", "GET_TOOLS_RETURNS_NONE", message)
        else:
            message = f"get_tools must return a list, not {type(found).__name__}"
            add("get_tools", "GET_TOOLS_INVALID_TYPE", message)
        if inspect.iscoroutine(found):
            found.close()
    for index, tool in enumerate(tools):
        for problem in tool_problems(tool, f"tools[{index}]"):
            described = ValidationError(problem.code, problem.message, problem.field, {"tool_index": index})
            (errors if problem.is_error else warnings).append(described)
    run = getattr(agent_loop, "run", None)
    if run is None:
        add("run", "MISSING_RUN_METHOD", "the agent loop has no 'run' method")
    elif not callable(run):
        add("run", "RUN_NOT_CALLABLE", f"'run' must be a method, not {type(run).__name__}")
    elif not inspect.iscoroutinefunction(run) and not inspect.iscoroutinefunction(type(run).__call__):
        add("run", "RUN_NOT_ASYNC", "'run' is not async: write `async def run(self, ctx)`")
    return ValidationResult(
        valid=not errors,
        errors=errors,
        warnings=warnings,
        agent_name=name if isinstance(name, str) else None,
        tool_count=len(tools),
    )

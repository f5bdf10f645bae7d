"""Tool checks and conversions shared by validation, serving, tests and evaluation.

A tool is a schema or a dict of the same shape. Both are checked as the dict sent to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from .exceptions import OsmosisRolloutError

if TYPE_CHECKING:
    from .schemas import OpenAIFunctionToolSchema

# OpenAI and compatible providers allow hyphens.
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class InvalidToolError(OsmosisRolloutError):
    """A tool that cannot be offered to a model."""


@dataclass(frozen=True)
class ToolProblem:
    """A problem of a tool.

    Attributes:
        code: A code of ``osmosis validate``.
        message: The problem.
        field: Its location, such as ``tools[0].function.name``.
        is_error: False for a warning.
    """

    code: str
    message: str
    field: str
    is_error: bool = True


def tool_problems(tool: object, field: str = "tool") -> list[ToolProblem]:
    """Return the errors and warnings of a tool.

    Args:
        tool: A schema or a dict.
        field: Its name in messages.
    """
    from .schemas import OpenAIFunctionToolSchema

    is_model = isinstance(tool, BaseModel)
    if not is_model and not isinstance(tool, Mapping):
        told = f"a tool is an OpenAIFunctionToolSchema or a dict, not {type(tool).__name__}"
        return [ToolProblem("INVALID_TOOL_TYPE", told, field)]
    payload = tool_payload(tool)
    found = list(_problems(payload, field, is_model))
    is_read = isinstance(tool, OpenAIFunctionToolSchema)
    if not is_read and not any(problem.is_error for problem in found):
        found += _shape_problems(payload, field)
    return found


def check_tools(tools: object, agent_name: str = "the agent") -> list[Any]:
    """Return the result of ``get_tools`` after checking that it can be offered to a model.

    Raises:
        InvalidToolError: It is not a list, or a tool has an error. The message names the first one.
    """
    if not isinstance(tools, list):
        given = "None" if tools is None else type(tools).__name__
        raise InvalidToolError(f"get_tools of '{agent_name}' returned {given}; it must return a list")
    for index, tool in enumerate(tools):
        for problem in tool_problems(tool, f"tools[{index}]"):
            if problem.is_error:
                raise InvalidToolError(f"{problem.field}: {problem.message}")
    return tools


def normalize_tools(tools: Sequence[object]) -> list[OpenAIFunctionToolSchema]:
    """Convert tools to schemas. A dict keeps its keys, and a missing description becomes empty.

    Raises:
        InvalidToolError: An item is not a tool.
    """
    from .schemas import OpenAIFunctionToolSchema

    return [
        tool if isinstance(tool, OpenAIFunctionToolSchema) else _as_schema(tool_payload(tool))
        for tool in check_tools(list(tools))
    ]


def tool_payloads(tools: Sequence[object]) -> list[dict[str, Any]]:
    """Convert tools to the JSON sent to a model, without unset fields.

    Raises:
        InvalidToolError: An item is not a tool.
    """
    return [tool_payload(tool) for tool in check_tools(list(tools))]


def tool_payload(tool: object) -> dict[str, Any]:
    """Convert one tool to the JSON sent to a model, without checking it."""
    if isinstance(tool, BaseModel):
        return _set_fields(tool)
    return {
        str(key): _set_fields(value) if isinstance(value, BaseModel) else value
        for key, value in dict(tool).items()  # type: ignore[call-overload]
    }


def _set_fields(model: BaseModel) -> dict[str, Any]:
    """Dump a schema without declared fields that are None. Other nulls are part of the user's JSON Schema."""
    dumped = model.model_dump(mode="json")

    def without_none(part: BaseModel, written: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in written.items():
            source = getattr(part, name, None)
            if value is None and name in type(part).model_fields:
                continue
            if isinstance(source, BaseModel):
                value = without_none(source, value)
            elif isinstance(source, dict) and isinstance(value, dict):
                value = {
                    key: without_none(source[key], item) if isinstance(source.get(key), BaseModel) else item
                    for key, item in value.items()
                }
            kept[name] = value
        return kept

    return without_none(model, dumped)


def _as_schema(payload: dict[str, Any]) -> OpenAIFunctionToolSchema:
    """Parse a tool's dict.

    Raises:
        pydantic.ValidationError: A field has another shape.
    """
    from .schemas import OpenAIFunctionToolSchema

    function = {key: value for key, value in payload["function"].items() if value is not None}
    function.setdefault("description", "")
    return OpenAIFunctionToolSchema.model_validate({**payload, "function": function})


def _shape_problems(payload: dict[str, Any], field: str) -> list[ToolProblem]:
    """Return the problems that prevent serving a tool, since the reply to ``init`` holds it as a schema."""
    try:
        _as_schema(payload)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (field, *first["loc"]))
        code = "INVALID_PARAMETERS_TYPE" if "parameters" in first["loc"] else "INVALID_FUNCTION_TYPE"
        return [ToolProblem(code, f"{first['msg'][0].lower()}{first['msg'][1:]}", where)]
    return []


def _problems(tool: dict[str, Any], field: str, is_model: bool) -> Iterator[ToolProblem]:
    if not tool.get("type"):
        yield ToolProblem("MISSING_TOOL_TYPE", "missing 'type' (usually \"function\")", field)
    elif tool["type"] != "function":
        told = f'type {tool["type"]!r} is not "function"; most models know no other'
        yield ToolProblem("UNKNOWN_TOOL_TYPE", told, f"{field}.type", is_error=False)
    if tool.get("function") is None:
        yield ToolProblem("MISSING_FUNCTION", "missing 'function'", field)
    elif not isinstance(tool["function"], Mapping):
        told = f"'function' is a dict, not {type(tool['function']).__name__}"
        yield ToolProblem("INVALID_FUNCTION_TYPE", told, f"{field}.function")
    else:
        yield from _function_problems(tool["function"], f"{field}.function", is_model)


def _function_problems(function: Mapping[str, Any], field: str, is_model: bool) -> Iterator[ToolProblem]:
    name = function.get("name")
    if name is None:
        yield ToolProblem("MISSING_FUNCTION_NAME", "missing 'name'", field)
    elif not isinstance(name, str) or not name.strip():
        yield ToolProblem("INVALID_FUNCTION_NAME", "the name is a text that is not empty", f"{field}.name")
    elif not _FUNCTION_NAME.fullmatch(name):
        told = f"name {name!r} must start with letter/underscore, and hold these, digits and hyphens alone"
        yield ToolProblem("INVALID_FUNCTION_NAME", told, f"{field}.name")
    if not function.get("description") and not is_model:
        told = "missing 'description'; it is how the model knows what the tool is for"
        yield ToolProblem("MISSING_FUNCTION_DESCRIPTION", told, f"{field}.description", is_error=False)
    parameters = function.get("parameters")
    if parameters is None:
        return
    where = f"{field}.parameters"
    if not isinstance(parameters, Mapping):
        told = f"'parameters' is a dict, not {type(parameters).__name__}"
        yield ToolProblem("INVALID_PARAMETERS_TYPE", told, where)
    elif parameters.get("type", "object") != "object":
        # A dict is sent unchanged, to a provider that may accept more than OpenAI's shape. A schema must have that shape.
        told = f"parameters.type must be 'object', not {parameters['type']!r}"
        yield ToolProblem("PARAMETERS_TYPE_NOT_OBJECT", told, f"{where}.type", is_error=is_model)

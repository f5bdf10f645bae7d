"""Parse tool calls, run them concurrently and format their results as messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from .exceptions import ToolArgumentError

if TYPE_CHECKING:
    from ..types.sample import MessageDict

UNKNOWN_CALL_ID = "unknown"


def create_tool_result(tool_call_id: str, content: str) -> MessageDict:
    """Return the message with a tool's result."""
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> MessageDict:
    """Return the message that reports a tool's failure to the model."""
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: Any) -> str:
    """Convert a tool's result to text: strings and numbers unchanged, everything else as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, int | float) and not isinstance(result, bool):
        return str(result)
    return json.dumps(result, ensure_ascii=False, default=str)


def parse_tool_arguments(arguments: Any) -> dict[str, Any]:
    """Parse the arguments of a call, which models write as a JSON object in a string.

    An empty string means no arguments.

    Raises:
        ToolArgumentError: The arguments are not a JSON object.
    """
    if isinstance(arguments, dict):
        return arguments
    if isinstance(arguments, str) and not arguments.strip():
        return {}
    if not isinstance(arguments, str):
        raise ToolArgumentError(f"Expected str or dict as tool arguments, got {type(arguments).__name__}")
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolArgumentError(f"Invalid JSON in tool arguments: {error}") from error
    if not isinstance(read, dict):
        raise ToolArgumentError(f"Expected dict as tool arguments, got {type(read).__name__}")
    return read


def get_tool_call_info(tool_call: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return a call's id, tool name and arguments.

    Raises:
        ToolArgumentError: The arguments are invalid. The error has the call's id and the tool's name.
    """
    call_id = tool_call.get("id") or UNKNOWN_CALL_ID
    function = tool_call.get("function") or {}
    name = function.get("name") or ""
    try:
        return call_id, name, parse_tool_arguments(function.get("arguments") or "{}")
    except ToolArgumentError as error:
        raise ToolArgumentError(str(error), tool_call_id=call_id, tool_name=name) from error


async def execute_tool_calls(
    tool_calls: Sequence[dict[str, Any]],
    executor: Callable[[dict[str, Any]], Awaitable[MessageDict]],
) -> list[MessageDict]:
    """Run calls concurrently and return their messages in the order of the calls.

    Args:
        tool_calls: The model's calls.
        executor: Runs one call and returns its message. Its exceptions propagate.
    """
    return list(await asyncio.gather(*(executor(call) for call in tool_calls)))

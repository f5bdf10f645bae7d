"""Conversations for supervised fine-tuning: `messages` of OpenAI's chat format and, optionally, the `tools` on offer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_ai.datasets.readers import Record, decode_json, name_of_type, open_reader, raise_for
from osmosis_ai.inference.protocol import OpenAIError, parse_request

CONVERSATION_COLUMNS = MESSAGES_COLUMN, TOOLS_COLUMN = "messages", "tools"


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation with at least one assistant turn; messages and tools as chat templates take them.

    ``place`` is where a file has it, such as ``line 3``.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    place: str | None = None

    @property
    def prompt(self) -> str:
        """The messages before the first assistant turn, as a key: conversations about one task share it."""
        roles = [message["role"] for message in self.messages]
        return json.dumps(self.messages[: roles.index("assistant")], sort_keys=True)


def iter_conversations(path: Path) -> Iterator[ConversationRow]:
    """Yield the conversations of a dataset file; raises OsmosisError at the first row that is none."""
    reader = open_reader(
        path, report=raise_for(path), only=CONVERSATION_COLUMNS, uniform=False, as_written=False
    )
    for number, record in reader:
        try:
            yield replace(read_conversation_row(record), place=f"{reader.unit} {number}")
        except ValueError as error:
            reader.report_at(number, str(error))


def read_conversation_row(record: Record) -> ConversationRow:
    """Return the conversation of a record; raises ValueError."""
    if not isinstance(record, dict) or MESSAGES_COLUMN not in record:
        raise ValueError(f"the column '{MESSAGES_COLUMN}' is missing")
    messages, tools = (_decoded(record.get(column)) for column in CONVERSATION_COLUMNS)
    if not isinstance(messages, list):
        raise ValueError(f"'{MESSAGES_COLUMN}' must be an array, found {name_of_type(messages)}")
    _write_arguments(messages)
    try:
        # The requests of served models follow the same rules, so that both read the same prompts.
        request = parse_request({"model": "", "messages": messages, "tools": tools or None})
    except OpenAIError as error:
        raise ValueError(str(error).rstrip(".")) from None
    if not any(message.role == "assistant" for message in request.messages):
        raise ValueError("the conversation has no assistant turn")
    return ConversationRow(request.template_messages(), request.offered_tools)


def _decoded(value: Any) -> Any:
    try:
        return decode_json(value) if isinstance(value, str) and value.strip() else value
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg}") from None


def _write_arguments(value: Any) -> None:
    """Write the arguments of calls as JSON text, as OpenAI does, where ``value`` has them as objects."""
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            _write_arguments(item.get("tool_calls"))
            function = item.get("function")
            if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)

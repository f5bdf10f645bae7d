"""Map other dataset formats to ours: which column is the prompt, expected answer, system prompt or metadata.

A mapping assigns columns to our fields. A column is a name in the file, or a path (``reward_model.ground_truth``).
Guesses use only the first record and the column names of published datasets; values are not interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, cast

from osmosis_ai.datasets.readers import METADATA_COLUMN, Record, WrittenFloat, decode_as_written, quote_names
from osmosis_ai.datasets.rows import PROMPT_COLUMN, SYSTEM_COLUMN, as_text

Field = Literal["prompt", "ground_truth", "system", "metadata"]
ColumnMapping = Mapping[Field, Sequence[str]]

FIELDS: tuple[Field, ...] = ("prompt", "ground_truth", "system", "metadata")
OUTPUT_COLUMNS: Mapping[Field, str] = {
    "system": SYSTEM_COLUMN,
    "prompt": PROMPT_COLUMN,
    "ground_truth": "ground_truth",
    "metadata": METADATA_COLUMN,
}
_SYNONYMS: Mapping[str, Field] = {
    PROMPT_COLUMN: "prompt",
    "messages": "prompt",
    SYSTEM_COLUMN: "system",
    "label": "ground_truth",
    "answer": "ground_truth",
}
# In order of preference. A list of messages counts as a prompt under any of these names.
_PROMPT_NAMES = (
    *("user_prompt", "prompt", "question", "problem", "query", "instruction", "task", "input"),
    *("messages", "conversations", "conversation", "goal", "text"),
)
_GROUND_TRUTH_NAMES = (
    *("ground_truth", "reward_model.ground_truth", "label", "expected_answer", "final_answer", "answer"),
    *("target", "ideal", "expected", "expected_output", "reference_answer", "reference", "gold"),
    *("solution", "output", "response", "completion"),
)
_SYSTEM_NAMES = ("system_prompt", "system", "system_message")
_DEEPEST = 100
"""The maximum nesting of metadata: deeper than real data, less than JSON writers support."""
_MISSING = object()
_METADATA_NAMES = ("metadata", "extra_info")


def parse_mapping(words: Iterable[str]) -> ColumnMapping:
    """Parse ``prompt=question,ground_truth=answer``; ``+`` joins columns."""
    mapping: dict[Field, Sequence[str]] = {}
    for part in filter(None, (part.strip() for word in words for part in word.split(","))):
        name, _, columns = (side.strip() for side in part.partition("="))
        field = _SYNONYMS.get(name, name)
        if not columns:
            raise ValueError(f"`{part}` is not a mapping; write FIELD=COLUMN, as in prompt=question")
        if field not in FIELDS:
            known = ", ".join(FIELDS)
            raise ValueError(f"`{name}` is not a field of a dataset ({known}){_guess(name, FIELDS)}")
        if field in mapping:
            raise ValueError(f"`{field}` is mapped twice; join columns with +, as in {field}=a+b")
        mapping[field] = (columns,)
    return mapping


def _guess(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def resolve_mapping(mapping: ColumnMapping, record: Record) -> ColumnMapping:
    """Split joined columns (``a+b``), and check every column against the file's first record."""
    resolved: dict[Field, Sequence[str]] = {}
    for field, (name,) in mapping.items():
        columns = [name] if has_column(record, name) else [part.strip() for part in name.split("+")]
        for column in columns:
            if not has_column(record, column):
                found = quote_names(list(record))
                raise ValueError(f"no column '{column}' (found {found}){_guess(column, list(record))}")
        resolved[field] = columns
    return resolved


def guess_mapping(record: Record) -> ColumnMapping:
    """Guess a mapping from the column names of a file's first record; unknown fields are left out."""
    names = {name.lower(): name for name in reversed(list(record))}
    taken: set[str] = set()

    def first(candidates: Sequence[str], *, fits: Callable[[Any], bool] = lambda _: True) -> list[str]:
        for candidate in candidates:
            column = names.get(candidate, candidate)
            if column not in taken and has_column(record, column) and fits(value_at(record, column)):
                taken.add(column)
                return [column]
        return []

    prompt = first(_PROMPT_NAMES)
    if prompt and prompt[0].lower() == "instruction":  # a task and its input
        prompt += first(("input",))
    answered = bool(prompt) and _ends_with_answer(value_at(record, prompt[0]))
    answers = _GROUND_TRUTH_NAMES[:4] if answered else _GROUND_TRUTH_NAMES
    guessed: dict[Field, Sequence[str]] = {
        "prompt": prompt,
        "ground_truth": first(answers, fits=lambda value: not isinstance(value, (dict, list, NoneType))),
        "system": first(_SYSTEM_NAMES, fits=lambda value: isinstance(value, (str, NoneType))),
        "metadata": first(_METADATA_NAMES, fits=lambda value: isinstance(_decoded(value), dict)),
    }
    return {field: columns for field, columns in guessed.items() if columns}


def answers_in_conversation(mapping: ColumnMapping, record: Record) -> bool:
    """Return whether the prompt is a conversation whose last turn, by the assistant, is the expected answer."""
    columns = mapping.get("prompt", ())
    alone = len(columns) == 1 and "ground_truth" not in mapping
    return alone and _ends_with_answer(value_at(record, columns[0]))


def _ends_with_answer(value: object) -> bool:
    chat = _conversation_of(value)
    return chat is not None and chat[-1]["role"] == "assistant"


def left_out(mapping: ColumnMapping, record: Record) -> list[str]:
    """Return the columns that a mapping does not use."""
    used = {
        column if column in record else column.split(".")[0] for names in mapping.values() for column in names
    }
    return [name for name in record if name not in used]


class MissingAnswerError(ValueError):
    """A row lacks only its expected answer."""


def map_record(mapping: ColumnMapping, record: Record) -> dict[str, Any]:
    """Convert a record to our row; every row of a mapping has the same columns, in one order."""
    try:
        return _row(mapping, record)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _row(mapping: ColumnMapping, record: Record) -> dict[str, Any]:
    fields: dict[Field, Any] = {
        field: _text_of(record, mapping[field]) for field in mapping if field != "metadata"
    }
    if len(mapping.get("prompt", ())) == 1:
        [column] = mapping["prompt"]
        value = value_at(record, column)
        chat = _conversation_of(value)
        if chat is not None:
            system, fields["prompt"], answer = _read_conversation(chat)
            fields["system"] = fields.get("system") or system
            if "ground_truth" not in mapping:
                if not answer:
                    raise ValueError(
                        "the conversation does not end with an answer of the assistant; map `ground_truth`"
                    )
                fields["ground_truth"] = answer
        elif isinstance(value, list):
            raise ValueError(f"'{column}' is a list, but not a conversation of messages")
    if "metadata" in mapping:
        fields["metadata"] = _metadata_of(record, mapping["metadata"])
    needed: tuple[Field, ...] = ("metadata",) if "metadata" in mapping else ("prompt", "ground_truth")
    absent = [field for field in needed if not fields.get(field)]
    if absent:
        where = [column for field in absent for column in mapping.get(field, mapping.get("prompt", ()))]
        message = f"no value for {quote_names(absent)} (from {quote_names(where)})"
        raise MissingAnswerError(message) if absent == ["ground_truth"] else ValueError(message)
    return {column: fields[field] for field, column in OUTPUT_COLUMNS.items() if field in fields}


def _text_of(record: Record, columns: Sequence[str]) -> str | None:
    values = [_readable(value_at(record, column)) for column in columns]
    parts = [text for value in values if (text := as_text(value)) is not None]
    return "\n\n".join(parts) or None


def _metadata_of(record: Record, columns: Sequence[str]) -> dict[str, Any] | None:
    """Return metadata without empty objects: one object unchanged, otherwise the values under their columns' names."""
    value = _decoded(value_at(record, columns[0])) if len(columns) == 1 else None
    if not isinstance(value, dict):
        value = {column.rpartition(".")[2]: value_at(record, column) for column in columns}
    return cast("dict[str, Any] | None", _without_empty(value))


def _without_empty(value: Any, depth: int = 0) -> Any:
    """Replace empty objects, which metadata must not contain, with null."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {str(key): _without_empty(item, depth + 1) for key, item in value.items()} or None
    if isinstance(value, list):
        return [_without_empty(item, depth + 1) for item in value]
    return value.number if isinstance(value, WrittenFloat) else _readable(value)


def _readable(value: Any) -> Any:
    """Return bytes as text, and pandas' marker of a missing number as None."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("bytes that are not UTF-8 text; leave their column out") from None
    return value


def _decoded(value: object) -> object:
    """Return the object in a JSON text; any other value unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return decode_as_written(value)
        except (ValueError, RecursionError):
            return value
    return value


def has_column(record: Record, column: str) -> bool:
    """Return whether a record has a column of that name, or a value at that path."""
    return value_at(record, column, _MISSING) is not _MISSING


def value_at(record: Record, column: str, default: Any = None) -> Any:
    """Return the value of a column or path; ``default`` if it is missing."""
    if column in record:
        return record[column]
    head, found, rest = column.partition(".")
    inner = _decoded(record.get(head)) if found else None
    return value_at(inner, rest, default) if isinstance(inner, dict) else default


_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "developer": "system",
}


def _conversation_of(value: object) -> list[dict[str, Any]] | None:
    """Return a column's value as turns of ``role`` and ``content``, or None if it is not a conversation."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    turns = []
    for item in value if isinstance(value, list) else ():
        role = item.get("role", item.get("from")) if isinstance(item, dict) else None
        if not isinstance(role, str):
            return None
        content = item.get("content", item.get("value"))
        turns.append({"role": _ROLES.get(role.lower(), role.lower()), "content": content})
    return turns or None


def _read_conversation(turns: Sequence[dict[str, Any]]) -> tuple[str | None, str, str | None]:
    """Return the system text, prompt and answer of a conversation with one prompt.

    A prompt has one user turn, with instructions before it and at most one assistant turn after it.
    """
    system = [_text(turn) for turn in turns if turn["role"] == "system"]
    spoken = [turn for turn in turns if turn["role"] != "system"]
    answer = _text(spoken.pop()) if spoken and spoken[-1]["role"] == "assistant" else None
    roles = [turn["role"] for turn in spoken]
    if roles != ["user"]:
        names = f" ({', '.join(roles[:6])}{' …' if len(roles) > 6 else ''})" if roles else ""
        raise ValueError(
            f"the conversation has {len(roles)} turn{'' if len(roles) == 1 else 's'}{names} before its end; a row is one prompt of the user "
            "(to give an agent whole conversations, map the column to `metadata`)"
        )
    prompt = _text(spoken[0])
    if not prompt:
        raise ValueError("the user's turn of the conversation is empty")
    return "\n\n".join(filter(None, system)) or None, prompt, answer


def _text(turn: dict[str, Any]) -> str | None:
    content = turn["content"]
    if content is None or isinstance(content, str):
        return content or None
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            return "\n".join(texts) or None
    raise ValueError(f"the {turn['role']}'s turn holds more than text, which a prompt cannot")

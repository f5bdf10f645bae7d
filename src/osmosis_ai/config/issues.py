"""Issues of a config: each has its key, the problem, its line and the likely intent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

_LONGEST_VALUE = 60


@dataclass(frozen=True)
class Issue:
    """One problem to fix."""

    key: str
    message: str
    line: int | None = None
    suggestion: str | None = None

    def bullet(self) -> str:
        """Return the issue as one line of a report."""
        notes = [f"line {self.line}"] if self.line else []
        notes += [f"did you mean '{self.suggestion}'?"] if self.suggestion else []
        text = f"{self.key}: {self.message}" + (f" ({'; '.join(notes)})" if notes else "")
        # Keys and values come from a repository, and CI interprets lines as commands.
        return f"  - {' '.join(text.splitlines())}"


def without_repeats(issues: Iterable[Issue], further: Iterable[Issue]) -> list[Issue]:
    """Return those of ``further`` whose keys have no issue yet, so that a mistake is reported once."""
    reported = {issue.key for issue in issues}
    return [issue for issue in further if issue.key not in reported]


class InvalidConfigError(OsmosisError):
    """A config with all its issues."""

    def __init__(self, kind: str, shown_path: str, issues: Iterable[Issue]) -> None:
        self.issues = tuple(issues)
        title = f"Invalid {kind} config"
        lines = [f"{title}: {' '.join(shown_path.splitlines())}", *(issue.bullet() for issue in self.issues)]
        listed = [
            {name: value for name, value in asdict(issue).items() if value is not None}
            for issue in self.issues
        ]
        super().__init__("\n".join(lines), details={"error": title, "issues": listed})


def table_issues(
    name: str,
    table: Mapping[str, Any],
    model: type[BaseModel],
    others: Mapping[str, type[BaseModel]] | None = None,
) -> Iterator[Issue]:
    """Yield the issues of one table, key by key; an undeclared key may belong in one of the ``others``."""
    from pydantic import ValidationError

    try:
        model.model_validate(table)
    except ValidationError as error:
        details: dict[str, ErrorDetails] = {}
        for detail in error.errors(include_url=False):
            details.setdefault(str(detail["loc"][0]), detail)  # each member of a union has its own error
        for key, detail in details.items():
            if detail["type"] == "missing":
                yield Issue(f"{name}.{key}", f"Missing '{key}' in [{name}] section")
            elif detail["type"] == "extra_forbidden":
                yield unknown_key(f"{name}.{key}", others or {}, model.model_fields)
            else:
                declared = model.model_json_schema()["properties"][key]
                yield _value_issue(f"{name}.{key}", table[key], declared, detail)


def unknown_key(key: str, tables: Mapping[str, type[BaseModel]], known: Iterable[str]) -> Issue:
    """Return the issue of an unknown key, which may be misspelled or in the wrong table."""
    name = key.rpartition(".")[2]
    if places := " or ".join(f"[{table}]" for table, model in tables.items() if name in model.model_fields):
        return Issue(key, f"Unrecognized key; `{name}` belongs in {places}")
    return Issue(key, "Unrecognized key", suggestion=closest(name, known))


def _value_issue(key: str, value: Any, declared: Mapping[str, Any], error: ErrorDetails) -> Issue:
    """Describe a failed validation of one value in the terms of a config."""
    if error["type"] == "literal_error":
        value = error["input"]  # a list's wrong element
        choices = choices_of(declared.get("items", declared))
        suggestion = closest(value, choices) if isinstance(value, str) else None
        problem = f"must be one of {', '.join(choices)}, got {as_written(value)}"
        return Issue(key, problem, suggestion=suggestion)
    if len(members(declared)) > 1:
        return Issue(key, f"must be {type_in_words(declared)}, got {as_written(value)}")
    if error["type"] in ("value_error", "too_long"):
        return Issue(key, describe_error(error))
    return Issue(key, f"{describe_error(error)}, got {as_written(error['input'])}")


def describe_error(error: ErrorDetails) -> str:
    """Describe a failed validation in the terms of a config, without the value."""
    context: Mapping[str, Any] = error.get("ctx") or {}
    if error["type"] == "value_error":
        return str(context["error"])
    expected = {
        "literal_error": context.get("expected"),
        "string_type": "a string",
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "an array",
        "tuple_type": "an array",
        "dict_type": "a table",
        "model_type": "a table",
        "model_attributes_type": "a table",
        "finite_number": "a finite number",
        "too_short": f"an array of {context.get('min_length')} or more items",
        "too_long": f"an array of at most {context.get('max_length')} items",
        "greater_than": f"greater than {context.get('gt', 0):g}",
        "greater_than_equal": f"at least {context.get('ge', 0):g}",
        "less_than": f"less than {context.get('lt', 0):g}",
        "less_than_equal": f"at most {context.get('le')}",
    }.get(error["type"])
    return f"must be {expected}" if expected else error["msg"]


def members(declared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of the types that a declared key may have, without null."""
    return [member for member in declared.get("anyOf", [declared]) if member.get("type") != "null"]


def choices_of(declared: Mapping[str, Any]) -> list[str]:
    """Return the allowed values of a declared key from its JSON schema; empty if any value of its type is allowed."""
    found = (
        member.get("enum", [member["const"]] if "const" in member else []) for member in members(declared)
    )
    return list(chain.from_iterable(found))


def type_in_words(declared: Mapping[str, Any]) -> str:
    """Return the type of a declared key from its JSON schema."""
    words = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false"}

    def describe(member: Mapping[str, Any]) -> str:
        if member.get("type") == "array":
            items = member.get("items") or member["prefixItems"][0]
            return f"an array of {'numbers' if items.get('type') == 'number' else 'strings'}"
        # A union of tables has no `type`.
        return words.get(member.get("type", ""), "a table")

    return " or ".join(describe(member) for member in members(declared))


def as_written(value: Any) -> str:
    """Format ``value`` roughly as TOML, shortened; for tables and arrays, return only the type."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else str(value)
    except ValueError:  # an integer with more digits than Python converts
        return "a huge number"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``word`` is most likely a misspelling of, or None."""
    return next(iter(nearest(word, known, most=1)), None)


def nearest(word: str, known: Iterable[str], *, most: int, cutoff: float = 0.7) -> list[str]:
    """Return those of ``known`` that begin with ``word``, or else those similar to it, the most similar first."""
    from difflib import get_close_matches

    # A suffix that all share is ignored: nope.toml is not similar to nokey.toml.
    shared = PurePath(word).suffix

    def folded(name: str) -> str:
        return name.removesuffix(shared).lower().replace("-", "_")

    names = {folded(name): name for name in reversed(list(known))}
    begun = [name for near, name in names.items() if len(word) > 2 and near.startswith(folded(word))]
    return sorted(begun, key=len)[:most] or [
        names[near] for near in get_close_matches(folded(word), names, most, cutoff)
    ]

"""Issues of a config: each has its key, the problem, its line and the likely intent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
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
        super().__init__(
            "\n".join(
                [f"{title}: {' '.join(shown_path.splitlines())}", *(issue.bullet() for issue in self.issues)]
            ),
            details={
                "error": title,
                "issues": [
                    {name: value for name, value in asdict(issue).items() if value is not None}
                    for issue in self.issues
                ],
            },
        )


def table_issues(
    name: str,
    table: Mapping[str, Any],
    model: type[BaseModel],
    *,
    unknown: Callable[[str], Issue],
    context: Mapping[str, Any] | None = None,
) -> Iterator[Issue]:
    """Yield the issues of one table, key by key; ``unknown`` returns that of an undeclared key."""
    from pydantic import ValidationError

    try:
        model.model_validate(table, context=context)
    except ValidationError as error:
        details: dict[str, ErrorDetails] = {}
        for detail in error.errors(include_url=False):
            details.setdefault(str(detail["loc"][0]), detail)  # each member of a union has its own error
        for key, detail in details.items():
            if detail["type"] == "missing":
                yield Issue(f"{name}.{key}", f"Missing '{key}' in [{name}] section")
            elif detail["type"] == "extra_forbidden":
                yield unknown(key)
            else:
                yield _value_issue(f"{name}.{key}", table[key], detail, model)


def _value_issue(key: str, value: Any, error: ErrorDetails, section: type[BaseModel]) -> Issue:
    """Describe a failed validation of one value in the terms of a config."""
    declared = section.model_json_schema()["properties"][key.rpartition(".")[2]]
    choices = choices_of(declared)
    if error["type"] == "literal_error":
        suggestion = closest(value, choices) if isinstance(value, str) else None
        return Issue(
            key, f"must be one of {', '.join(choices)}, got {as_written(value)}", suggestion=suggestion
        )
    if len(members(declared)) > 1:
        return Issue(key, f"must be {type_in_words(declared)}, got {as_written(value)}")
    return Issue(key, _type_or_range_message(error))


def members(declared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of the types that a declared key may have, without null."""
    return [member for member in declared.get("anyOf", [declared]) if member.get("type") != "null"]


def choices_of(declared: Mapping[str, Any]) -> list[str]:
    """Return the allowed values of a declared key from its JSON schema; empty if any value of its type is allowed."""
    found = [
        member.get("enum", [member["const"]] if "const" in member else []) for member in members(declared)
    ]
    return [choice for values in found for choice in values]


def type_in_words(declared: Mapping[str, Any]) -> str:
    """Return the type of a declared key from its JSON schema."""
    words = {
        "string": "a string",
        "integer": "an integer",
        "number": "a number",
        "boolean": "true or false",
    }

    def describe(member: Mapping[str, Any]) -> str:
        if member.get("type") == "array":
            return f"an array of {'numbers' if member['items'].get('type') == 'number' else 'strings'}"
        # A union of tables has no `type`.
        return words.get(member.get("type", ""), "a table")

    return " or ".join(describe(member) for member in members(declared))


def _type_or_range_message(error: ErrorDetails) -> str:
    bounds: Mapping[str, Any] = error.get("ctx") or {}
    expected = {
        "string_type": "a string",
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "an array",
        "finite_number": "a finite number",
        "greater_than": f"greater than {bounds.get('gt', 0):g}" if "gt" in bounds else "",
        "greater_than_equal": f"at least {bounds.get('ge', 0):g}" if "ge" in bounds else "",
        "less_than": f"less than {bounds.get('lt', 0):g}" if "lt" in bounds else "",
        "less_than_equal": f"at most {bounds['le']}" if "le" in bounds else "",
    }.get(error["type"])
    if error["type"] == "value_error":
        return str(bounds["error"])
    if not expected:
        return error["msg"]
    return f"must be {expected}, got {as_written(error['input'])}"


def as_written(value: Any) -> str:
    """Format ``value`` roughly as TOML, shortened; for tables and arrays, return only the type."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else _number_or_date(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _number_or_date(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer with more digits than Python converts
        return "a huge number"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``word`` is most likely a misspelling of, or None."""
    return next(iter(nearest(word, known, most=1)), None)


def nearest(word: str, known: Iterable[str], *, most: int, cutoff: float = 0.7) -> list[str]:
    """Return those of ``known`` that are similar to ``word``, the most similar first; ties keep their order."""
    from difflib import SequenceMatcher
    from heapq import nlargest
    from operator import itemgetter

    # A suffix that all share is ignored: nope.toml is not similar to nokey.toml.
    shared = PurePath(word).suffix
    matcher = SequenceMatcher(b=_folded(word.removesuffix(shared)))

    def likeness(name: str) -> float:
        matcher.set_seq1(_folded(name.removesuffix(shared)))
        return matcher.ratio()

    found = ((likeness(name), name) for name in dict.fromkeys(known))
    return [name for like, name in nlargest(most, found, key=itemgetter(0)) if like >= cutoff]


def _folded(word: str) -> str:
    return word.lower().replace("-", "_")

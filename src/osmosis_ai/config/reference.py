"""Tables and templates of config keys, for the docs, the configs of a new rollout and its guide."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from osmosis_ai.config.checks import EVAL, TRAINING
from osmosis_ai.config.decisions import DecideSettings
from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.config.issues import choices_of, members, type_in_words
from osmosis_ai.config.sections import LARGEST_COUNT, ConfigSection, NarrowerHere

SECTIONS: Mapping[str, type[ConfigSection]] = {
    **EVAL.models(),
    **TRAINING.models(),
}
"""Every section with declared keys, by name."""

_TABLES: Mapping[str, type[ConfigSection]] = {
    **SECTIONS,
    "decide": DecideSettings,
    "execution": ExecutionSection,
}
"""The tables of the docs, by name."""

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_COMMENTS_AT = 41


def key_table(section: str) -> Iterator[str]:
    """Yield a Markdown table of a section's keys: type and range, default, meaning."""
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    model = _TABLES[section]
    schema = model.model_json_schema()["properties"]
    for key, field in model.model_fields.items():
        default = (
            "required"
            if field.is_required()
            else "none"
            if field.default is None
            else f"`{json.dumps(field.default)}`"
        )
        rules = [known.rule for known in field.metadata if isinstance(known, NarrowerHere)]
        meaning = "; ".join([str(field.description), *rules])
        yield f"| `{key}` | {_type_and_range(schema[key])} | {default} | {meaning} |"


def commented_keys(section: str) -> str:
    """Return every optional key as a commented-out line of TOML with its meaning."""
    lines = []
    for key, field in SECTIONS[section].model_fields.items():
        if field.is_required():
            continue
        value = field.examples[0] if field.examples else field.default
        lines.append(f"{f'# {key} = {json.dumps(value)} '.ljust(_COMMENTS_AT)}# {field.description}")
    return "\n".join(lines)


def keys_by_section() -> str:
    """Return a Markdown table of the sections and the names of their keys."""
    rows = [
        f"| `[{name}]` | {', '.join(f'`{key}`' for key in model.model_fields)} |"
        for name, model in SECTIONS.items()
        if name != "advanced"
    ]
    return "\n".join(["| section | keys |", "|---|---|", *rows])


def _type_and_range(declared: Mapping[str, Any]) -> str:
    choices = [f"`{choice}`" for choice in choices_of(declared)]
    if choices:
        return ", ".join(choices)
    bounds = [
        f"{sign} {member[bound]:g}"
        for member in members(declared)
        for bound, sign in _BOUNDS.items()
        if member.get(bound, LARGEST_COUNT) != LARGEST_COUNT
    ]
    return " ".join(
        [type_in_words(declared).removeprefix("an ").removeprefix("a "), ", ".join(bounds)]
    ).strip()

"""The keys of configs as text, for the configs of a new rollout and the guides of a workspace."""

from __future__ import annotations

import json
from collections.abc import Mapping

from osmosis_ai.config.checks import EVAL, TRAINING
from osmosis_ai.config.sections import ConfigSection

SECTIONS: Mapping[str, type[ConfigSection]] = {**EVAL.models(), **TRAINING.models()}
"""Every section with declared keys, by name."""

_COMMENTS_AT = 41


def commented_keys(section: str) -> str:
    """Return every optional key as a commented-out line of TOML with its meaning."""
    lines = []
    for key, field in SECTIONS[section].model_fields.items():
        if not field.is_required():
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

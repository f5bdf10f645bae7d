"""What changed between two sessions of a run, in words.

Values are shown where they tell something: never digests, and never the values of variables, which
may be somebody's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_EDITED = {
    "dataset.sha256": "dataset: the file's content is another",
    "rollout.source_digest": "rollout: its files were edited",
}
_SPOKEN = {
    "dataset.selected_source_rows": "dataset: the selected rows",
    "rollout.name": "rollout",
    "rollout.entrypoint": "rollout: the entrypoint",
    "timeouts.agent_timeout_sec": "timeouts: agent_workflow_timeout_s",
    "timeouts.grader_timeout_sec": "timeouts: grader_timeout_s",
}


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for every difference between two runs' inputs, in the order of the keys."""
    return [
        line for key in sorted({*before, *now}) for line in _differences(key, before.get(key), now.get(key))
    ]


def _differences(key: str, before: Any, now: Any) -> Iterator[str]:
    if before == now:
        return
    if key == "env":
        yield from _changed_variables(before or {}, now or {})
    elif isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differences(f"{key}.{name}", before.get(name), now.get(name))
    else:
        spoken = _SPOKEN.get(key, key.replace(".", ": "))
        yield _EDITED.get(key, f"{spoken}: was {_shown(before)}, now {_shown(now)}")


def _changed_variables(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if name not in now:
            yield f"env: {name} was removed"
        elif name not in before:
            yield f"env: {name} was added"
        elif before[name] != now[name]:
            yield f"env: {name} has another value"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)

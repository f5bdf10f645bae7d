"""A sample: an agent's conversation and its grade.

The reward is a finite number or None. Graders may put any values into ``metrics`` and
``extra_fields``, which are made JSON-safe when the sample leaves the process.
"""

from __future__ import annotations

import copy
import logging
import math
import numbers
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

logger = logging.getLogger(__name__)

MessageDict = dict[str, Any]
"""One message in the format of the agent's framework."""

Messages = list[MessageDict]
"""A conversation, oldest message first."""

_ATOMS = frozenset({str, int, float, bool, type(None)})
_DROPPED: Any = object()


class RolloutSample(BaseModel):
    """Result of a rollout.

    Attributes:
        messages: The conversation in the framework's format; graders read it.
        trajectory_messages: The conversation to archive. Defaults to a copy of ``messages``;
            an explicit None archives no trajectory. Never sent on the wire.
        label: The ground truth.
        reward: A finite number, or None while ungraded. Checked at construction and assignment.
        remove_sample: Exclude this sample from scores and training.
        metrics: Named numbers of the workflow or grader.
        extra_fields: Any other data.
    """

    model_config = ConfigDict(validate_assignment=True, allow_inf_nan=False)

    messages: Messages = Field(default_factory=list)
    trajectory_messages: Messages | None = Field(
        default_factory=lambda fields: _snapshot_messages(fields.get("messages")), exclude=True, repr=False
    )
    label: str | None = None
    reward: float | None = None
    remove_sample: bool = False
    metrics: dict[str, Any] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    def json_safe_copy(self) -> RolloutSample:
        """Return this sample with ``metrics`` and ``extra_fields`` that JSON can hold.

        NumPy scalars become plain numbers, and numeric keys become strings. Non-finite numbers and values that JSON
        cannot hold are dropped with one warning. A clean sample is returned itself. Messages are not checked.
        """
        dropped: list[str] = []
        metrics = _json_safe(self.metrics, "metrics", dropped)
        extra_fields = _json_safe(self.extra_fields, "extra_fields", dropped)
        if dropped:
            logger.warning("dropped %d value(s) JSON cannot hold: %s", len(dropped), ", ".join(dropped[:10]))
        if metrics is self.metrics and extra_fields is self.extra_fields:
            return self
        return self.model_copy(update={"metrics": metrics, "extra_fields": extra_fields})


def _snapshot_messages(messages: Messages | None) -> Messages | None:
    """Copy a conversation, so that a grader's later changes do not reach the archive."""
    try:
        return None if messages is None else [snapshot(message) for message in messages]
    except Exception:
        # The objects may come from any framework, and copying them can raise any error.
        logger.warning("the messages cannot be copied, so no trajectory is archived", exc_info=True)
        return None


def snapshot(value: Any) -> Any:
    """Copy a JSON-like tree like ``copy.deepcopy``, without its bookkeeping, which costs five times more."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: snapshot(item) for key, item in value.items()}
    if kind is list:
        return [snapshot(item) for item in value]
    return copy.deepcopy(value)


def json_safe(value: Any) -> Any:
    """Return ``value`` without everything JSON cannot hold; None if nothing is left."""
    result = _json_safe(value, "", [])
    return None if result is _DROPPED else result


def _json_safe(value: Any, path: str, dropped: list[str]) -> Any:
    """Return ``value`` itself if it is clean, or else a cleaned copy; ``_DROPPED`` if nothing is left."""
    kind = type(value)
    if kind in _ATOMS and (kind is not float or math.isfinite(value)):
        return value
    if isinstance(value, dict):
        return _safe_dict(value, path, dropped)
    if isinstance(value, (list, tuple)):
        items = [_json_safe(item, f"{path}[{index}]", dropped) for index, item in enumerate(value)]
        if kind is list and all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return [item for item in items if item is not _DROPPED]
    safe = str(value) if isinstance(value, str) else _plain_number(value)
    if safe is None:
        dropped.append(path)
        return _DROPPED
    return safe


def _safe_dict(value: dict[Any, Any], path: str, dropped: list[str]) -> dict[str, Any]:
    clean = type(value) is dict
    safe: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else _plain_number(key)
        if name is None:
            dropped.append(f"{path}.{key!r:.40}")
            new = _DROPPED
        else:
            new = _json_safe(item, f"{path}.{name}", dropped)
        clean = clean and new is item and type(key) is str
        if new is not _DROPPED:
            safe[str(name)] = new
    return value if clean else safe


def _plain_number(value: Any) -> int | float | None:
    """Return a registered numeric scalar (such as NumPy's) as int or float, or None if it is not finite."""
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    return number if math.isfinite(number) else None

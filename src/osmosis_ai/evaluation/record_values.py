"""What a table of samples has of a line of the journal, checked, in a third of the time that a whole record takes."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

import orjson

from osmosis_ai.controller.attempt import STATUSES
from osmosis_ai.evaluation.record import LARGEST_COUNT, check_field, fits_table, is_safe_id

_NEEDED = ("row_index", "run_index", "duration_ms", "status", "rollout_id")
NAMES = (
    *_NEEDED, "source_row_index", "tokens", "prompt_tokens", "completion_tokens", "reward", "model_latency_ms",
    "cost_usd", "category", "error_type", "error", "input", "output", "row_digest", "boundary", "finish_reasons",
)  # fmt: skip
"""The fields of :func:`values_of`, in its order."""
_COUNT, _NUMBER, _TEXT = {int, NoneType}, {float, int, NoneType}, {str, NoneType}


def values_of(line: bytes) -> tuple[Any, ...]:
    """Return the values of :data:`NAMES` in a line, None where it has none."""
    record = orjson.loads(line)  # its JSONDecodeError is a ValueError
    if type(record) is not dict:
        raise ValueError("not a JSON object")
    known: Callable[[str], Any] = record.get
    (
        row, run, duration, status, rollout, source_row, tokens, read, written, reward, latency, cost, category,
        error_type, error, asked, answered, digest, boundary, finish,
    ) = values = (*map(known, NAMES),)  # fmt: skip
    counts = (row, run, duration, source_row or 0, tokens or 0, read or 0, written or 0)
    # Every line of a large run comes by here: that all fits is seen at once, and what does not is looked for then.
    if not (
        {type(row), type(run), type(duration)} == {int}
        and {type(source_row), type(tokens), type(read), type(written)} <= _COUNT
        and {type(reward), type(latency), type(cost)} <= _NUMBER
        and {type(category), type(error_type), type(error), type(asked), type(answered)} <= _TEXT
        and {type(digest), type(boundary)} <= _TEXT
        and (finish is None or fits_table("finish_reasons", finish))
        and (min(counts) >= 0 and max(counts) <= LARGEST_COUNT)
        and (status in STATUSES and type(rollout) is str and is_safe_id(rollout))
    ):
        _refuse(known)
    return values


def _refuse(known: Callable[[str], Any]) -> None:
    """Raises: ValueError: what a record lacks, or what in it can not be."""
    for name in NAMES:
        if (value := known(name)) is not None:
            check_field(name, value)
        elif name in _NEEDED:
            raise ValueError(f"no `{name}`")

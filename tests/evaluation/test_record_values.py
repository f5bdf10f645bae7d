"""What a table of samples has of a line: what a whole record would say, and the same refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.record_values import NAMES, values_of

_WHOLE: dict[str, Any] = {
    "row_index": 3, "run_index": 1, "rollout_id": "row-3-run-1", "status": "failed", "duration_ms": 5,
    "source_row_index": 0, "tokens": 4, "prompt_tokens": 1, "completion_tokens": 2, "reward": 0.5,
    "model_latency_ms": 2.5, "cost_usd": 1, "category": "timeout", "error_type": "x", "error": "e", "input": "i",
    "output": "o", "row_digest": "a" * 32, "boundary": "provider", "notes": "not asked for",
}  # fmt: skip
_ODD = [
    None, True, -1, 0, 2.5, 2**53 - 1, 2**53, 2**63, 2**64 - 1, "", "x", "success", "a/b", "..", [], {}, ["x"], {"a": 1},
]  # fmt: skip
_CONTENT_NOT_READ = ("row_digest", "boundary")


def told_of(read: Callable[[], Any]) -> Any:
    """Return what is read, or why it is refused."""
    try:
        return read()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_a_line_is_taken_or_refused_as_a_whole_record_is(name: str) -> None:
    others = {other: value for other, value in _WHOLE.items() if other != name}
    for line in [orjson.dumps(others), *(orjson.dumps(others | {name: odd}) for odd in _ODD)]:
        record = orjson.loads(line)
        if record.get(name) is None and name in record:
            continue  # a null says as much as no key, and nobody writes one
        if name in _CONTENT_NOT_READ and isinstance(record.get(name), str):
            assert dict(zip(NAMES, values_of(line), strict=True))[name] == record[name]
            continue
        whole = told_of(partial(TerminalRecord.from_line, line))
        if isinstance(whole, TerminalRecord):
            whole = tuple(getattr(whole, each) for each in NAMES)
        assert told_of(partial(values_of, line)) == whole


@pytest.mark.parametrize("line", [b"[]", b"{", b'{"row_index": NaN}', b'{"input": "\\ud800"}', b"\xff"])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        values_of(line)

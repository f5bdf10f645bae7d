"""What is remembered of finished rollouts: enough to answer a repeated callback as the first time.

Memory is bounded twice, by the number of rollouts and by the bytes of their acknowledgements (one
that carries token ids is large). Beyond the first bound an id is forgotten; beyond the second an
old acknowledgement shrinks to ``{"ok": true}``. A server repeats a callback for about a minute.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pydantic import BaseModel

REMEMBERED_ROLLOUTS = 16_384
REMEMBERED_ACKNOWLEDGMENT_BYTES = 8 * 1024 * 1024
_PLAIN = b'{"ok":true}'


def payload_digest(payload: BaseModel) -> bytes:
    """Return a short fingerprint of a callback's body."""
    try:
        text = payload.model_dump_json()
    except ValueError:
        # Lone surrogates in a model's text have no UTF-8 form.
        text = json.dumps(payload.model_dump(mode="python"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(slots=True)
class FinishedRollout:
    """The encoded acknowledgement of a finished rollout, and what its callbacks looked like."""

    encoded_acknowledgment: bytes
    completion_digest: bytes | None
    grader_digest: bytes | None

    @classmethod
    def of(
        cls, acknowledgment: Mapping[str, Any], *, completion: BaseModel | None, grader: BaseModel | None
    ) -> FinishedRollout:
        """Condense a terminal.

        Raises:
            TypeError: when the acknowledgement cannot be encoded as JSON.
        """
        # A copy of the exact size: orjson's own result keeps the kilobytes of its write buffer.
        encoded = bytes(memoryview(orjson.dumps(acknowledgment, option=orjson.OPT_SERIALIZE_NUMPY)))
        return cls(
            _PLAIN if encoded == _PLAIN else encoded,
            payload_digest(completion) if completion is not None else None,
            payload_digest(grader) if grader is not None else None,
        )

    def acknowledgment(self) -> dict[str, Any]:
        """Return the acknowledgement as it was given."""
        decoded: dict[str, Any] = orjson.loads(self.encoded_acknowledgment)
        return decoded


class FinishedRollouts:
    """The most recently finished rollouts by id.

    Args:
        max_rollouts: how many ids are remembered.
        max_bytes: how many bytes of acknowledgements are remembered.
    """

    def __init__(
        self,
        *,
        max_rollouts: int = REMEMBERED_ROLLOUTS,
        max_bytes: int = REMEMBERED_ACKNOWLEDGMENT_BYTES,
    ) -> None:
        self._max_rollouts = max_rollouts
        self._max_bytes = max_bytes
        self._rollouts: OrderedDict[str, FinishedRollout] = OrderedDict()
        # The ids whose acknowledgement is more than the plain one, oldest first.
        self._large: OrderedDict[str, int] = OrderedDict()
        self._large_bytes = 0

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._rollouts

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def acknowledgment_bytes(self) -> int:
        """Bytes held for acknowledgements other than the plain one."""
        return self._large_bytes

    def get(self, rollout_id: str) -> FinishedRollout | None:
        """Return what is remembered of a rollout, or None."""
        return self._rollouts.get(rollout_id)

    def add(self, rollout_id: str, rollout: FinishedRollout) -> None:
        """Remember a finished rollout and forget the oldest beyond the bounds."""
        self._rollouts[rollout_id] = rollout
        if rollout.encoded_acknowledgment is not _PLAIN:
            size = len(rollout.encoded_acknowledgment)
            self._large[rollout_id] = size
            self._large_bytes += size
        while self._large_bytes > self._max_bytes:
            oldest, size = self._large.popitem(last=False)
            self._large_bytes -= size
            self._rollouts[oldest].encoded_acknowledgment = _PLAIN
        while len(self._rollouts) > self._max_rollouts:
            oldest, _ = self._rollouts.popitem(last=False)
            self._large_bytes -= self._large.pop(oldest, 0)

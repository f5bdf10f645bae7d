"""Choose the shards to merge, so that few remain and each byte is written rarely.

While a run is active, shards are grouped in levels of similar size (within a factor of 16), and 64 of one level become
one of a higher level. A run thus has fewer than 64 shards per level below :data:`LARGE_BYTES`, and a byte is written
once per level. After the run has ended, smaller shards are merged, so that all but one are large.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from osmosis_ai.platform.blobs.shards import MOST_BYTES

LARGE_BYTES = MOST_BYTES // 2
"""A shard of this size is left alone: two of a smaller one still fit into one."""
FAN = 64
_SMALLEST_BYTES, _GROWTH = 512, 16
_MOST_AT_ONCE = 1024


class SizedShard(Protocol):
    """A shard: ``size`` in bytes."""

    @property
    def size(self) -> int:
        """Its size."""


S = TypeVar("S", bound=SizedShard)


def due(shards: Iterable[S], *, has_ended: bool) -> Sequence[S]:
    """Return the shards of a run to be merged next; none where they are as few as they should be."""
    small = [shard for shard in shards if shard.size < LARGE_BYTES]
    if has_ended:
        found = _that_fit(sorted(small, key=lambda shard: shard.size))
        return found if len(found) > 1 else ()
    levels: dict[int, list[S]] = defaultdict(list)
    for shard in small:
        levels[_level(shard.size)].append(shard)
    full = [level for level, members in levels.items() if len(members) >= FAN]
    return _that_fit(levels[min(full)]) if full else ()


def _that_fit(shards: Sequence[S]) -> Sequence[S]:
    """Return as many of the first ones as one shard holds."""
    size = 0
    for count, shard in enumerate(shards[:_MOST_AT_ONCE]):
        size += shard.size
        if size > MOST_BYTES:
            return shards[:count]
    return shards[:_MOST_AT_ONCE]


def _level(size: int) -> int:
    level = 0
    while size >= _SMALLEST_BYTES * _GROWTH**level:
        level += 1
    return level

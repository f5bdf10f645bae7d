"""How many shards a run has, by the arithmetic of their merging alone: whatever their sizes, and however many come."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from osmosis_ai.platform.blobs.shards import MOST_BYTES
from osmosis_ai.platform.runs.desk.shard_policy import FAN, LARGE_BYTES, due

MOST_FILES = 2000
"""Of a run of a million samples without artifacts."""


@dataclass
class Sized:
    size: int
    writes: int = 0


def merged(shards: list[Sized], *, has_ended: bool) -> list[Sized]:
    """Return what is left of shards when there is nothing more to be merged for now."""
    while found := due(shards, has_ended=has_ended):
        assert len(found) >= 2
        size = sum(shard.size for shard in found)
        assert size <= MOST_BYTES
        doomed = {id(shard) for shard in found}
        shards = [shard for shard in shards if id(shard) not in doomed]
        shards.append(Sized(size, 1 + max(shard.writes for shard in found)))
    return shards


@pytest.mark.parametrize(
    ("count", "size"),
    [
        # A million samples of a slow run: each in a shard of its own.
        (1_000_000, partial(random.Random(7).randrange, 200, 40_000)),
        (100_000, lambda: 4_000),
        # Of a busy one, many together.
        (1_000, lambda: 1_000 * 60_000),
        (10_000, lambda: 100 * 3_000),
    ],
    ids=["of all sizes", "of one size", "large", "busy"],
)
def test_a_million_samples_are_few_files_while_they_come_and_when_they_have(
    count: int, size: Callable[[], int]
) -> None:
    shards: list[Sized] = []
    most_small, arrived = 0, 0
    for _ in range(0, count, FAN):
        added = [Sized(size()) for _ in range(min(FAN, count - arrived))]
        arrived += len(added)
        shards = merged(shards + added, has_ended=False)
        most_small = max(most_small, sum(shard.size < LARGE_BYTES for shard in shards))
    total = sum(shard.size for shard in shards)
    assert most_small < 5 * FAN, "fewer than 64 of each level"
    assert max(shard.writes for shard in shards) <= 6, "no byte is written often"
    at_rest = merged(shards, has_ended=True)
    assert sum(shard.size for shard in at_rest) == total
    assert sum(shard.size < LARGE_BYTES for shard in at_rest) <= 1
    assert len(at_rest) <= total // LARGE_BYTES + 1 < MOST_FILES


def test_a_young_run_is_left_alone_and_a_large_shard_always() -> None:
    assert not due([Sized(1000)] * (FAN - 1), has_ended=False)
    assert not due([Sized(1000)] * 40 + [Sized(100_000)] * 40, has_ended=False), "they are of two levels"
    assert len(due([Sized(1000)] * FAN, has_ended=False)) == FAN
    for has_ended in (False, True):
        assert not due([Sized(LARGE_BYTES)] * (2 * FAN), has_ended=has_ended)
    assert not due([Sized(1000)], has_ended=True)
    assert len(due([Sized(1000), Sized(LARGE_BYTES - 1), Sized(LARGE_BYTES)], has_ended=True)) == 2

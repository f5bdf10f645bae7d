"""Groups of attempts, sampled ahead of the learner.

The groups of a run form a stream: the batches of its steps, one after the other, and further epochs for replacements. A
group's position in the stream determines its row, names and seeds. A step takes the first groups of the stream that are
finished, so a slow group delays only itself. With ``max_staleness`` 0 a step waits for exactly its own groups.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.config.training import MOST_REPLACED
from osmosis_ai.training.objective.advantages import group_advantages
from osmosis_ai.training.runs.rollouts import (
    RolloutBatch,
    Sample,
    attempts_of_step,
    timed_out,
    with_truncation_rule,
)

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.training.engines.policy_engine import PolicyEngine
    from osmosis_ai.training.runs.metrics import StepRecord
    from osmosis_ai.training.runs.rollouts import RolloutSampler
    from osmosis_ai.training.runs.spec import DataOrder


@dataclass(frozen=True, eq=False)
class _Group:
    samples: list[Sample]
    timed_out: int
    started: float
    oldest_version: float
    is_informative: bool


class GroupBuffer:
    """Samples groups and hands them to the steps of a run.

    Args:
        rows: Training rows by the numbers in ``order``.
        step: The last step that is done.
        records: Records of the steps that are done; their groups are not sampled again.
        rewound: Records of later steps, which take the same groups again.
    """

    def __init__(
        self,
        sampler: RolloutSampler,
        engine: PolicyEngine,
        rows: Mapping[int, DatasetRow],
        order: DataOrder,
        settings: TrainingSettings,
        *,
        step: int,
        records: Iterable[StepRecord],
        rewound: Iterable[StepRecord],
    ) -> None:
        self._sampler, self._engine = sampler, engine
        self._rows, self._order, self._settings = rows, order, settings
        self._groups: dict[int, asyncio.Task[_Group]] = {}
        # The policy when each of them was started.
        self._versions: dict[int, int] = {}
        # Positions that are done: all below the first, and a few above it.
        self._first_open, self._done = order.first_position(step + 1), set[int]()
        self._again: dict[int, list[int]] = {}
        if settings.records_groups:
            self._first_open = 0
            self._done = {position for record in records for position in (*record.groups, *record.dropped)}
            promised = set[int]()
            for record in rewound:
                again = set(record.groups) - self._done
                if not promised.isdisjoint(again):
                    break  # an earlier step was repeated with other groups
                promised |= again
                if again:
                    self._again[record.step] = sorted(again)
        self._next = 0
        self._taken_at = -math.inf

    async def take(self, step: int, version: int) -> RolloutBatch:
        """Return the groups that ``step`` learns from, with policy ``version``, as soon as they are finished."""
        order, settings = self._order, self._settings
        size = len(order.batch(step))
        last = min(step + settings.max_staleness, order.total_steps)
        ahead = order.first_position(last + 1) - order.first_position(step + 1)
        again = self._again.get(step, [])
        while True:
            if failure := self._engine.failure:
                raise failure  # the groups before the failure are too few for a step
            finished = {n: group.result() for n, group in sorted(self._groups.items()) if group.done()}
            stale = {
                n: group
                for n, group in finished.items()
                if version - group.oldest_version > settings.max_staleness
            }
            if any(not stale.keys().isdisjoint(promised) for promised in self._again.values()):
                again, self._again = [], {}  # this time they were sampled earlier
            taken: dict[int, _Group] = {}
            counted, wanted = 0, len(again) or size
            for n, group in finished.items():
                if counted == wanted:
                    break
                if n in stale or (again and n not in again):
                    continue
                is_replaced = settings.refill and not again and len(taken) - counted < MOST_REPLACED * size
                counted += not (is_replaced and not group.is_informative)
                taken[n] = group
            # Running groups that will probably be dropped.
            late = sum(
                version - self._versions[n] > settings.max_staleness
                for n in self._groups
                if n not in finished
            )
            for position in again:
                self._start(position, version)
            while len(self._groups) < size + ahead + len(taken) - counted + len(stale) + late:
                self._start_next(version)
            if counted == wanted:
                break
            running = [group for group in self._groups.values() if not group.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        self._again.pop(step, None)
        for n in (*taken, *stale):
            del self._groups[n], self._versions[n]
            self._done.add(n)
        while self._first_open in self._done:
            self._done.remove(self._first_open)
            self._first_open += 1
        started = max(self._taken_at, min(group.started for group in taken.values()))
        self._taken_at = time.monotonic()
        return RolloutBatch(
            step,
            [group.samples for group in taken.values()],
            self._taken_at - started,
            timed_out=sum(group.timed_out for group in taken.values()),
            positions=list(taken),
            replaced=len(taken) - size if settings.refill else None,
            dropped={n: group.samples for n, group in stale.items()} if settings.max_staleness else None,
        )

    async def abandon(self) -> None:
        """Cancel all groups that no step has taken; the next :meth:`take` starts them again."""
        for group in self._groups.values():
            group.cancel()
        await asyncio.gather(*self._groups.values(), return_exceptions=True)
        self._groups.clear()
        self._next = 0

    def last_sampled_step(self) -> int:
        """Return the last step whose planned groups are all done; it can be later than the last one taken."""
        return self._order.at(self._first_open)[0] - 1

    def _start_next(self, version: int) -> None:
        self._next = max(self._next, self._first_open)
        while self._next in self._done or self._next in self._groups:
            self._next += 1
        self._start(self._next, version)

    def _start(self, position: int, version: int) -> None:
        if position not in self._groups:
            self._versions[position] = version
            self._groups[position] = asyncio.create_task(self._sample(position))

    async def _sample(self, position: int) -> _Group:
        started, settings = time.monotonic(), self._settings
        step, row = self._order.at(position)
        attempts = attempts_of_step(step, [self._rows[row]], settings.n_samples_per_prompt, settings.seed)
        sampled = await self._sampler.sample(attempts)
        samples = [with_truncation_rule(sample, settings) for sample in sampled]
        versions = (sample.recorded.oldest_version for sample in samples)
        [advantages] = group_advantages([[sample.reward for sample in samples]]).advantages_PG
        return _Group(
            samples,
            sum(map(timed_out, sampled)),
            started,
            oldest_version=min(versions, default=math.inf),
            is_informative=any(advantage is not None for advantage in advantages),
        )

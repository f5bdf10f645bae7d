"""Groups of attempts, sampled ahead of the learner.

The groups of a run form a stream: the batches of its steps, one after the other, and further epochs for replacements. A
group's position in the stream determines its row, names and seeds. A step takes the first groups of the stream that are
finished, so a slow group delays only itself. If the finished attempts of an incomplete group would be too old for the next
step, the step takes them and cancels the group's other attempts. With ``max_staleness`` 0 a step waits for exactly its own groups.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from osmosis_ai.config.training import MOST_REPLACED
from osmosis_ai.training.engines.recording import RecordedRollout
from osmosis_ai.training.objective.advantages import differ
from osmosis_ai.training.runs.rollouts import (
    RolloutBatch,
    Sample,
    attempts_of_step,
    timed_out,
    with_truncation_rule,
)

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.controller.attempt import Attempt
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.training.engines.policy_engine import PolicyEngine
    from osmosis_ai.training.runs.metrics import StepRecord
    from osmosis_ai.training.runs.rollouts import RolloutSampler
    from osmosis_ai.training.runs.spec import DataOrder


class _Group:
    """The attempts at a row; some of them may be running."""

    task: asyncio.Task[None]

    def __init__(self, attempts: Sequence[Attempt], settings: TrainingSettings, version: int) -> None:
        self.attempts, self._settings = attempts, settings
        self.version, self.started = version, time.monotonic()
        self.oldest_version, self.timed_out = math.inf, 0
        self._finished: dict[Attempt, Sample] = {}
        self._scores: list[float] = []
        # Tokens that attempts had sampled when they were lost or cancelled.
        self._unfinished: dict[Attempt, RecordedRollout] = {}
        self._is_cancelled = False

    def add(self, attempt: Attempt, sample: Sample) -> None:
        if self._is_cancelled:  # its tokens can be older than oldest_version
            self._unfinished[attempt] = sample.recorded
            return
        sample, is_late = with_truncation_rule(sample, self._settings), timed_out(sample)
        self._finished[attempt] = sample
        if sample.reward is not None:
            self._scores.append(sample.reward)
        self.oldest_version = min(self.oldest_version, sample.recorded.oldest_version)
        self.timed_out += is_late

    def add_unfinished(self, attempt: Attempt, recorded: RecordedRollout) -> None:
        self._unfinished[attempt] = recorded

    def cancel(self) -> None:
        self._is_cancelled = True
        self.task.cancel()

    @property
    def samples(self) -> list[Sample]:
        """The finished attempts, in the order of their requests."""
        return [self._finished[attempt] for attempt in self.attempts if attempt in self._finished]

    @property
    def unfinished(self) -> list[RecordedRollout]:
        nothing = RecordedRollout([])
        return [self._unfinished.get(each, nothing) for each in self.attempts if each not in self._finished]

    @property
    def is_informative(self) -> bool:
        return differ(self._scores)


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
        self._groups: dict[int, _Group] = {}
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
            groups = sorted(self._groups.items())
            for _, group in groups:
                if group.task.done():
                    group.task.result()
            age = {n: version - group.oldest_version for n, group in groups}
            stale = {n: group for n, group in groups if age[n] > settings.max_staleness}
            if any(not stale.keys().isdisjoint(promised) for promised in self._again.values()):
                again, self._again = [], {}  # this time they were sampled earlier
            wanted = len(again) or size
            usable = {n: group for n, group in groups if n not in stale and (not again or n in again)}
            finished = {n: group for n, group in usable.items() if group.task.done()}
            taken, counted = self._first(finished, wanted, replaces=not again)
            # Running groups that will probably be dropped or, near the end of the run, only wait for a slow attempt.
            late = sum(
                version - group.version > (last - step if group.samples else settings.max_staleness)
                for n, group in groups
                if not (group.task.done() or n in stale)
            )
            for position in again:
                self._start(position, version)
            while len(self._groups) < size + ahead + len(taken) - counted + len(stale) + late:
                self._start_next(version)
            if counted == wanted:
                break
            running = [group.task for group in self._groups.values() if not group.task.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if settings.max_staleness and not again:
            # The finished attempts of some incomplete groups would be too old for the next step.
            candidates = {
                n: group
                for n, group in usable.items()
                if n in finished or (age[n] == settings.max_staleness and group.is_informative)
            }
            taken, _ = self._first(candidates, wanted, replaces=True)
        self._again.pop(step, None)
        ended = [*taken.values(), *stale.values()]
        await _cancel(ended)
        for n in (*taken, *stale):
            del self._groups[n]
            self._done.add(n)
        while self._first_open in self._done:
            self._done.remove(self._first_open)
            self._first_open += 1
        started = max(self._taken_at, min(group.started for group in taken.values()))
        self._taken_at = time.monotonic()
        dropped = [sample.recorded for group in stale.values() for sample in group.samples]
        dropped += [recorded for group in ended for recorded in group.unfinished]
        return RolloutBatch(
            step,
            [group.samples for group in taken.values()],
            self._taken_at - started,
            timed_out=sum(group.timed_out for group in taken.values()),
            positions=list(taken),
            replaced=len(taken) - size if settings.refill else None,
            dropped=list(stale),
            dropped_attempts=dropped if settings.max_staleness else None,
        )

    def _first(
        self, groups: Mapping[int, _Group], wanted: int, *, replaces: bool
    ) -> tuple[dict[int, _Group], int]:
        """Return the first groups until ``wanted`` of them count, and how many count. Replaced groups do not count."""
        taken: dict[int, _Group] = {}
        counted, most = 0, MOST_REPLACED * wanted if replaces and self._settings.refill else 0
        for n, group in groups.items():
            if counted == wanted:
                break
            counted += not (len(taken) - counted < most and not group.is_informative)
            taken[n] = group
        return taken, counted

    async def abandon(self) -> None:
        """Cancel all groups that no step has taken; the next :meth:`take` starts them again."""
        await _cancel(self._groups.values())
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
            settings = self._settings
            step, row = self._order.at(position)
            attempts = attempts_of_step(step, [self._rows[row]], settings.n_samples_per_prompt, settings.seed)
            group = self._groups[position] = _Group(attempts, settings, version)
            sampling = self._sampler.sample(attempts, group.add, group.add_unfinished)
            group.task = asyncio.create_task(sampling)


async def _cancel(groups: Collection[_Group]) -> None:
    """Cancel the running attempts and wait until results that have arrived are recorded."""
    for group in groups:
        group.cancel()
    await asyncio.gather(*(group.task for group in groups), return_exceptions=True)

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from osmosis_ai.config.training import MOST_REPLACED, TrainingSettings
from osmosis_ai.controller.attempt import Attempt
from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.engines.recording import RecordedRollout
from osmosis_ai.training.runs.group_buffer import GroupBuffer
from osmosis_ai.training.runs.metrics import StepRecord, read_history
from osmosis_ai.training.runs.rollouts import RolloutBatch, Sample, learner_batch, rollout_metrics
from osmosis_ai.training.runs.spec import DataOrder
from tests.lazily import lazily
from tests.training.samples import dataset_row, recorded, scored

with lazily("torch"):
    from tests.training.loop_world import LoopWorld

ORDER = DataOrder(tuple(range(7)), 2, epochs=10, seed=0)  # batches of 2, 2, 2 and 1


class Engine:
    failure: OsmosisError | None = None


class World:
    """A buffer whose groups are finished by the test; ``version`` samples the groups that start."""

    def __init__(self, informative: Callable[[int], bool] = lambda position: True, **settings: Any) -> None:
        settings = {"n_samples_per_prompt": 2} | settings
        self.settings = TrainingSettings(rollout_batch_size=2, **settings)
        self.informative, self.engine, self.version = informative, Engine(), 0
        self.finishes_when_cancelled = False
        self.started: list[int] = []
        self.running: dict[int, asyncio.Future[None]] = {}
        self.left: dict[int, list[Attempt]] = {}
        self.finish_one: dict[int, Callable[[], None]] = {}
        self.batches: list[RolloutBatch] = []
        self.buffer = self.buffer_after([])

    def buffer_after(self, records: Sequence[StepRecord], rewound: Sequence[StepRecord] = ()) -> GroupBuffer:
        rows, last = {row: dataset_row(row) for row in ORDER.rows}, max((r.step for r in records), default=0)
        self.started.clear()
        self.running.clear()
        return GroupBuffer(
            self,  # type: ignore[arg-type]
            self.engine,  # type: ignore[arg-type]
            rows,
            ORDER,
            self.settings,
            step=last,
            records=records,
            rewound=rewound,
        )

    async def sample(
        self,
        attempts: Sequence[Attempt],
        finished: Callable[[Attempt, Sample], None],
        unfinished: Callable[[Attempt, RecordedRollout], None],
    ) -> None:
        step, row = int(attempts[0].name.split("-")[1]), attempts[0].row_index
        position = next(n for n in itertools.count() if ORDER.at(n) == (step, row))
        self.started.append(position)
        version = self.version
        gate = self.running[position] = asyncio.get_running_loop().create_future()
        left = self.left[position] = list(attempts)

        def finish_one() -> None:
            attempt = left.pop(0)
            reward = float(self.informative(position)) * (attempt.run_index % 2)
            finished(attempt, scored(reward, versions=(version,)))

        self.finish_one[position] = finish_one
        try:
            await gate
            while left:
                finish_one()
        finally:
            self.running.pop(position, None)
            while left and self.finishes_when_cancelled:
                finish_one()
            for attempt in left:
                unfinished(attempt, recorded(versions=(version,)))

    async def finish(self, *positions: int) -> None:
        for position in positions:
            self.running.pop(position).set_result(None)
            await settle()

    async def begin(self, step: int) -> asyncio.Task[RolloutBatch]:
        taking = asyncio.create_task(self.buffer.take(step, self.version))
        await settle()
        return taking

    async def steps(self, first: int, last: int, rng: random.Random) -> list[RolloutBatch]:
        """Take steps while groups finish in a random order; some are slow, and some updates are refused."""
        found = []
        for step in range(first, last + 1):
            taking = await self.begin(step)
            while not taking.done():
                for n in self.running:
                    if len(self.left[n]) > 1 and rng.random() < 0.3:
                        self.finish_one[n]()
                likely = [n for n in self.running if rng.random() < (0.05 if n % 5 == 0 else 0.8)]
                for n in rng.sample(likely, len(likely)):
                    if n in self.running:  # not cancelled meanwhile
                        await self.finish(n)
                await settle()
            found.append(taking.result())
            self.version += rng.random() < 0.9
        return found


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def record_of(batch: RolloutBatch) -> StepRecord:
    return StepRecord(batch.step, 0, {}, groups=list(batch.positions), dropped=list(batch.dropped))


def versions(batch: RolloutBatch) -> set[int]:
    return {version for sample in batch.samples for version in sample.recorded.sequences[0].versions[3:]}


def test_positions_follow_the_batches_into_further_epochs() -> None:
    found = [ORDER.at(position) for position in range(14)]
    assert found == [(step, row) for step in range(1, 9) for row in ORDER.batch(step)]
    assert [ORDER.first_position(step) for step in range(1, 10)] == [0, 2, 4, 6, 7, 9, 11, 13, 14]


async def test_a_step_takes_the_first_finished_groups_in_the_order_of_their_start() -> None:
    world = World(max_staleness=1)
    taking = await world.begin(1)
    assert world.started == [0, 1, 2, 3], "the groups of steps 1 and 2"
    await world.finish(3)
    assert not taking.done()
    await world.finish(1)
    assert (await taking).positions == [1, 3], "group 0 is slow and delays only itself"
    world.version += 1
    taking = await world.begin(2)
    assert world.started[4:] == [4, 5]
    await world.finish(4, 0)
    batch = await taking
    assert (batch.positions, versions(batch), batch.dropped) == ([0, 4], {0, 1}, [])


async def test_without_staleness_a_step_waits_for_its_own_groups() -> None:
    world = World()
    for step, positions in ((1, [0, 1]), (2, [2, 3]), (3, [4, 5]), (4, [6]), (5, [7, 8])):
        taking = await world.begin(step)
        assert sorted(world.running) == positions
        await world.finish(*reversed(positions))
        batch = await taking
        assert (batch.positions, batch.replaced, batch.dropped_attempts) == (positions, None, None)


async def test_a_group_with_tokens_that_are_too_old_is_dropped_and_replaced() -> None:
    world = World(max_staleness=1)
    for step, finished in ((1, (1, 2)), (2, (3, 4))):
        taking = await world.begin(step)
        await world.finish(*finished)
        await taking
        world.version += 1
    assert list(world.running) == [0, 5]
    taking = await world.begin(3)
    assert list(world.running) == [0, 5, 6, 7], "a further group runs in addition to the one that is too old"
    await world.finish(0)
    assert list(world.running) == [5, 6, 7], "steps 3 and 4 need three groups"
    await world.finish(6, 5)
    batch = await taking
    assert (batch.positions, batch.dropped) == ([5, 6], [0])


async def test_a_group_is_taken_without_its_slow_attempts_before_the_others_are_too_old() -> None:
    world = World(n_samples_per_prompt=4, max_staleness=1)
    taking = await world.begin(1)
    for _ in range(3):
        world.finish_one[0]()
    world.finish_one[1]()
    await world.finish(2, 3)
    batch = await taking
    assert (batch.positions, batch.dropped_attempts) == ([2, 3], []), (
        "the next step can wait for the slow ones"
    )
    world.version += 1
    taking = await world.begin(2)
    assert world.started[4:] == [4, 5]
    await world.finish(5)
    assert not taking.done(), "an incomplete group replaces none that is complete"
    await world.finish(4)
    batch = await taking
    assert (batch.positions, batch.dropped) == ([0, 4], [])
    assert [[sample.reward for sample in group] for group in batch.samples_PG] == [[0, 1, 0], [0, 1, 0, 1]]
    assert [each.sampled_tokens for each in batch.dropped_attempts or ()] == [2], "the cancelled attempt"
    assert 0 not in world.running
    world.version += 1
    taking = await world.begin(3)
    await world.finish(6)
    batch = await taking
    assert (batch.positions, batch.dropped) == ([5, 6], [1]), (
        "one attempt teaches nothing, and is too old now"
    )
    assert len(batch.dropped_attempts or ()) == 4
    metrics = rollout_metrics(batch, learner_batch(batch, normalise=True).statistics, world.version)
    assert metrics["rollout/dropped_stale"] == 4 / (4 + 8)
    assert metrics["rollout/dropped_stale_lengths"] == 2
    await world.buffer.abandon()


async def test_a_slow_attempt_that_finishes_while_it_is_cancelled_is_not_used() -> None:
    world = World(n_samples_per_prompt=3, max_staleness=1)
    world.finishes_when_cancelled = True
    taking = await world.begin(1)
    world.finish_one[0]()
    world.finish_one[0]()
    await world.finish(2, 3)
    await taking
    world.version += 1
    taking = await world.begin(2)
    await world.finish(4, 5)
    batch = await taking
    assert [len(group) for group in batch.samples_PG] == [2, 3]
    assert len(batch.dropped_attempts or ()) == 1
    await world.buffer.abandon()


@pytest.mark.parametrize("seed", range(10))
async def test_refill_takes_the_smallest_prefix_with_enough_informative_groups(seed: int) -> None:
    world = World(lambda position: position in {1, 5, 6, 7, 11, 12, 13}, refill=True)
    batches = await world.steps(1, 4, random.Random(seed))
    assert [list(batch.positions) for batch in batches] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7],
        [8, 9, 10, 11, 12],
        [13],
    ]
    assert [batch.replaced for batch in batches] == [4, 0, 3, 0]
    assert world.started == sorted(world.started)


async def test_refill_replaces_at_most_three_times_the_batch() -> None:
    world = World(lambda position: False, refill=True)
    batches = await world.steps(1, 2, random.Random(0))
    most = 2 * (MOST_REPLACED + 1)
    assert [list(batch.positions) for batch in batches] == [list(range(most)), list(range(most, 2 * most))]
    assert [batch.replaced for batch in batches] == [2 * MOST_REPLACED] * 2
    assert ORDER.at(2 * most) == (10, ORDER.batch(10)[0])
    assert world.buffer.last_sampled_step() == 9, "the files of nine steps' groups are complete"


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
async def test_no_token_is_too_old_and_no_group_is_lost_or_repeated(
    seed: int, max_staleness: int, refill: bool
) -> None:
    informative = lambda position: position % 3 > 0  # noqa: E731
    world = World(informative, n_samples_per_prompt=4, max_staleness=max_staleness, refill=refill)
    last, rng = 40, random.Random(seed)
    done: list[int] = []
    dropped = incomplete = 0
    for step in range(1, last + 1):
        version = world.version
        (batch,) = await world.steps(step, step, rng)
        assert max(version - sampled_by for sampled_by in versions(batch)) <= max_staleness
        size = len(ORDER.batch(step))
        assert len(batch.positions) == size + (batch.replaced or 0)
        incomplete += sum(len(samples) < 4 for samples in batch.samples_PG)
        done += [*batch.positions, *batch.dropped]
        dropped += len(batch.dropped)
    assert len(set(done)) == len(done)
    assert set(range(max(done) + 1)) - set(done) <= world.running.keys() | world.buffer._groups.keys()
    assert (dropped > 0) == (incomplete > 0) == (max_staleness > 0)


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_a_resumed_run_repeats_the_recorded_groups_and_loses_none(seed: int, refill: bool) -> None:
    world = World(lambda position: position % 3 > 0, max_staleness=2, refill=refill)
    before = await world.steps(1, 9, random.Random(seed))
    await world.buffer.abandon()
    records = [record_of(batch) for batch in before]
    world.buffer = world.buffer_after(records[:5], rewound=records[5:])
    again = await world.steps(6, 30, random.Random(seed + 100))
    assert [batch.positions for batch in again[:4]] == [batch.positions for batch in before[5:]]
    assert [batch.replaced for batch in again[:4]] == [batch.replaced for batch in before[5:]]
    done = [n for batch in (*before[:5], *again) for n in (*batch.positions, *batch.dropped)]
    assert len(set(done)) == len(done)
    assert set(range(max(done) + 1)) - set(done) <= world.buffer._groups.keys()


async def test_recorded_groups_that_are_now_too_old_are_not_waited_for() -> None:
    world = World(max_staleness=1)
    rewound = [StepRecord(step, 0, {}, groups=groups) for step, groups in ((1, [0, 2]), (2, [3, 5]))]
    world.buffer = world.buffer_after([], rewound)
    taking = await world.begin(1)
    await world.finish(3, 0, 1)
    assert not taking.done(), "the recorded group 2 is not finished"
    await world.finish(2)
    assert (await taking).positions == [0, 2]
    world.version = 2
    taking = await world.begin(2)
    await world.finish(4, 5)
    batch = await taking
    assert (batch.positions, batch.dropped) == ([4, 5], [1, 3])
    await world.buffer.abandon()


async def test_recorded_groups_that_occur_twice_are_taken_once() -> None:
    world = World(max_staleness=1)
    records = [StepRecord(1, 0, {}, groups=[0, 1])]
    world.buffer = world.buffer_after(records, rewound=[StepRecord(2, 0, {}, groups=[3, 3, 1])])
    taking = await world.begin(2)
    assert 1 not in world.running
    await world.finish(3)
    assert (await taking).positions == [3]
    await world.buffer.abandon()


async def test_abandoned_groups_start_again() -> None:
    world = World(max_staleness=1, refill=True)
    taking = await world.begin(1)
    await world.finish(2, 1)
    await taking
    taking = await world.begin(2)
    await world.finish(3)
    taking.cancel()
    await world.buffer.abandon()
    assert not world.running
    world.started.clear()
    taking = await world.begin(2)
    assert world.started == [0, 3, 4, 5]
    await world.finish(0, 3)
    assert (await taking).positions == [0, 3]
    await world.buffer.abandon()


async def test_a_failed_group_or_engine_ends_the_step() -> None:
    world = World(lambda position: False, max_staleness=1, refill=True)
    taking = await world.begin(1)
    world.running.pop(3).set_exception(OsmosisError("the server is lost"))
    with pytest.raises(OsmosisError, match="the server is lost"):
        await taking
    await world.buffer.abandon()
    taking = await world.begin(1)
    world.engine.failure = OsmosisError("the engine failed")
    await world.finish(0)
    with pytest.raises(OsmosisError, match="the engine failed"):
        await taking
    assert len(world.running) == 3, "no group replaces one that a broken engine sampled"
    await world.buffer.abandon()


class SimulatedTime(asyncio.SelectorEventLoop):
    """A loop that does not wait: its clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now, select = 0.0, self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None = None) -> Any:
            self.now += timeout or 0
            return select(0)

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


def simulated_step_s(max_staleness: int, slow: float, seed: int = 0, pace: float = 1) -> float:
    """Return the time of a step of 64 attempts if sampling takes 1.2 s, learning 1 s, and slow attempts 4 s more.

    ``pace`` divides all times but the 4 s.
    """
    last = 20
    order = DataOrder(tuple(range(100)), 8, epochs=10, seed=0, max_steps=last)
    settings = TrainingSettings(rollout_batch_size=8, n_samples_per_prompt=8, max_staleness=max_staleness)
    rows = {row: dataset_row(row) for row in order.rows}
    version = 0

    async def attempt(each: Attempt, engine: asyncio.Lock) -> Sample:
        if random.Random(f"{seed}-{each.name}").random() < slow:
            await asyncio.sleep(4)
        async with engine:
            sampled_by = version
            await asyncio.sleep(1.2 / 64 / pace)
        return scored(float(each.run_index % 2), versions=(sampled_by,))

    async def train() -> float:
        nonlocal version
        engine, done_at = asyncio.Lock(), []

        class Sampler:
            async def sample(self, attempts: Sequence[Attempt], finished: Any, unfinished: Any) -> None:
                async def run(each: Attempt) -> None:
                    finished(each, await attempt(each, engine))

                await asyncio.gather(*map(run, attempts))

        buffer = GroupBuffer(
            Sampler(),  # type: ignore[arg-type]
            Engine(),  # type: ignore[arg-type]
            rows,
            order,
            settings,
            step=0,
            records=(),
            rewound=(),
        )
        for step in range(1, last + 1):
            batch = await buffer.take(step, version)
            assert version - min(versions(batch)) <= max_staleness
            await asyncio.sleep(1 / pace)
            version += 1
            done_at.append(asyncio.get_running_loop().time())
        await buffer.abandon()
        return (done_at[-1] - done_at[0]) / (last - 1)

    loop = SimulatedTime()
    try:
        return loop.run_until_complete(train())
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("max_staleness", "pace", "low", "high"),
    [(0, 1, 2.0, 2.5), (1, 1, 1.2, 1.6), (4, 1, 1.0, 1.15), (4, 2, 1.0, 1.15), (4, 4, 1.0, 1.15)],
)
def test_slow_attempts_hardly_delay_steps_that_sample_ahead(
    max_staleness: int, pace: float, low: float, high: float
) -> None:
    alone = simulated_step_s(max_staleness, slow=0, pace=pace)
    assert alone * pace == pytest.approx(1.2 if max_staleness else 2.2, abs=0.05)
    ratios = [simulated_step_s(max_staleness, slow=0.05, seed=seed, pace=pace) / alone for seed in range(3)]
    assert low < sum(ratios) / 3 < high


async def test_a_run_records_its_groups_and_continues_after_a_crash_with_the_others(tmp_path: Any) -> None:
    world = LoopWorld(
        tmp_path,
        max_staleness=1,
        refill=True,
        max_steps=6,
        checkpoint_save_freq=2,
        rewards=lambda step, n: step % 3 and n,
    )
    await world.run()
    records = list(read_history(world.history.path))[1:]
    # The rows of steps 3 and 6 teach nothing.
    assert [record.groups for record in records] == [
        [0, 1],
        [2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [10, 11, 12, 13],
        [14, 15],
    ]
    assert [record.metrics["rollout/replaced"] for record in records] == [0, 0, 2, 0, 2, 0]
    assert [record.metrics["rollout/dropped_stale"] for record in records] == [0] * 6
    for checkpoint in world.checkpoints.list()[1:]:
        shutil.rmtree(checkpoint.directory)
    world.resume()
    assert world.loop.state.step == 2
    await world.run()
    assert [record.groups for record in read_history(world.history.path)][1:] == [r.groups for r in records]
    assert world.loop.state.step == 6

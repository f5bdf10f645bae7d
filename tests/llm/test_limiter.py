from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.llm import limiter as limiter_module
from osmosis_ai.llm.limiter import Limiter, shared_limiter

EVENTS = st.lists(st.one_of(st.booleans(), st.integers(min_value=0, max_value=5)), max_size=300)


@given(ceiling=st.integers(1, 500), events=EVENTS)
def test_the_limit_stays_between_one_and_the_ceiling(ceiling: int, events: list[bool | int]) -> None:
    limit = Limiter(ceiling)
    for event in events:
        if isinstance(event, bool):
            limit.answered(saturated=event)
        else:
            limit.refused(limit.epoch - event)
        assert 1 <= limit.limit <= ceiling


def test_the_limit_doubles_with_every_round_of_answers_until_the_first_rate_limit() -> None:
    limit = Limiter(1000)
    for expected in (40, 80, 160):
        for _ in range(limit.limit):
            limit.answered(saturated=True)
        assert limit.limit == expected


@given(start=st.integers(1, 400))
def test_after_a_rate_limit_a_round_of_answers_adds_a_twentieth_but_at_least_one(start: int) -> None:
    limit = Limiter(10_000, start=start)
    limit.refused(limit.epoch)
    before = limit.limit
    for _ in range(before + 1):
        limit.answered(saturated=True)
    assert before + 1 <= limit.limit <= before + 2 + before * 0.06


async def test_calls_run_up_to_the_limit_and_all_get_a_slot() -> None:
    limiter = Limiter(7)
    running = most = finished = 0

    async def call() -> None:
        nonlocal running, most, finished
        async with limiter.slot() as slot:
            running += 1
            most = max(most, running)
            for _ in range(random.Random(finished).randrange(4)):
                await asyncio.sleep(0)
            running -= 1
            finished += 1
            slot.answered = True

    await asyncio.gather(*(call() for _ in range(200)))
    assert (most, finished, limiter.in_flight, limiter.waiting) == (7, 200, 0, 0)


async def test_slots_are_assigned_in_the_order_of_arrival() -> None:
    limiter = Limiter(1)
    order: list[int] = []

    async def call(number: int) -> None:
        async with limiter.slot():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(call(number) for number in range(20)))
    assert order == list(range(20))


@pytest.mark.parametrize("seed", range(5))
async def test_cancelled_calls_lose_no_slot(seed: int) -> None:
    chance = random.Random(seed)
    limiter = Limiter(3)

    async def call() -> None:
        async with limiter.slot():
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(call()) for _ in range(100)]
    for _ in range(40):
        await asyncio.sleep(0)
        chance.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
    async with limiter.slot():
        assert limiter.in_flight == 1


async def test_pause() -> None:
    now = [100.0]
    limiter = Limiter(5, clock=lambda: now[0])
    limiter.pause(60.02)
    limiter.pause(1)

    async def call() -> None:
        async with limiter.slot():
            pass

    now[0] += 60
    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (limiter.in_flight, limiter.waiting, task.done()) == (0, 1, False)
    now[0] += 0.02
    await asyncio.wait_for(task, 60)


async def test_users_of_one_account_share_a_limiter_and_its_highest_ceiling() -> None:
    one = shared_limiter("a", ceiling=4)
    assert shared_limiter("a", ceiling=2) is one
    assert shared_limiter("b", ceiling=2) is not one
    shared_limiter("a", ceiling=40)
    for _ in range(100):
        one.answered(saturated=True)
    assert one.limit == 40
    with pytest.raises(ValueError, match="ceiling"):
        shared_limiter("c", ceiling=0)


async def test_the_limit_doubles_while_answers_are_slow_until_the_first_rate_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limiter_module, "PROBE_S", 0.0)
    for refused, most in ((False, 100), (True, 16)):
        limiter, release = Limiter(100), asyncio.Event()
        if refused:
            async with limiter.slot() as slot:
                slot.refused = True

        async def call(limiter: Limiter = limiter, release: asyncio.Event = release) -> None:
            async with limiter.slot():
                await release.wait()

        calls = [asyncio.create_task(call()) for _ in range(200)]
        while limiter.in_flight < most:  # noqa: ASYNC110 - the limiter does not signal it
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (limiter.in_flight, limiter.waiting) == (most, 200 - most)
        release.set()
        await asyncio.gather(*calls)

"""Rollouts that wait for each other in the local backend: places, status, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    ExecutionResult,
    GraderContext,
    LocalBackend,
    RolloutStatus,
)
from osmosis_ai.rollout.backend.local import ledger
from osmosis_ai.rollout.backend.local.slots import SlotLimiter

from .local_rollouts import NOTHING_YET, execute, grader, hang, request, until, workflow
from .world import ExactMatch, SayOk


class TestStatusAndCancellation:
    async def test_a_rollout_can_be_followed_through_its_life(self) -> None:
        steps = {name: asyncio.Event() for name in ("run", "grade")}
        seen: list[Any] = []

        async def run(ctx: AgentWorkflowContext) -> Any:
            await steps["run"].wait()
            return ctx.prompt

        async def grade(ctx: GraderContext) -> None:
            await steps["grade"].wait()
            ctx.set_reward(0.25)

        config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
        backend = LocalBackend(workflow=workflow(run), grader=grader(grade), workflow_config=config)

        def status(name: str) -> Any:
            told = backend.rollout_status(name)
            return told and told["status"].value

        assert backend.rollout_status("first") is None
        first = asyncio.create_task(execute(backend, request("first")))
        second = asyncio.create_task(execute(backend, request("second")))
        await until(lambda: backend.limiter.queued == 1)
        seen.append((status("first"), status("second")))
        steps["run"].set()
        await until(lambda: status("first") == "grading")
        steps["grade"].set()
        await asyncio.gather(first, second)

        assert seen == [("running", "queued")]
        assert backend.rollout_status("first") == {"status": "success", "reward": 0.25, "err_message": None}

    async def test_queued_and_running_rollouts_can_be_cancelled(self) -> None:
        config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
        backend = LocalBackend(workflow=workflow(hang), workflow_config=config)
        tasks = [asyncio.create_task(execute(backend, request(name))) for name in ("a1", "a2", "b1")]
        await until(lambda: backend.limiter.queued == 2)

        assert backend.cancel_rollouts(ids=["a2", "nobody"]) == {
            "a2": "cancelled_queued",
            "nobody": "not_found",
        }
        await until(lambda: tasks[1].done())
        assert backend.cancel_rollouts(prefix="a") == {"a1": "cancelled_running"}
        await until(lambda: backend.rollout_status("b1") == {**NOTHING_YET, "status": "running"})
        assert backend.cancel_rollouts(all=True) == {"b1": "cancelled_running"}
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert backend.health()["concurrency"]["running"] == 0
        told = backend.rollout_status("a1")
        assert told is not None and told["status"] is RolloutStatus.CANCELLED
        assert backend.cancel_rollouts(ids=["a1"]) == {"a1": "not_found"}

    async def test_an_id_runs_once_at_a_time(self) -> None:
        backend = LocalBackend(workflow=workflow(hang))
        task = asyncio.create_task(execute(backend, request()))
        await until(lambda: backend.limiter.running == 1)

        with pytest.raises(ValueError, match="already running"):
            await execute(backend, request())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_ended_rollouts_are_remembered_in_bounded_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger, "FINISHED_LIMIT", 3)
        backend = LocalBackend(workflow=SayOk, grader=ExactMatch)

        for number in range(5):
            await execute(backend, request(str(number)))

        assert [backend.rollout_status(str(number)) is None for number in range(5)] == [
            True,
            True,
            False,
            False,
            False,
        ]

    async def test_a_callback_that_raises_frees_the_slot(self) -> None:
        backend = LocalBackend(workflow=SayOk)

        async def fail(result: ExecutionResult) -> None:
            raise RuntimeError("nobody listens")

        with pytest.raises(RuntimeError):
            await backend.execute(request(), fail)

        assert backend.health()["concurrency"]["running"] == 0
        told = backend.rollout_status("r1")
        assert told is not None and told["status"] is RolloutStatus.FAILURE


class TestSlots:
    async def test_slots_go_to_the_first_that_waits(self) -> None:
        slots = SlotLimiter(1)
        order: list[int] = []

        async def take(number: int) -> None:
            assert await slots.acquire()
            order.append(number)
            await asyncio.sleep(0)
            slots.release()

        await asyncio.gather(*(take(number) for number in range(5)))

        assert order == [0, 1, 2, 3, 4]
        assert (slots.running, slots.queued) == (0, 0)

    async def test_a_slot_handed_to_a_waiter_that_is_cancelled_at_that_moment_is_not_lost(self) -> None:
        slots = SlotLimiter(1)
        assert await slots.acquire()
        waiter = asyncio.ensure_future(slots.acquire())
        await asyncio.sleep(0)

        slots.release()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)

        assert waiter.cancelled()
        assert slots.running == 0
        assert await slots.acquire(timeout_s=0)

    async def test_waiting_ends_at_its_deadline(self) -> None:
        slots = SlotLimiter(1)
        assert await slots.acquire()

        assert not await slots.acquire(timeout_s=0.01)
        assert (slots.running, slots.queued) == (1, 0)

    async def test_the_slot_of_a_backend_is_a_context_manager(self) -> None:
        config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
        slots = LocalBackend(workflow=SayOk, grader=ExactMatch, workflow_config=config).limiter

        async def use(timeout_s: float | None = None) -> None:
            async with slots.acquire(timeout_s):
                assert (slots.running, slots.queued) == (1, 0)
                await (use(timeout_s=0.01) if timeout_s is None else asyncio.sleep(0))

        with pytest.raises(asyncio.TimeoutError):
            await use()
        assert (slots.running, slots.queued) == (0, 0)
        await use(timeout_s=1)
        assert (slots.running, slots.queued) == (0, 0)

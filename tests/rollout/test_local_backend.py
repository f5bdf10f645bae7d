"""The local backend: how workflows and graders run, wait, end, and fail."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    ExecutionResult,
    Grader,
    GraderConfig,
    GraderContext,
    LocalBackend,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.backend.local import backend as deadline
from osmosis_ai.rollout.backend.local.backend import SlotLimiter

from .local_rollouts import NOTHING_YET, PROMPT, execute, grader, hang, request, until, workflow
from .world import ExactMatch, SayOk


class TestWorkflow:
    async def test_every_rollout_has_its_own_copy_of_the_config(self) -> None:
        class Config(AgentWorkflowConfig):
            seen: list[str] = []

        class Remembers(AgentWorkflow[Config]):
            async def run(self, ctx: AgentWorkflowContext[Config]) -> Any:
                assert ctx.config is self.config and ctx.config is not None
                ctx.config.seen.append("x")
                return [{"role": "assistant", "content": str(len(ctx.config.seen))}]

        config = Config(name="c")
        backend = LocalBackend(workflow=Remembers, workflow_config=config)

        for name in ("a", "b"):
            result = await backend.run_workflow(request(name))
            assert result.sample is not None and result.sample.messages[0]["content"] == "1"
        assert config.seen == []

    async def test_a_registered_source_gives_the_sample_when_run_returns_none(self) -> None:
        class Session(SampleSource):
            async def get_sample(self) -> RolloutSample:
                return RolloutSample(messages=PROMPT, metrics={"from": "source"})

        async def run(ctx: AgentWorkflowContext) -> Any:
            context = get_rollout_context()
            assert context is not None and context.rollout_id == "r1"
            context.set_sample_source(Session())

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request())

        assert result.sample is not None
        assert (result.sample.label, result.sample.metrics) == (None, {"from": "source"})

    async def test_where_an_error_came_from_is_kept_without_what_it_says(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        async def fail(ctx: AgentWorkflowContext) -> Any:
            try:
                raise LookupError(ctx)
            except LookupError as error:
                raise Odd from error

        result = await LocalBackend(workflow=workflow(fail)).run_workflow(request())
        told = (result.extra_fields or {})["traceback"]
        assert "in fail" in told and "raise LookupError(ctx)\nLookupError\n\nwhich led to:\n\n" in told
        assert told.endswith("raise Odd from error\nOdd\n")

    @pytest.mark.parametrize(
        ("error", "category"),
        [
            (ValueError("bad value"), "validation_error"),
            (TypeError("bad type"), "validation_error"),
            (AssertionError("not so"), "validation_error"),
            (TimeoutError("the tool took too long"), "timeout"),
            (asyncio.TimeoutError("the socket took too long"), "timeout"),
            (RuntimeError("boom"), "agent_error"),
            (OSError("gone"), "agent_error"),
        ],
    )
    async def test_what_run_raises_is_told_with_its_own_message(
        self, error: Exception, category: str
    ) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            raise error

        completion, graded = await execute(LocalBackend(workflow=workflow(run), grader=ExactMatch), request())

        assert completion.status is RolloutStatus.FAILURE
        assert (completion.err_message, completion.err_category) == (
            str(error),
            RolloutErrorCategory(category),
        )
        assert (graded.status, graded.sample) == (RolloutStatus.FAILURE, None)
        assert (graded.err_message, graded.err_category) == (completion.err_message, completion.err_category)

    async def test_a_run_that_is_not_async_is_told_so(self) -> None:
        class Plain(AgentWorkflow):
            def run(self, ctx: AgentWorkflowContext) -> Any:  # type: ignore[override]
                return []

        result = await LocalBackend(workflow=Plain).run_workflow(request())

        assert "async def" in str(result.err_message)

    async def test_a_workflow_that_exits_the_process_ends_only_itself(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            sys.exit(3)

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request())

        assert result.err_category is RolloutErrorCategory.AGENT_ERROR
        assert "status 3" in str(result.err_message)

    async def test_a_workflow_that_cancels_itself_has_failed(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            raise asyncio.CancelledError

        assert (
            await LocalBackend(workflow=workflow(run)).run_workflow(request())
        ).status is RolloutStatus.FAILURE


class TestDeadlines:
    async def test_a_workflow_that_swallows_its_cancellation_and_returns_is_timed_out(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            try:
                await hang(None)
            except asyncio.CancelledError:
                return ctx.prompt

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request(agent_timeout_sec=0.02))

        assert result.err_category is RolloutErrorCategory.TIMEOUT

    async def test_a_workflow_that_ignores_its_cancellation_is_left_behind(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(deadline, "CANCEL_GRACE_S", 0.02)
        let_go = asyncio.Event()

        async def run(ctx: AgentWorkflowContext) -> Any:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue

        backend = LocalBackend(workflow=workflow(run))
        result = await backend.run_workflow(request(agent_timeout_sec=0.02))

        assert result.err_category is RolloutErrorCategory.TIMEOUT
        assert "left behind" in caplog.text
        let_go.set()
        await until(lambda: not deadline._left_behind)

    async def test_time_in_the_queue_eats_the_agents_budget(self) -> None:
        result = await LocalBackend(workflow=SayOk).run_workflow(
            request(agent_timeout_sec=5), queued_sec=5.25
        )

        assert result.err_category is RolloutErrorCategory.TIMEOUT
        assert "5s deadline (5.2s of it spent in the queue)" in str(result.err_message)

    async def test_a_rollout_whose_budget_runs_out_in_the_queue_reports_without_waiting_for_a_slot(
        self,
    ) -> None:
        backend = LocalBackend(
            workflow=workflow(hang),
            workflow_config=AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1)),
        )
        first = asyncio.create_task(execute(backend, request("first")))
        await until(lambda: backend.limiter.running == 1)

        completion, _ = await execute(backend, request("second", agent_timeout_sec=0.05))

        assert completion.err_category is RolloutErrorCategory.TIMEOUT
        assert backend.health()["concurrency"] == {"max_concurrent": 1, "queued": 0, "running": 1}
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


class TestGrader:
    async def test_a_grader_gets_the_row_and_its_own_config_and_no_model(self, artifact_root: Path) -> None:
        seen: dict[str, Any] = {}
        config = GraderConfig(name="g")

        class Looks(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                seen.update(
                    vars(ctx),
                    artifacts_dir=ctx.artifacts_dir,
                    config=self.config,
                    rollout=get_rollout_context(),
                )
                ctx.set_reward(0.5)

        backend = LocalBackend(workflow=SayOk, grader=Looks, grader_config=config)
        metadata = {"difficulty": "hard"}
        with RolloutContext(chat_completions_url="http://policy"):
            _, graded = await execute(backend, request(metadata=metadata, label=None))

        assert graded.sample is not None and graded.sample.reward == 0.5
        assert seen["config"] is config
        assert seen["rollout"] is None
        assert (seen["label"], seen["metadata"], seen["project_path"]) == (None, metadata, None)
        assert seen["artifacts_dir"] == artifact_root / "r1" / "artifacts"


class TestConstruction:
    def test_classes_may_be_named_by_strings(self) -> None:
        backend = LocalBackend(workflow=f"{SayOk.__module__}:SayOk", grader=f"{SayOk.__module__}:ExactMatch")

        assert (backend.workflow_cls, backend.grader_cls) == (SayOk, ExactMatch)

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("no-colon", ValueError),
            (":SayOk", ValueError),
            ("no.such.module:X", ImportError),
            (f"{SayOk.__module__}:Missing", ValueError),
            (f"{SayOk.__module__}:PROMPT", ValueError),
            ("osmosis_ai.rollout.agent_workflow:AgentWorkflow", TypeError),
            ("math:pi", TypeError),
            ("collections:OrderedDict", TypeError),
        ],
    )
    def test_a_bad_name_fails_at_once(self, name: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            LocalBackend(workflow=name)

    @pytest.mark.parametrize(
        ("config", "slots"),
        [
            (None, 4),
            (AgentWorkflowConfig(name="a"), None),
            (AgentWorkflowConfig(name="a", concurrency=ConcurrencyConfig(max_concurrent=9)), 9),
        ],
    )
    def test_the_config_sets_the_slots(self, config: Any, slots: int | None) -> None:
        assert LocalBackend(workflow=SayOk, workflow_config=config).health() == {
            "status": "ok",
            "concurrency": {"max_concurrent": slots, "queued": 0, "running": 0},
        }


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

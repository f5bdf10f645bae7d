"""The local backend: how workflows and graders run, wait, end, and fail."""

from __future__ import annotations

import asyncio
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
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout import backend as deadline
from osmosis_ai.rollout.backend import SlotLimiter

from .local_rollouts import execute, hang, request, until, workflow
from .world import ExactMatch, SayOk


async def test_each_rollout_has_its_own_config() -> None:
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


async def test_diagnostics_contain_the_traceback() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def fail(ctx: AgentWorkflowContext) -> Any:
        try:
            raise LookupError(ctx)
        except LookupError as error:
            raise Odd from error

    result = await LocalBackend(workflow=workflow(fail)).run_workflow(request())
    text = (result.extra_fields or {})["traceback"]
    assert "in fail" in text and "raise LookupError(ctx)\nLookupError\n\nwhich led to:\n\n" in text
    assert text.endswith("raise Odd from error\nOdd\n")


class Synchronous(AgentWorkflow):
    def run(self, ctx: AgentWorkflowContext) -> Any:  # type: ignore[override]
        return []


class FailsInConstructor(SayOk):
    def __init__(self, config: Any = None) -> None:
        raise ValueError("no model configured")


def raising(error: BaseException) -> type[AgentWorkflow]:
    async def run(ctx: AgentWorkflowContext) -> Any:
        raise error

    return workflow(run)


@pytest.mark.parametrize(
    ("run", "category", "message"),
    [
        (raising(ValueError("bad value")), "validation_error", "bad value"),
        (raising(TypeError("bad type")), "validation_error", "bad type"),
        (raising(AssertionError("not so")), "validation_error", "not so"),
        (raising(TimeoutError("the tool is slow")), "timeout", "the tool is slow"),
        (raising(asyncio.TimeoutError("the socket is slow")), "timeout", "the socket is slow"),
        (raising(RuntimeError("boom")), "agent_error", "boom"),
        (raising(SystemExit(3)), "agent_error", "the code tried to exit the process (status 3)"),
        (raising(asyncio.CancelledError()), "agent_error", "the code cancelled its own task"),
        (Synchronous, "validation_error", "`run` must be `async def`; it returned list"),
        (FailsInConstructor, "validation_error", "no model configured"),
    ],
)
async def test_a_failed_workflow(run: Any, category: str, message: str) -> None:
    completion, graded = await execute(LocalBackend(workflow=run, grader=ExactMatch), request())

    assert completion.status is graded.status is RolloutStatus.FAILURE
    assert (completion.err_message, completion.err_category) == (message, RolloutErrorCategory(category))
    assert (graded.err_message, graded.err_category) == (completion.err_message, completion.err_category)
    assert graded.sample is None


async def test_a_workflow_that_swallows_its_cancellation() -> None:
    async def run(ctx: AgentWorkflowContext) -> Any:
        try:
            await hang(None)
        except asyncio.CancelledError:
            return ctx.prompt

    result = await LocalBackend(workflow=workflow(run)).run_workflow(request(agent_timeout_sec=0.02))

    assert result.err_category is RolloutErrorCategory.TIMEOUT


async def test_a_workflow_that_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deadline, "CANCEL_GRACE_S", 0.02)
    released = asyncio.Event()

    async def run(ctx: AgentWorkflowContext) -> Any:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    backend = LocalBackend(workflow=workflow(run))
    result = await backend.run_workflow(request(agent_timeout_sec=0.02))

    assert result.err_category is RolloutErrorCategory.TIMEOUT
    assert "left behind" in caplog.text
    released.set()
    await until(lambda: not deadline._left_behind)


async def test_queue_time_counts_towards_the_deadline() -> None:
    result = await LocalBackend(workflow=SayOk).run_workflow(request(agent_timeout_sec=5), queued_sec=5.25)

    assert result.err_category is RolloutErrorCategory.TIMEOUT
    assert "5s deadline (5.2s of it spent in the queue)" in str(result.err_message)


async def test_a_timeout_in_the_queue() -> None:
    backend = LocalBackend(workflow=workflow(hang), workflow_config=named(1))
    first = asyncio.create_task(execute(backend, request("first")))
    await until(lambda: backend.limiter.running == 1)

    completion, _ = await execute(backend, request("second", agent_timeout_sec=0.05))

    assert completion.err_category is RolloutErrorCategory.TIMEOUT
    assert backend.health()["concurrency"] == {"max_concurrent": 1, "queued": 0, "running": 1}
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_context_of_a_grader(artifact_root: Path) -> None:
    seen: dict[str, Any] = {}
    config = GraderConfig(name="g")

    class Looks(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            seen.update(
                vars(ctx), artifacts_dir=ctx.artifacts_dir, config=self.config, rollout=get_rollout_context()
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


def test_classes_by_name() -> None:
    backend = LocalBackend(workflow=f"{SayOk.__module__}:SayOk", grader=f"{SayOk.__module__}:ExactMatch")

    assert (backend.workflow_cls, backend.grader_cls) == (SayOk, ExactMatch)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no-colon", ValueError, "`module:attribute`, not 'no-colon'"),
        (":SayOk", ValueError, "`module:attribute`"),
        ("no.such.module:X", ImportError, None),
        (f"{SayOk.__module__}:Missing", ValueError, "no `Missing`"),
        ("osmosis_ai.rollout.agent_workflow:AgentWorkflow", TypeError, None),
        ("math:pi", TypeError, None),
        ("collections:OrderedDict", TypeError, None),
    ],
)
def test_invalid_class_names(name: str, error: type[Exception], message: str | None) -> None:
    with pytest.raises(error, match=message):
        LocalBackend(workflow=name)


def named(max_concurrent: int | None) -> AgentWorkflowConfig:
    return AgentWorkflowConfig(name="c", concurrency=ConcurrencyConfig(max_concurrent=max_concurrent))


@pytest.mark.parametrize(("config", "slots"), [(None, 4), (named(None), None), (named(9), 9)])
def test_concurrency_of_the_config(config: Any, slots: int | None) -> None:
    health = LocalBackend(workflow=SayOk, workflow_config=config).health()
    assert health["concurrency"] == {"max_concurrent": slots, "queued": 0, "running": 0}


async def test_a_failing_callback_frees_the_slot() -> None:
    backend = LocalBackend(workflow=SayOk)

    async def fail(result: ExecutionResult) -> None:
        raise RuntimeError("nobody listens")

    with pytest.raises(RuntimeError):
        await backend.execute(request(), fail)

    assert backend.health()["concurrency"]["running"] == 0
    found = backend.rollout_status("r1")
    assert found is not None and found["status"] is RolloutStatus.FAILURE


async def test_slots_are_first_come_first_served() -> None:
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


async def test_a_slot_is_not_lost_when_its_waiter_is_cancelled() -> None:
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

"""The local backend: how workflows and graders run, end, and fail."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
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
from osmosis_ai.rollout.backend.local import deadline

from .local_rollouts import PROMPT, execute, grader, hang, request, until, workflow
from .world import ExactMatch, SayOk


class TestWorkflow:
    async def test_a_rollout_is_run_and_graded(self, artifact_root: Path) -> None:
        completion, graded = await execute(LocalBackend(workflow=SayOk, grader=ExactMatch), request())

        assert completion.status is RolloutStatus.SUCCESS
        assert graded.status is RolloutStatus.SUCCESS
        assert graded.sample is not None
        assert graded.sample.reward == 1.0
        assert graded.sample.label == "ok"
        assert graded.sample.messages == [*PROMPT, {"role": "assistant", "content": "ok"}]

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

    async def test_a_bare_workflow_has_no_config(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            return [{"role": "assistant", "content": repr(ctx.config)}]

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request())

        assert result.sample is not None and result.sample.messages[0]["content"] == "None"

    async def test_an_output_gives_its_metrics_and_the_row_its_label(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            return AgentWorkflowOutput(messages=ctx.prompt, metrics={"turns": 2})

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request())

        assert result.sample is not None
        assert (result.sample.label, result.sample.metrics) == ("ok", {"turns": 2.0})

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

    async def test_a_traceback_is_bounded(self) -> None:
        async def deep(ctx: AgentWorkflowContext, left: int = 300) -> Any:
            if left % 2:
                return await deep(ctx, left - 1)
            if left:
                return await deep(ctx, left=left - 1)
            raise LookupError

        result = await LocalBackend(workflow=workflow(deep)).run_workflow(request())
        told = (result.extra_fields or {})["traceback"]
        assert told.startswith("…") and told.endswith("LookupError\n") and len(told) < 11_000

    async def test_an_explicit_output_wins_over_a_source_even_without_messages(self) -> None:
        class Session(SampleSource):
            async def get_sample(self) -> RolloutSample:
                raise AssertionError("not asked")

        async def run(ctx: AgentWorkflowContext) -> Any:
            context = get_rollout_context()
            assert context is not None
            context.set_sample_source(Session())
            return AgentWorkflowOutput()

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request())

        assert (result.status, result.sample) == (RolloutStatus.SUCCESS, None)

    async def test_a_workflow_run_by_hand_uses_the_context_around_it(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            context = get_rollout_context()
            assert context is not None
            return [{"role": "assistant", "content": context.chat_completions_url}]

        backend = LocalBackend(workflow=workflow(run))
        with RolloutContext(chat_completions_url="http://model"):
            results = [await backend.run_workflow(request(name)) for name in ("a", "b")]

        assert [result.sample and result.sample.messages[0]["content"] for result in results] == [
            "http://model"
        ] * 2

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

    @pytest.mark.parametrize(
        ("error", "told"), [(KeyError("x"), "KeyError: 'x'"), (RuntimeError(), "RuntimeError")]
    )
    async def test_an_error_without_a_readable_text_is_told_by_its_type(
        self, error: Exception, told: str
    ) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            raise error

        assert (await LocalBackend(workflow=workflow(run)).run_workflow(request())).err_message == told

    async def test_a_constructor_that_raises_is_the_workflows_failure(self) -> None:
        class Broken(SayOk):
            def __init__(self, config: Any = None) -> None:
                raise ValueError("no model configured")

        completion, _ = await execute(LocalBackend(workflow=Broken, grader=ExactMatch), request())

        assert (completion.err_message, completion.err_category) == (
            "no model configured",
            "validation_error",
        )

    @pytest.mark.parametrize("value", ["text", {"role": "user"}, 1])
    async def test_a_wrong_return_type_is_a_validation_error(self, value: Any) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            return value

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request())

        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert type(value).__name__ in str(result.err_message)

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
    async def test_a_workflow_that_hangs_is_timed_out(self) -> None:
        completion, graded = await execute(
            LocalBackend(workflow=workflow(hang), grader=ExactMatch), request(agent_timeout_sec=0.05)
        )

        assert completion.err_category is RolloutErrorCategory.TIMEOUT
        assert "0.05s deadline" in str(completion.err_message)
        assert graded.err_category is RolloutErrorCategory.TIMEOUT

    async def test_a_source_that_hangs_is_timed_out_on_the_same_budget(self) -> None:
        class Session(SampleSource):
            async def get_sample(self) -> RolloutSample:
                await hang(None)
                raise AssertionError

        async def run(ctx: AgentWorkflowContext) -> Any:
            context = get_rollout_context()
            assert context is not None
            context.set_sample_source(Session())

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request(agent_timeout_sec=0.05))

        assert result.err_category is RolloutErrorCategory.TIMEOUT

    async def test_a_workflow_that_blocks_the_loop_past_its_deadline_is_timed_out(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> Any:
            time.sleep(0.1)  # noqa: ASYNC251 - the fault under test
            return ctx.prompt

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request(agent_timeout_sec=0.02))

        assert result.err_category is RolloutErrorCategory.TIMEOUT

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

    async def test_an_expired_budget_never_starts_the_workflow(self) -> None:
        started: list[str] = []

        async def run(ctx: AgentWorkflowContext) -> Any:
            started.append("run")

        result = await LocalBackend(workflow=workflow(run)).run_workflow(request(agent_timeout_sec=0))

        assert (result.err_category, started) == (RolloutErrorCategory.TIMEOUT, [])

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

    async def test_a_grader_that_hangs_is_timed_out_and_keeps_the_sample(self) -> None:
        completion, graded = await execute(
            LocalBackend(workflow=SayOk, grader=grader(hang)), request(grader_timeout_sec=0.05)
        )

        assert completion.status is RolloutStatus.SUCCESS
        assert graded.err_category is RolloutErrorCategory.TIMEOUT
        assert "0.05s deadline" in str(graded.err_message)
        assert graded.sample is not None


class TestGrader:
    async def test_a_grader_gets_the_row_and_its_own_config_and_no_model(self, artifact_root: Path) -> None:
        seen: dict[str, Any] = {}
        config = GraderConfig(name="g")

        class Looks(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                seen.update(vars(ctx), config=self.config, rollout=get_rollout_context())
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

    async def test_a_reward_of_nan_is_a_validation_error(self) -> None:
        async def grade(ctx: GraderContext) -> None:
            ctx.set_reward(float("nan"))

        _, graded = await execute(LocalBackend(workflow=SayOk, grader=grader(grade)), request())

        assert graded.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert graded.sample is not None and graded.sample.reward is None

    async def test_a_grader_that_sets_no_reward_is_a_validation_error(self) -> None:
        async def grade(ctx: GraderContext) -> None:
            return None

        _, graded = await execute(LocalBackend(workflow=SayOk, grader=grader(grade)), request())

        assert graded.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert "Sample has no reward after grading" in str(graded.err_message)

    async def test_a_removed_sample_needs_no_reward(self) -> None:
        async def grade(ctx: GraderContext) -> None:
            assert ctx.sample is not None
            ctx.sample.remove_sample = True

        _, graded = await execute(LocalBackend(workflow=SayOk, grader=grader(grade)), request())

        assert graded.status is RolloutStatus.SUCCESS

    async def test_without_a_sample_there_is_nothing_to_grade(self) -> None:
        async def run(ctx: AgentWorkflowContext) -> None:
            return None

        async def grade(ctx: GraderContext) -> None:
            return None

        completion, graded = await execute(
            LocalBackend(workflow=workflow(run), grader=grader(grade)), request()
        )

        assert completion.status is RolloutStatus.SUCCESS
        assert "No sample to grade" in str(graded.err_message)
        assert graded.err_category is RolloutErrorCategory.VALIDATION_ERROR

    @pytest.mark.parametrize(
        ("options", "changes"), [({}, {}), ({"grader": ExactMatch}, {"label": None, "metadata": None})]
    )
    async def test_what_cannot_be_graded_is_a_failure_that_says_why(
        self, options: dict[str, Any], changes: dict[str, Any]
    ) -> None:
        completion, graded = await execute(LocalBackend(workflow=SayOk, **options), request(**changes))

        assert completion.status is RolloutStatus.SUCCESS
        assert (graded.status, graded.sample, graded.err_category) == (RolloutStatus.FAILURE, None, None)
        assert "nothing was graded" in str(graded.err_message)

    async def test_no_grader_callback_means_no_grading(self) -> None:
        async def tell(result: ExecutionResult) -> None:
            return None

        result = await LocalBackend(workflow=SayOk, grader=ExactMatch).execute(request(), tell)

        assert result.sample is not None and result.sample.reward is None


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

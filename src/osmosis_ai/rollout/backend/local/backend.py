"""Backend that runs a project's workflow and grader in the server process."""

from __future__ import annotations

import copy
from typing import Any

from ...agent_workflow import AgentWorkflow
from ...artifacts import ArtifactsOnDemand
from ...context import AgentWorkflowContext, GraderContext, rollout_contextvar
from ...types.execution import ExecutionRequest
from ...types.output import coerce_output
from ...types.sample import RolloutSample
from .in_process import InProcessBackend, active_rollout, awaitable
from .loading import load_class, load_object

DEFAULT_MAX_CONCURRENT = 4


class _WorkflowContext(ArtifactsOnDemand, AgentWorkflowContext[Any]): ...


class _GraderContext(ArtifactsOnDemand, GraderContext): ...


class LocalBackend(InProcessBackend):
    """Runs a project's workflow and grader in this process.

    Args:
        workflow: An :class:`AgentWorkflow` class, ``"module:Class"``, or an instance that is shared by all rollouts.
        workflow_config: The configuration, or ``"module:name"``. Its ``concurrency.max_concurrent``
            is the number of slots (None: unlimited). The default without a configuration is four.
        grader: A :class:`Grader` class or ``"module:Class"``. Without a grader, rollouts are not graded.
        grader_config: The configuration, or ``"module:name"``.

    Raises:
        TypeError, ValueError, ImportError: An argument is invalid or cannot be loaded.
    """

    def __init__(
        self,
        *,
        workflow: Any,
        workflow_config: Any = None,
        grader: Any = None,
        grader_config: Any = None,
    ) -> None:
        workflow = load_object(workflow, "workflow")
        self._workflow = workflow if isinstance(workflow, AgentWorkflow) else None
        self.workflow_cls = load_class(type(workflow) if self._workflow else workflow, "workflow", "run")
        self.workflow_config = load_object(workflow_config, "workflow_config")
        self.grader_cls: Any = None if grader is None else load_class(grader, "grader", "grade")
        self.grader_config = load_object(grader_config, "grader_config")
        concurrency = getattr(self.workflow_config, "concurrency", None)
        super().__init__(
            DEFAULT_MAX_CONCURRENT
            if self.workflow_config is None
            else getattr(concurrency, "max_concurrent", None)
        )

    async def produce(self, request: ExecutionRequest) -> RolloutSample | None:
        """Run the workflow and return its sample."""
        config = copy.deepcopy(self.workflow_config)
        workflow = self._workflow or self.workflow_cls(config)
        context = _WorkflowContext(
            prompt=request.prompt,
            config=config,
            metadata=request.metadata,
        )
        context.artifacts_home = self.artifact_root / request.id
        with active_rollout(request.id) as rollout:
            output = coerce_output(await awaitable(workflow.run(context), "run"))
            if output is None:
                sample = await rollout.get_sample()
                if sample is not None and not isinstance(sample, RolloutSample):
                    raise TypeError(
                        f"the sample source returned {type(sample).__name__}, not a RolloutSample"
                    )
                return sample
        if output.messages is None:
            return None
        return RolloutSample(messages=output.messages, label=request.label, metrics=output.metrics)

    async def judge(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        """Grade the sample with a new grader."""
        # A grader's model calls must never be recorded as the policy's.
        rollout_contextvar.set(None)
        grader = self.grader_cls(self.grader_config)
        context = _GraderContext(
            label=request.label,
            sample=sample,
            metadata=request.metadata,
        )
        context.artifacts_home = self.artifact_root / request.id
        await awaitable(grader.grade(context), "grade")
        _check_reward(sample)

    def ungradable(self, request: ExecutionRequest, sample: RolloutSample | None) -> str | None:
        """Return why a finished rollout cannot be graded, or None if it can."""
        if self.grader_cls is None:
            return "nothing was graded: the server has no grader"
        if request.label is None and request.metadata is None:
            return "nothing was graded: the row has neither a label nor metadata"
        return None


def _check_reward(sample: RolloutSample | None) -> None:
    if sample is None:
        raise ValueError(
            "No sample to grade: the workflow returned no messages and registered no sample source"
        )
    if sample.reward is None and not sample.remove_sample:
        raise ValueError("Sample has no reward after grading: call `ctx.set_reward` in `grade`")

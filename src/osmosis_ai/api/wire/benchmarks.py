"""Benchmarks and their runs: the catalogue, a leaderboard, submission, how a run stands.

Numbers of runs come in free-form objects, whose keys differ between benchmarks: they are passed on as they are.
Statuses of runs: ``pending``, ``queued``, ``running``, ``finished``, ``failed``, ``stopped``.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from osmosis_ai.api.wire.base import Page, Timestamp, WireModel
from osmosis_ai.api.wire.runs import Run, RunSecrets, SubmittedRun


def _objects(value: Any) -> Any:
    """Leave out what stands among the objects of a list and is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else value


FreeForm = dict[str, Any]
FreeForms = Annotated[list[FreeForm], BeforeValidator(_objects)]


class TaskSet(WireModel):
    """A named choice of tasks; ``parity`` is the one that published results are comparable with."""

    name: str
    task_count: int = 0
    recommended: bool = False
    description: str | None = None


class TaskCategory(WireModel):
    name: str
    task_count: int = 0


class BenchmarkTask(WireModel):
    """``difficulty`` is ``easy``, ``medium`` or ``hard``."""

    name: str
    category: str | None = None
    difficulty: str | None = None


class UnavailableTasks(WireModel):
    reason: str | None = None
    tasks: FreeForms = []


class Benchmark(WireModel):
    """What list and detail say of a benchmark; ``source_ref`` is the key by which it is named."""

    id: str
    name: str
    source_type: str | None = None
    source_ref: str | None = None
    source_url: str | None = None
    description: str | None = None
    task_count: int = 0
    category_count: int = 0
    task_sets: list[TaskSet] = []
    sync_status: str = "ready"
    synced_task_count: int | None = None
    sync_error: str | None = None
    platform_url: str | None = None


class ListedBenchmark(Benchmark):
    run_count: int | None = None
    running_count: int | None = None
    last_run_at: Timestamp | None = None
    last_run_status: str | None = None
    last_run_name: str | None = None
    creator_name: str | None = None


class BenchmarkList(Page):
    benchmarks: list[ListedBenchmark]


class DescribedBenchmark(Benchmark):
    runner_family: str | None = None
    supports_harness: bool | None = None
    requires_harness: bool | None = None
    default_harness: str | None = None
    requires_judge_model: bool | None = None
    requires_judge_api_key: bool | None = None
    judge_model_default: str | None = None
    pass_threshold: float | None = None
    categories: list[TaskCategory] = []
    tasks: list[BenchmarkTask] = []
    unavailable_tasks: UnavailableTasks | None = None


class BenchmarkDetail(WireModel):
    benchmark: DescribedBenchmark
    leaderboard: FreeForms = []


class BenchmarkReference(WireModel):
    id: str | None = None
    name: str | None = None


class BenchmarkRun(Run):
    """A run's own fields; its name and its benchmark may come in either of two places."""

    benchmark_run_name: str | None = None
    benchmark: BenchmarkReference | None = None
    benchmark_id: str | None = None
    benchmark_name: str | None = None
    agent_count: int | None = None
    best_pass_at_1: float | None = None
    ingested_results: int | None = None
    expected_results: int | None = None


class BenchmarkRunList(Page):
    benchmark_runs: list[BenchmarkRun]


class BenchmarkProgress(WireModel):
    """How many results are there, of how many."""

    ingested: int | None = None
    expected: int | None = None


class BenchmarkRunDetail(WireModel):
    """A run in full; ``agents[].id`` is ``agent_metrics[].benchmark_run_agent_id``."""

    benchmark_run: BenchmarkRun
    configuration: FreeForm = {}
    agents: FreeForms = []
    progress: BenchmarkProgress | None = None
    totals: FreeForm = {}
    agent_metrics: FreeForms = []
    is_internal_user: bool = False


class BenchmarkRunSubmit(WireModel):
    """What is submitted: the config as it is written."""

    experiment_config: FreeForm
    agents: list[FreeForm]
    tasks_config: FreeForm = {}
    execution_config: FreeForm = {}
    env_config: dict[str, str] = {}
    secrets: RunSecrets | None = None


class SubmittedBenchmarkRun(SubmittedRun):
    workflow_id: str | None = None
    task_count: int | None = None

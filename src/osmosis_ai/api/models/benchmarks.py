"""Benchmarks and their runs. Objects whose keys differ between benchmarks are passed through unchanged."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field, computed_field

from osmosis_ai.api.models.base import Page, Timestamp, WireModel
from osmosis_ai.api.models.runs import Run, SubmittedRun

FreeForm = dict[str, Any]
FreeForms = Annotated[
    list[FreeForm],
    BeforeValidator(
        lambda found: [each for each in found if isinstance(each, dict)] if isinstance(found, list) else found
    ),
]


class TaskSet(WireModel):
    name: str
    task_count: int = 0
    recommended: bool = False
    description: str | None = None


class Benchmark(WireModel):
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

    @computed_field  # type: ignore[prop-decorator]
    @property
    def key(self) -> str | None:
        """The benchmark's name in commands and configs."""
        return self.source_ref


class ListedBenchmark(Benchmark):
    run_count: int | None = None
    running_count: int | None = None
    last_run_at: Timestamp | None = None
    last_run_status: str | None = None
    last_run_name: str | None = None
    creator_name: str | None = None


class BenchmarkList(Page[ListedBenchmark]):
    items: list[ListedBenchmark] = Field(alias="benchmarks")


class DescribedBenchmark(Benchmark):
    runner_family: str | None = None
    supports_harness: bool | None = None
    requires_harness: bool | None = None
    default_harness: str | None = None
    requires_judge_model: bool | None = None
    requires_judge_api_key: bool | None = None
    judge_model_default: str | None = None
    pass_threshold: float | None = None
    categories: FreeForms = []
    tasks: FreeForms = []
    unavailable_tasks: FreeForm | None = None


class BenchmarkDetail(WireModel):
    benchmark: DescribedBenchmark
    leaderboard: FreeForms = []


class BenchmarkRun(Run):
    """A run's own fields; name and benchmark have two spellings on the wire."""

    name: str | None = Field(default=None, validation_alias=AliasChoices("name", "benchmark_run_name"))
    benchmark_id: str | None = Field(
        default=None, validation_alias=AliasChoices("benchmark_id", AliasPath("benchmark", "id"))
    )
    benchmark_name: str | None = Field(
        default=None, validation_alias=AliasChoices("benchmark_name", AliasPath("benchmark", "name"))
    )
    agent_count: int | None = None
    best_pass_at_1: float | None = None
    ingested_results: int | None = None
    expected_results: int | None = None


class BenchmarkRunList(Page[BenchmarkRun]):
    items: list[BenchmarkRun] = Field(alias="benchmark_runs")


class BenchmarkRunDetail(WireModel):
    """A run in full; ``agents[].id`` is ``agent_metrics[].benchmark_run_agent_id``."""

    benchmark_run: BenchmarkRun
    configuration: FreeForm = {}
    agents: FreeForms = []
    progress: FreeForm | None = None
    totals: FreeForm = {}
    agent_metrics: FreeForms = []


class SubmittedBenchmarkRun(SubmittedRun):
    workflow_id: str | None = None
    task_count: int | None = None

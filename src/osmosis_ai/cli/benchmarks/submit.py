"""`osmosis benchmark submit`: agents on a benchmark of the hosted platform."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, OperationResult, Row, Table
from osmosis_ai.cli.runs.submit import (
    SecretsFileOption,
    closing_blocks,
    next_steps_structured,
    secret_rows,
    warn_without_panel,
)

if TYPE_CHECKING:
    from osmosis_ai.api.wire.benchmarks import SubmittedBenchmarkRun
    from osmosis_ai.services.benchmarks.submit import PreparedBenchmarkRun

_DEFAULTS = (
    ("attempts_per_task", "Attempts per task", 1),
    ("max_concurrent_attempts", "Max concurrent attempts", 4),
)


def submit(
    config: Annotated[Path, typer.Argument(help="A TOML file of configs/benchmark/.", show_default=False)],
    secrets_file: SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Submit a benchmark run: each agent of the config on each task.

    Secrets travel as names, unless a --secrets-file supplies values of those in [secrets].required.

    Examples:
        osmosis benchmark submit configs/benchmark/toy.toml
    """
    from osmosis_ai.config.benchmark import BENCHMARK
    from osmosis_ai.services.benchmarks.submit import PARITY_WARNING, prepare_benchmark, submit_benchmark
    from osmosis_ai.workspace.config_files import require_config_file
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    output = current()
    require_config_file(config, BENCHMARK)
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        prepared = prepare_benchmark(context, config, secret_values=values, tell=output.note)
        if prepared.parity_advice is not None:
            output.warn(prepared.parity_advice, PARITY_WARNING)
        output.show(*_tables(prepared))
        if yes:
            warn_without_panel(output, prepared.warnings)
        output.confirm(
            "Submit this benchmark run?",
            yes=yes,
            default=True,
            summary=_summary(prepared),
            notes=prepared.notes,
            warnings=prepared.warnings,
        )
        with output.status("Submitting benchmark run"):
            run = submit_benchmark(context, prepared)
        return OperationResult(
            operation="benchmark.submit",
            message=f"Benchmark run submitted: {run.name}",
            resource=_resource(run, prepared, context.resource()),
            next_steps=_next_steps(run, prepared),
            next_steps_structured=next_steps_structured("benchmark", run.name, run.platform_url),
        )


def _tables(prepared: PreparedBenchmarkRun) -> list[Block]:
    """Return what is about to be submitted, for people."""
    agents = prepared.described()["agents"]
    rows = [(_model(agent), agent.get("harness") or "the benchmark's", _type(agent)) for agent in agents]
    blocks: list[Block] = [
        Table(("", ""), _rows(prepared), title="Benchmark Run"),
        Table(("Model", "Harness", "Type"), rows, title=f"Agents ({len(agents)})"),
    ]
    return [
        *blocks,
        *closing_blocks(prepared.config.env, prepared.secrets, prepared.notes, prepared.warnings),
    ]


def _rows(prepared: PreparedBenchmarkRun) -> list[Row]:
    written = prepared.described()
    rows: list[Row] = [("Benchmark", written["experiment"]["benchmark"]), ("Tasks", _tasks(written["tasks"]))]
    rows.append(("Agents", len(written["agents"])))
    return [*rows, *((label, written["execution"].get(key, default)) for key, label, default in _DEFAULTS)]


def _tasks(tasks: Mapping[str, Any]) -> str:
    if tasks.get("task_set"):
        return f"the set {tasks['task_set']}"
    chosen = [
        f"{formats.count(len(tasks[key]))} {noun}"
        for key, noun in (("categories", "categories"), ("task_names", "tasks by name"))
        if tasks.get(key)
    ]
    return " and ".join(chosen) or "all"


def _summary(prepared: PreparedBenchmarkRun) -> dict[str, str]:
    rows = {label: str(value) for label, value in _rows(prepared)}
    agents = enumerate(prepared.described()["agents"])
    models = {f"agents[{position}]": f"{_model(agent)} ({_type(agent)})" for position, agent in agents}
    env = {f"env.{name}": value for name, value in sorted(prepared.config.env.items())}
    return {
        **rows,
        **models,
        **env,
        **{f"secret.{name}": scope for name, scope in secret_rows(prepared.secrets)},
    }


def _model(agent: Mapping[str, Any]) -> str:
    model = agent["model"]
    return str(model.get("model") or model["lora_model_name"])


def _type(agent: Mapping[str, Any]) -> str:
    return str(agent["model"]["type"])


def _resource(
    run: SubmittedBenchmarkRun, prepared: PreparedBenchmarkRun, extra: Mapping[str, Any]
) -> dict[str, Any]:
    known, described = run.model_dump(mode="json"), prepared.described()
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "benchmark_name": described["experiment"]["benchmark"],
        "workflow_id": run.workflow_id,
        "task_count": run.task_count,
        "created_at": known["created_at"],
        **({"platform_url": run.platform_url} if run.platform_url else {}),
        **extra,
        "config": described,
    }


def _next_steps(run: SubmittedBenchmarkRun, prepared: PreparedBenchmarkRun) -> list[str]:
    tasks = f"Tasks: {formats.count(run.task_count)}" if run.task_count is not None else None
    return [
        f"Status: {run.status}",
        f"Benchmark: {prepared.described()['experiment']['benchmark']}",
        *([tasks] if tasks else []),
        f"View: {run.platform_url}" if run.platform_url else f"View: osmosis benchmark runs info {run.name}",
    ]

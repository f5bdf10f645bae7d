"""`osmosis benchmark`: the hosted platform's benchmarks and the workspace's runs on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.completion import complete_benchmark
from osmosis_ai.cli.connection import explain_empty, list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption, RunArgument, YesOption
from osmosis_ai.cli.output import formats, results
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, DetailResult, ListResult, OperationResult, Table, Timestamp

if TYPE_CHECKING:
    from osmosis_ai.config.benchmark import BenchmarkConfig

app = typer.Typer()
runs = typer.Typer(help="List, inspect, stop and download benchmark runs.")
app.add_typer(runs, name="runs")

_CAPITALS = {"id": "ID", "url": "URL", "usd": "USD"}
_SYNCING = {"pending": "Queued", "syncing": "Syncing", "failed": "Failed"}
_CATALOG = (
    Column("Name", "name", keep=True),
    Column("Key", "key", keep=True),
    Column(
        "Last Run", value=lambda item: _SYNCING.get(item["sync_status"]) or Timestamp(item["last_run_at"])
    ),
    Column("Tasks", "task_count", right=True),
)
_RESULTS = "{completed:,} / {total:,}"
_RUNS = (
    Column("Name", value=lambda item: item["name"] or "(unnamed)", keep=True),
    Column("Status", "status", keep=True),
    Column("Benchmark", "benchmark_name"),
    Column("Agents", "agent_count", right=True),
    Column("Best pass@1", value=lambda item: formats.percent(item["best_pass_at_1"]), right=True),
    Column("Results", value=lambda item: _RESULTS.format(**item["progress"]) if "progress" in item else None),
    Column("Submitted", "created_at"),
    Column("Submitted By", "creator_name"),
)


@app.command("list")
def list_benchmarks(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the benchmarks of the platform.

    Examples:
        osmosis benchmark list
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services import benchmarks

    with platform_context() as context, current().status("Fetching benchmarks"):
        return list_result(
            benchmarks.list_benchmarks(context.client, limit=limit, everything=everything),
            columns=_CATALOG,
            extra=context.resource(),
            hints=explain_empty(context.client, Capability.BENCHMARKS),
        )


@app.command()
def info(
    key: Annotated[
        str, typer.Argument(help="Key, name or ID of a benchmark.", autocompletion=complete_benchmark)
    ],
    limit: LimitOption = 50,
    everything: AllOption = False,
) -> DetailResult:
    """Show a benchmark with its leaderboard and your runs.

    --limit and --all apply to the runs.

    Examples:
        osmosis benchmark info swe-bench-lite
    """
    from osmosis_ai.services import benchmarks

    with platform_context() as context, current().status("Fetching benchmark"):
        data = benchmarks.describe_benchmark(context.client, key, limit=limit, everything=everything)
    total = formats.count(data["runs_total_count"])
    note = (
        f"Showing {len(data['runs'])} of {total}. Use --all to list all." if data["runs_has_more"] else None
    )
    own = data["benchmark"]
    board = ("rank", "model", "harness", "task_set", "pass_at_1", "cost_per_task")
    tables = (
        _table("Leaderboard", _columns(*board), data["leaderboard"]),
        _table("Task sets", _columns("name", "task_count", "description"), own["task_sets"]),
        _table("Categories", _columns("name", "task_count"), own["categories"]),
        _table("Tasks", _columns("name", "category", "difficulty"), own["tasks"]),
        _table("Runs", _RUNS, data["runs"], note=note),
    )
    return DetailResult(
        data={**data, **context.resource()},
        title=own["name"],
        rows=_rows(own),
        blocks=[table for table in tables if table.rows],
    )


@app.command()
def submit(
    config: Annotated[Path, typer.Argument(help="TOML file in configs/benchmark/.")],
    secrets_file: options.SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Submit a benchmark run.

    Secrets are sent by name. --secrets-file supplies values for names of [secrets].required.

    Examples:
        osmosis benchmark submit configs/benchmark/toy.toml
    """
    from osmosis_ai.cli.runs import SubmitPlan, next_steps_structured
    from osmosis_ai.config.benchmark import BENCHMARK
    from osmosis_ai.services import benchmarks
    from osmosis_ai.workspace.config_files import require_config_file
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    output = current()
    require_config_file(config, BENCHMARK)
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        prepared = benchmarks.prepare_run(context, config, values)
        written, warnings = prepared.config, prepared.warnings
        if prepared.advice is not None:
            output.warn(prepared.advice, "HLE_PARITY_RECOMMENDED")
        facts = {**_facts(written), **_agents(written)}
        notes = [f"The config is read from this machine: {config.name}."]
        plan = SubmitPlan("benchmark", facts, written.env, prepared.secrets, notes, warnings)
        plan.show()
        plan.confirm(yes=yes)
        with output.status("Submitting benchmark run"):
            run = benchmarks.submit_run(context.client, prepared.body)
    key, url = written.experiment.benchmark, run.platform_url
    fields = run.model_dump(mode="json", exclude=None if url else {"platform_url"})
    view = f"View: {url or f'osmosis benchmark runs info {run.name}'}"
    return OperationResult(
        operation="benchmark.submit",
        message=f"Benchmark run submitted: {run.name}",
        resource={**fields, "benchmark_name": key, **context.resource(), "config": written.described()},
        next_steps=[f"Status: {run.status}", f"Benchmark: {key}", view],
        next_steps_structured=next_steps_structured("benchmark", run.name, url),
    )


@runs.command("list")
def list_runs(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the benchmark runs of the workspace, newest first.

    Examples:
        osmosis benchmark runs list --all
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services import benchmarks

    with platform_context() as context, current().status("Fetching benchmark runs"):
        return list_result(
            benchmarks.list_runs(context.client, limit=limit, everything=everything),
            item=benchmarks.listed_run,
            columns=_RUNS,
            extra=context.resource(),
            hints=explain_empty(context.client, Capability.BENCHMARKS),
        )


@runs.command("info")
def run_info(run: RunArgument) -> DetailResult:
    """Show a benchmark run and its agents.

    Examples:
        osmosis benchmark runs info amber-otter-42
    """
    from osmosis_ai.services import benchmarks

    with platform_context() as context, current().status("Fetching benchmark run"):
        data = benchmarks.describe_run(context.client, run)
    sections = [results.Section(name.capitalize(), _rows(data[name])) for name in ("configuration", "totals")]
    measured = {str(entry.get("benchmark_run_agent_id")): entry for entry in data["agent_metrics"]}
    agents = [{**measured.get(str(agent.get("id")), {}), **agent} for agent in data["agents"]]
    for agent in agents:
        names = (agent.get(name) for name in ("model_display_name", "model", "model_ref"))
        agent["model"] = next(filter(None, names), None)
    columns = ("agent_index", "model", "harness", "status", "pass_at_1", "rank")
    return DetailResult(
        data={**data, **context.resource()},
        title="Benchmark Run",
        rows=_rows(data["benchmark_run"]),
        blocks=[
            *(section for section in sections if section.rows),
            *([_table("Agents", _columns(*columns), agents)] if agents else []),
        ],
    )


@runs.command()
def logs(
    run: RunArgument, limit: options.LinesOption = 50, cursor: options.CursorOption = None
) -> ListResult:
    """Show the log of a benchmark run, newest line last.

    Examples:
        osmosis benchmark runs logs amber-otter-42 --limit 200
    """
    from osmosis_ai.cli.runs import page_result
    from osmosis_ai.services.runs.lifecycle import log_page

    with platform_context() as context, current().status("Fetching logs"):
        page, _ = log_page(context.client, "benchmark", run, limit=limit, cursor=cursor)
        return page_result(page, older=f"osmosis benchmark runs logs {run}", extra=context.resource())


@runs.command()
def stop(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Stop a benchmark run.

    Examples:
        osmosis benchmark runs stop amber-otter-42
    """
    from osmosis_ai.services import benchmarks
    from osmosis_ai.services.runs.lifecycle import post_stop

    with platform_context() as context:
        found = benchmarks.get_run(context.client, run).benchmark_run
        name, ended = found.name or found.id, found.status in benchmarks.ENDED
        summary = {"Run": name, "Id": found.id}
        current().confirm(f'Stop benchmark run "{name}"?', yes=yes, default=False, summary=summary)
        if not ended:
            post_stop(context.client, "benchmark", found.id)
    status = found.status if ended else "stopped"
    return OperationResult(
        operation="benchmark.stop",
        status="noop" if ended else "success",
        message=f'Benchmark run "{name}" {"is already " if ended else ""}{status}.',
        resource={"id": found.id, "name": found.name, "status": status, **context.resource()},
    )


@runs.command()
def download(
    run: RunArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory (default: .osmosis/benchmarks/RUN).")
    ] = None,
    types: Annotated[
        str, typer.Option("--type", help="Comma-separated: summary, results, artifacts, logs; or all.")
    ] = "summary,results",
    overwrite: options.RefetchOption = False,
    yes: options.DownloadYesOption = False,
) -> OperationResult:
    """Download the files of a benchmark run.

    Existing files of the same size are skipped.

    Examples:
        osmosis benchmark runs download amber-otter-42 --type all
    """
    from osmosis_ai.cli.runs import download_run
    from osmosis_ai.services import benchmarks
    from osmosis_ai.services.runs.download import BENCHMARK_FILES

    return download_run(
        run,
        BENCHMARK_FILES,
        lambda client: benchmarks.get_run(client, run).benchmark_run,
        operation="benchmark.download",
        types=types,
        output=output,
        overwrite=overwrite,
        yes=yes,
    )


def _facts(config: BenchmarkConfig) -> dict[str, str]:
    tasks, execution = config.tasks, config.execution
    chosen = [f"{len(tasks.categories)} categories"] if tasks.categories else []
    chosen += [f"{len(tasks.task_names)} tasks by name"] if tasks.task_names else []
    return {
        "Benchmark": config.experiment.benchmark,
        "Tasks": tasks.task_set or " and ".join(chosen) or "all",
        "Agents": str(len(config.agents)),
        "Attempts per task": str(execution.attempts_per_task or 1),
        "Max concurrent attempts": str(execution.max_concurrent_attempts or 4),
    }


def _agents(config: BenchmarkConfig) -> dict[str, str]:
    shown = {}
    for at, model in enumerate(agent.model for agent in config.agents):
        name = model.lora_model_name if model.type == "hosted" else model.model
        shown[f"agents[{at}]"] = f"{name} ({model.type})"
    return shown


def _rows(values: Mapping[str, Any]) -> list[results.Row]:
    return [(_label(name), text) for name, value in values.items() if (text := _text(value))]


def _columns(*names: str) -> list[Column]:
    def column(name: str) -> Column:
        return Column(_label(name), value=lambda item: _text(item.get(name)))

    return [column(name) for name in names]


def _table(
    title: str, columns: Sequence[Column], items: Iterable[Mapping[str, Any]], *, note: str | None = None
) -> Table:
    rows = [[column.cell(item) for column in columns] for item in items]
    return Table(columns, rows, title=title, note=note, in_plain=True)


def _label(name: str) -> str:
    words = [_CAPITALS.get(word, word) for word in name.split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def _text(value: Any) -> str | None:
    """Return a value of a free-form object as text; None unless it is a string, a number or a rate."""
    if isinstance(value, dict):
        rate, low, high = (value.get(name) for name in ("value", "ci_low", "ci_high"))
        if not _is_number(rate):
            return None
        interval = f" ({formats.percent_range(low, high)})" if _is_number(low) and _is_number(high) else ""
        return formats.percent(rate) + interval
    return formats.one_line(str(value)) if isinstance(value, str) or _is_number(value) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15

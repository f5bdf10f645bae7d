"""Benchmarks and their runs, as people see them.

Leaderboards, agents and their numbers are free-form: what is no number or text where one belongs is shown as missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Block, Cell, Column, Row, Section, Status, Styled, Table, Timestamp

if TYPE_CHECKING:
    from osmosis_ai.api.wire.benchmarks import BenchmarkRun, BenchmarkRunDetail, DescribedBenchmark
    from osmosis_ai.services.benchmarks.catalog import BenchmarkDescription

_SHOWN_TASKS = 50
_SYNCING = {"pending": "Queued", "syncing": "Syncing", "failed": "Failed"}
_TOTALS = (
    ("passed", "Passed"),
    ("failed", "Failed"),
    ("errored", "Errored"),
    ("cancelled", "Cancelled"),
    ("total_input_tokens", "Input Tokens"),
    ("total_output_tokens", "Output Tokens"),
)
_Item = Mapping[str, Any]


def catalog_columns() -> Sequence[Column]:
    """Return what a list of benchmarks shows."""
    return (
        Column("Name", "name", keep=True),
        Column("Key", "key", keep=True),
        Column("Last Run", value=_last_run),
        Column("Tasks", value=lambda item: formats.count(item["task_count"]), right=True),
    )


def run_columns(*, with_benchmark: bool = True) -> Sequence[Column]:
    """Return what a list of runs shows."""
    benchmark = (Column("Benchmark", "benchmark_name"),) if with_benchmark else ()
    return (
        Column("Name", value=lambda item: item["name"] or "(unnamed)", keep=True),
        Column("Status", value=lambda item: Status(item["status"]), keep=True),
        *benchmark,
        Column("Agents", "agent_count", right=True),
        Column("Best pass@1", value=lambda item: formats.percent(item["best_pass_at_1"]), right=True),
        Column("Results", value=lambda item: _progress(item.get("progress"))),
        Column("Submitted", value=lambda item: Timestamp(item["created_at"])),
        Column("Submitted By", "creator_name"),
    )


def benchmark_rows(benchmark: DescribedBenchmark) -> Iterator[Row]:
    """Yield the facts of a benchmark."""
    yield "Key", benchmark.source_ref
    if benchmark.description:
        yield "Description", formats.one_line(benchmark.description)
    yield "Source", benchmark.source_url or benchmark.source_type
    if benchmark.sync_status != "ready":
        yield "Catalogue", _SYNCING.get(benchmark.sync_status, benchmark.sync_status)
    if benchmark.sync_error:
        yield "Error", Styled(formats.one_line(benchmark.sync_error), "bad")
    yield (
        "Tasks",
        f"{formats.count(benchmark.task_count)} in {formats.count(benchmark.category_count)} categories",
    )
    for choice in benchmark.task_sets:
        note = ", recommended" if choice.recommended else ""
        told = f": {formats.one_line(choice.description)}" if choice.description else ""
        yield f"Task set {choice.name}", f"{formats.count(choice.task_count)} tasks{note}{told}"
    if benchmark.supports_harness is not False:
        needed = " (required)" if benchmark.requires_harness else ""
        yield "Harness", f"{benchmark.default_harness or 'none by default'}{needed}"
    if benchmark.requires_judge_model or benchmark.judge_model_default:
        key = ", with a key of yours" if benchmark.requires_judge_api_key else ""
        yield "Judge", f"{benchmark.judge_model_default or 'one of yours'}{key}"
    if benchmark.pass_threshold is not None:
        yield "Pass Threshold", f"{benchmark.pass_threshold:g}"
    if benchmark.unavailable_tasks is not None and benchmark.unavailable_tasks.tasks:
        missing = benchmark.unavailable_tasks
        why = f": {formats.one_line(missing.reason)}" if missing.reason else ""
        yield "Unavailable", f"{formats.count(len(missing.tasks))} tasks{why}"


def benchmark_blocks(described: BenchmarkDescription) -> Iterator[Block]:
    """Yield a benchmark's leaderboard, tasks and runs."""
    data = described.data()
    board = data["leaderboard"]
    if board:
        columns: Sequence[Column] = (
            Column("Rank", value=_rank, right=True),
            Column("Model", value=lambda entry: _text(entry.get("model"))),
            Column("Harness", value=lambda entry: _text(entry.get("harness"))),
            Column("Tasks", value=lambda entry: _text(entry.get("task_set"))),
            *_measures("cost_per_task"),
        )
        yield _table(columns, board, "Leaderboard")
    if described.benchmark.categories:
        rows = [(each.name, formats.count(each.task_count)) for each in described.benchmark.categories]
        yield Table(("Category", Column("Tasks", right=True)), rows, title="Categories")
    if tasks := described.benchmark.tasks:
        shown = tasks[:_SHOWN_TASKS]
        yield Table(
            ("Task", "Category", "Difficulty"),
            [(task.name, task.category, task.difficulty) for task in shown],
            title="Tasks",
            note=f"{formats.count(len(tasks) - len(shown))} more with --json"
            if len(tasks) > len(shown)
            else None,
        )
    if data["runs"]:
        more = described.runs.has_more
        count = f"Showing {len(data['runs'])} of {formats.count(described.runs.total_count)}; --all shows every one"
        yield _table(run_columns(with_benchmark=False), data["runs"], "Runs", note=count if more else None)


def run_rows(detail: BenchmarkRunDetail, data: _Item) -> Iterator[Row]:
    """Yield the facts of a run."""
    run, own = detail.benchmark_run, data["benchmark_run"]
    yield "Name", own["name"] or "(unnamed)"
    if detail.is_internal_user:
        yield "ID", run.id
    yield "Status", Status(run.status)
    if run.error:
        yield "Error", Styled(formats.one_line(run.error), "bad")
    if detail.progress is not None and detail.progress.expected is not None:
        done = detail.progress.ingested or 0
        total = max(detail.progress.expected, done)
        yield "Progress", f"{formats.count(done)} / {formats.count(total)} results"
    yield "Benchmark", own["benchmark_name"] or _text(data["configuration"].get("benchmark_name"))
    yield "Best pass@1", formats.percent(own["best_pass_at_1"])
    yield "Submitted", Timestamp(run.created_at, seconds=True)
    yield "Submitted By", run.creator_name
    yield "Started", Timestamp(run.started_at, seconds=True)
    yield "Completed", Timestamp(run.completed_at, seconds=True)


def configuration_sections(configuration: _Item) -> Iterator[Section]:
    """Yield how a run was configured, as far as it says so in words."""
    from osmosis_ai.cli.runs.view import SCOPES

    scopes = configuration.get("resolved_secret_scopes")
    secrets = scopes.items() if isinstance(scopes, dict) else ()
    known = (
        ("Source", _text(configuration.get("source_ref"))),
        ("Version", _text(configuration.get("resolved_version"))),
        ("Digest", _text(configuration.get("resolved_digest"))),
        ("Tasks", _settings(configuration.get("task_filters"))),
        ("Config", _settings(configuration.get("config"))),
        ("Secrets", ", ".join(f"{name} ({SCOPES.get(str(it), it)})" for name, it in sorted(secrets))),
    )
    rows: list[Row] = [(label, value) for label, value in known if value]
    if rows:
        yield Section("Configuration", rows)


def run_blocks(data: _Item) -> Iterator[Block]:
    """Yield what each agent has come to, and all of them."""
    metrics = {
        entry.get("benchmark_run_agent_id"): entry for entry in data["agent_metrics"] if _known_id(entry)
    }
    agents = [{**agent, "metrics": _metrics_of(agent, metrics)} for agent in data["agents"]]
    if agents:
        columns: Sequence[Column] = (
            Column("Agent", value=lambda agent: _text(agent.get("agent_index")), right=True),
            Column("Model", value=_model),
            Column("Harness", value=lambda agent: _text(agent.get("harness"))),
            Column("Status", value=lambda agent: Status(str(_text(agent.get("status")) or "unknown"))),
            Column("Rank", value=lambda agent: _text(agent["metrics"].get("rank")), right=True),
            *_measures("reported_cost_usd"),
        )
        yield _table(
            columns, [{**_aggregates(agent), **agent["metrics"], **agent} for agent in agents], "Agents"
        )
    totals = [(label, _counted(data["totals"].get(key))) for key, label in _TOTALS if key in data["totals"]]
    cost = _number(data["totals"].get("total_cost_usd"))
    totals += [("Cost", formats.money(cost))] if cost is not None else []
    if totals:
        yield Table(("", Column("", right=True)), totals, title="Totals", in_plain=True)


def run_hints(run: BenchmarkRun) -> Iterator[str]:
    """Yield where to look next."""
    from osmosis_ai.services.benchmarks.runs import ENDED, run_name

    name = run_name(run) or run.id
    if run.platform_url:
        yield f"View: {run.platform_url}"
    if run.status == "failed":
        yield f"See logs with: osmosis benchmark runs logs {name}"
    if run.status not in ENDED:
        yield f"Stop with: osmosis benchmark runs stop {name}"
    if run.status in ("running", *ENDED):
        yield f"Results: osmosis benchmark runs download {name}"


def _measures(cost: str) -> tuple[Column, ...]:
    """Return the columns of what agents are measured by, on a leaderboard and in a run."""
    return (
        Column("pass@1", value=lambda entry: _rate(entry.get("pass_at_1")), right=True),
        Column("pass@k", value=_deepest, right=True),
        Column("Cost", value=lambda entry: formats.money(_number(entry.get(cost))), right=True),
        Column("Time", value=lambda entry: formats.duration(_number(entry.get("mean_duration_seconds")))),
        Column("Tokens", value=lambda entry: _counted(entry.get("tokens_per_task")), right=True),
    )


def _table(
    columns: Sequence[Column], items: Iterable[_Item], title: str, *, note: str | None = None
) -> Table:
    rows = [[column.cell(item) for column in columns] for item in items]
    return Table(columns, rows, title=title, note=note, in_plain=True)


def _last_run(item: _Item) -> Cell:
    if item["sync_status"] in _SYNCING:
        return Styled(_SYNCING[item["sync_status"]], "bad" if item["sync_status"] == "failed" else "pending")
    return Timestamp(item["last_run_at"]) if item["last_run_at"] else None


def _progress(progress: Any) -> str | None:
    return (
        f"{formats.count(progress['completed'])} / {formats.count(progress['total'])}" if progress else None
    )


def _rank(entry: _Item) -> Cell:
    rank = _text(entry.get("rank"))
    return f"={rank}" if rank and entry.get("tied") is True else rank


def _model(agent: _Item) -> Cell:
    names = ("model_display_name", "model", "model_ref")
    return next((text for name in names if (text := _text(agent.get(name)))), None)


def _aggregates(agent: _Item) -> _Item:
    aggregates = agent.get("aggregates")
    return aggregates if isinstance(aggregates, dict) else {}


def _known_id(entry: _Item) -> bool:
    return isinstance(entry.get("benchmark_run_agent_id"), str)


def _metrics_of(agent: _Item, metrics: Mapping[Any, _Item]) -> _Item:
    found = metrics.get(agent["id"]) if isinstance(agent.get("id"), str) else None
    return found or {}


def _deepest(entry: _Item) -> str | None:
    points = entry.get("pass_at_k")
    known = [point for point in points if isinstance(point, dict)] if isinstance(points, list) else []
    if not known or (k := _text(known[-1].get("k"))) is None:
        return None
    return f"pass@{k} {_rate(known[-1]) or formats.MISSING}"


def _rate(estimate: Any) -> str | None:
    """Return a rate with its interval, where there is one."""
    if not isinstance(estimate, dict):
        return formats.percent(_number(estimate))
    value, low, high = (_number(estimate.get(key)) for key in ("value", "ci_low", "ci_high"))
    if value is None:
        return None
    interval = f" ({formats.percent_range(low, high)})" if low is not None and high is not None else ""
    return f"{formats.percent(value)}{interval}"


def _settings(value: Any) -> str | None:
    """Return what a free-form table says in single values and lists of them."""
    if not isinstance(value, dict):
        return None
    shown = []
    for key, item in sorted(value.items()):
        parts = item if isinstance(item, list) else [item]
        words = [str(part) for part in parts if isinstance(part, str | int | float)]
        if words and len(words) == len(parts):
            shown.append(f"{key}={'|'.join(words)}")
    return formats.one_line(", ".join(shown)) or None


def _counted(value: Any) -> str:
    number = _number(value)
    return formats.MISSING if number is None else formats.count(round(number))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and math.isfinite(value) else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value) or None

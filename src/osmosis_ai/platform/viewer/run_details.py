"""A run in full, as its row and its samples tell it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from osmosis_ai.api.models.eval_runs import RunOrigin
from osmosis_ai.api.models.training_runs import ValidatedRows
from osmosis_ai.config.toml_text import config_text
from osmosis_ai.evaluation.metrics import Estimates
from osmosis_ai.platform.db.tables import DbLoraModel, DbRun
from osmosis_ai.platform.models import adapter_size
from osmosis_ai.platform.runs.eval_results import rows_of
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS
from osmosis_ai.platform.runs.requests import (
    RowSelection,
    effective_eval_settings,
    effective_training_config,
    read_training_request,
)
from osmosis_ai.platform.runs.training_curves import VALIDATION, Curves, values_of
from osmosis_ai.platform.viewer.run_lists import run_entry
from osmosis_ai.platform.viewer.sample_lists import SampleLists
from osmosis_ai.training.runs.curves import (
    CurveMark,
    SavedAdapter,
    TrainingCurves,
    ValidationHeadline,
)
from osmosis_ai.training.runs.metrics import TITLES
from osmosis_ai.ui.numbers import amount, date
from osmosis_ai.ui.run_numbers import execution_rows
from osmosis_ai.viewer.source import RunDetail, RunEntry


def eval_detail(
    entry: RunEntry,
    samples: SampleLists,
    *,
    previous: RunEntry | None,
    waits: str | None,
) -> RunDetail:
    """Return an evaluation in full."""
    run = samples.run
    return RunDetail(
        entry,
        estimates=Estimates.read((run.metrics or {}).get("estimates")),
        summary_numbers=(run.metrics or {}).get("summary") or {},
        config_written=_submitted(run),
        config_effective=_eval_config(run),
        facts=_known(("Waits", waits), *_eval_facts(run)),
        secret_names=_secret_names(run),
        failures=samples.failures(),
        rewards=samples.rewards(),
        previous=previous,
        commands=_commands(run),
    )


def training_detail(
    entry: RunEntry,
    run: DbRun,
    curves: Curves,
    *,
    previous: RunEntry | None,
    waits: str | None,
    resumable: bool,
) -> RunDetail:
    """Return a training run in full, but for its curves."""
    request = read_training_request(run.request)
    commands = _commands(run)
    if resumable:
        commands.append(f"{COMMAND_GROUPS[run.kind]} resume {run.name}")
    return RunDetail(
        entry,
        summary_numbers=run.results or {},
        config_written=_submitted(run),
        config_effective=effective_training_config(request),
        facts=_known(("Waits", waits), *_training_facts(run, curves)),
        secret_names=_secret_names(run),
        previous=previous,
        commands=commands,
    )


def compared_training(run: DbRun, curves: Curves, *, now: datetime) -> tuple[RunDetail, TrainingCurves]:
    """Return a training run's settings and curves, which is what a comparison reads of it."""
    settings = effective_training_config(read_training_request(run.request))
    entry = run_entry(run, None, None, now=now)
    return RunDetail(entry, config_effective=settings), viewed_training(run, curves, ())


def viewed_training(
    run: DbRun,
    curves: Curves,
    models: Sequence[DbLoraModel],
    happened: Sequence[CurveMark] = (),
) -> TrainingCurves:
    """Return the curves of a run, its checkpoints and its newest validation."""
    return TrainingCurves.of(
        values_of(curves),
        {key: TITLES.get(key, key) for key in curves},
        happened,
        [saved_adapter(model) for model in models],
        ValidatedRows(**run.metrics[VALIDATION]) if run.metrics and VALIDATION in run.metrics else None,
    )


def _known(*facts: tuple[str, str | None]) -> list[tuple[str, str]]:
    return [(label, value) for label, value in facts if value]


def _eval_facts(run: DbRun) -> Iterator[tuple[str, str]]:
    rows = rows_of(run)
    if run.imported is not None:
        yield "Imported", RunOrigin.model_validate(run.imported).words
    if run.revision:
        yield "Retried", f"{amount(run.revision, 'time')}, last {date(run.retried_at)}"
    yield "Rows", rows.words if rows is not None else ""
    yield from _common_facts(run)
    yield "Grader", run.grader_digest or ""


def _training_facts(run: DbRun, curves: Curves) -> Iterator[tuple[str, str]]:
    results = run.results or {}
    if "current_step" in results:
        yield "Step", f"{results['current_step']:,} of {results.get('total_steps') or 0:,}"
    validation = ValidationHeadline.of(values_of(curves))
    if validation is not None:
        yield from validation.facts()
    yield from _common_facts(run)
    yield "Ended because", str(results.get("ending") or "")


def _common_facts(run: DbRun) -> Iterator[tuple[str, str]]:
    done = run.progress or {}
    if done:
        yield "Progress", f"{done.get('completed') or 0:,} of {done.get('total') or 0:,} samples"
    yield "Entrypoint", str((run.request.get("experiment_config") or {}).get("entrypoint") or "")
    yield "Branch", run.branch or ""
    yield "Seed", str(run.seed) if run.imported is None else ""
    yield "Environment", run.environment or ""
    yield "Isolation", run.isolation or ""
    yield "Dataset, SHA-256", str((run.selection or {}).get("sha256") or "")
    yield "Submitted", date(run.created_at)
    yield from execution_rows(run.request.get("advanced_config"))
    yield "Platform", run.platform_version or ""


def _submitted(run: DbRun) -> str | None:
    """Return the config that was submitted; nobody submitted what ran elsewhere."""
    return config_text(run.request) if run.imported is None else None


def _eval_config(run: DbRun) -> Mapping[str, Any]:
    seeds: dict[str, Any] = {"seed": run.seed} if run.imported is None else {}
    draw_seed = RowSelection.read(run.selection).draw_seed if run.selection else None
    if draw_seed is not None:
        seeds["row_draw_seed"] = draw_seed
    found = {
        "experiment": run.request.get("experiment_config"),
        "evaluation": {**effective_eval_settings(run.request), **seeds},
        "env": run.request.get("env_config"),
        "advanced": run.request.get("advanced_config"),
    }
    return {name: section for name, section in found.items() if section}


def _secret_names(run: DbRun) -> list[str]:
    required = (run.request.get("secrets") or {}).get("required") or ()
    return sorted({*(run.secret_scopes or {}), *map(str, required)})


def _commands(run: DbRun) -> list[str]:
    group = COMMAND_GROUPS[run.kind]
    commands = [f"{group} info {run.name}", f"{group} logs {run.name}"]
    return [*commands, f"{group} download {run.name}"] if run.kind == "eval" else commands


def saved_adapter(model: DbLoraModel) -> SavedAdapter:
    """Return an adapter as pages show it."""
    reward = model.validation_reward
    return SavedAdapter(model.name, model.step, reward, adapter_size(model), model.deployment_status)

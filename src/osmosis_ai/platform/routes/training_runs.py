"""Training runs: submit, list, follow, stop, resume."""

from __future__ import annotations

from typing import Any

from osmosis_ai.api.models import training_runs as wire
from osmosis_ai.config.checks import TRAINING
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.inference.catalog import base_model_of
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.tables import DbRun, duration_ms
from osmosis_ai.platform.http.authentication import Services, WorkspaceScope
from osmosis_ai.platform.http.routing import Paging, SamplePaging, quick_read, run_url
from osmosis_ai.platform.models import adapter_size
from osmosis_ai.platform.routes import runs
from osmosis_ai.platform.runs.lifecycle import VALIDATION
from osmosis_ai.platform.runs.requests import effective_training_config, read_training_request
from osmosis_ai.platform.runs.results import Curves, logged_adapter, logged_marks, read_curves
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.training.runs.metrics import TITLES

router = runs.run_router("/api/cli/training-runs", "training", TRAINING)


@router.get("")
@quick_read
def list_training_runs(services: Services, scope: WorkspaceScope, page: Paging) -> wire.TrainingRunList:
    """List runs, newest first."""
    listed, total = services.runs.page(scope.workspace_id, "training", limit=page.limit, offset=page.offset)
    why = services.runs.waits(listed).why
    return wire.TrainingRunList(
        training_runs=[
            wire.TrainingRunRow(
                **runs.run_fields(run, run_url(services, scope.workspace, run.kind, run.name)),
                **runs.present({"waits": why(run)}),
                **_progress(run),
                model=wire.NamedModel(id=run.model_path, model_name=run.model_path),
                dataset=wire.NamedFile(**runs.present({"id": run.dataset_id, "file_name": run.dataset_name})),
                rollout=runs.named(run.rollout_id, run.rollout_name),
            )
            for run in listed
        ],
        **page.keys(total, len(listed)),
    )


@router.get("/{name_or_id}")
@quick_read
def get_training_run(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.TrainingRunDetail:
    """Return one run. `notes` contains the reason if it ended early, and warnings that its metrics do not have yet."""
    run = services.runs.get(scope.workspace_id, "training", name_or_id)
    request = read_training_request(run.request)
    results = run.results or {}
    warnings = request.settings.warnings(base_model_of(run.model_path))
    marked = {mark.text for mark in logged_marks(services.logs, run.id)}
    notes = " ".join(
        filter(None, [*(each for each in warnings if each not in marked), results.get("ending")])
    )
    return wire.TrainingRunDetail(
        training_run=wire.DescribedTrainingRun(
            **runs.run_fields(run, run_url(services, scope.workspace, run.kind, run.name)),
            **_progress(run),
            **runs.present(
                {"notes": notes or None, "resumable": services.reopener.is_resumable(run) or None}
            ),
        ),
        model=runs.named(run.model_path, run.model_path),
        config=effective_training_config(request),
        **runs.present({"adapter": logged_adapter(services.logs, run.id) or None}),
        **runs.configuration(services, run),
    )


@router.get("/{name_or_id}/metrics")
def training_run_metrics(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.TrainingMetrics:
    """Return the points of every metric so far, and events with their steps."""
    run = services.runs.get(scope.workspace_id, "training", name_or_id)
    curves = read_curves(services.db, run.id)[run.id]
    validation = wire.ValidatedRows(**run.metrics[VALIDATION]) if run.metrics else None
    marks = [wire.TrainingMark.of(mark) for mark in logged_marks(services.logs, run.id)]
    return wire.TrainingMetrics(
        status=run.status,
        overview=_overview(run, curves, services.clock),
        metrics=[
            wire.MetricSeries(
                metric_key=key,
                title=TITLES.get(key, key),
                data_points=[
                    wire.MetricPoint(
                        step=point.step,
                        value=point.value,
                        timestamp=round(point.timestamp.timestamp() * 1000),
                    )
                    for point in points
                ],
            )
            for key, points in curves.items()
        ],
        training_run_id=run.id,
        **runs.present({"validation": validation, "marks": marks or None}),
    )


@router.get("/{name_or_id}/checkpoints")
def training_run_checkpoints(
    services: Services, scope: WorkspaceScope, name_or_id: str
) -> wire.CheckpointList:
    """Return the adapters that a run has saved, oldest first."""
    run = services.runs.get(scope.workspace_id, "training", name_or_id)
    return wire.CheckpointList(
        training_run_name=run.name,
        training_run_id=run.id,
        checkpoints=[
            wire.Checkpoint.of(
                model,
                nulls=False,
                checkpoint_name=model.name,
                checkpoint_step=model.step,
                status="uploaded",
                size=adapter_size(model),
            )
            for model in services.lora_models.of_run(run.id)
        ],
    )


@router.get("/{name_or_id}/validation")
def training_run_validation(
    services: Services, scope: WorkspaceScope, name_or_id: str, page: SamplePaging
) -> wire.ValidationPage:
    """Return the stored attempts of a run's latest validation, worst first."""
    run = services.runs.get(scope.workspace_id, "training", name_or_id)
    samples = PlatformSource(services, scope.workspace_id).validation(run.name)
    if samples is None:
        return wire.ValidationPage()
    step, start = runs.sample_position(page.cursor) if page.cursor is not None else (samples.step, 0)
    if step != samples.step:
        raise ConflictError(
            f"the run has a newer validation, after step {samples.step}; start at the first page."
        )
    end = start + page.limit
    following = f"{samples.step}-{end}" if end < len(samples.records) else None
    return wire.ValidationPage(
        step=samples.step,
        total=samples.total,
        pass_threshold=samples.pass_threshold,
        samples=[runs.wire_sample(record, details=True) for record in samples.records[start:end]],
        **runs.present({"next_cursor": following}),
    )


@router.get("/{name_or_id}/validation/{row}/{attempt}")
def training_run_conversation(
    services: Services, scope: WorkspaceScope, name_or_id: str, row: int, attempt: int
) -> wire.ValidationConversation:
    """Return the conversation of a validation attempt."""
    run = services.runs.get(scope.workspace_id, "training", name_or_id)
    source = PlatformSource(services, scope.workspace_id)
    most = LARGEST_CONVERSATION_BYTES
    stored = source.conversation(run.name, row, attempt, max_bytes=most, kind="training")
    text = stored.content.decode("utf-8", "replace") if stored.content is not None else None
    return wire.ValidationConversation(
        size=stored.size, **runs.present({"text": text, "missing": stored.missing})
    )


@router.post("/{name_or_id}/resume")
def resume_training_run(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.ResumeReply:
    """Resume a failed or stopped run from its last checkpoint."""
    run = services.runs.get(scope.workspace_id, "training", name_or_id)
    with runs.refusals(services, scope):
        run, step = services.reopener.resume(run, by=scope.user.email)
    return wire.ResumeReply(id=run.id, name=run.name, status=run.status, step=step)


def _progress(run: DbRun) -> dict[str, Any]:
    known, names = run.results or {}, ("current_step", "total_steps", "reward", "examples_processed_count")
    return {name: known[name] for name in names if name in known}


def _overview(run: DbRun, curves: Curves, clock: Clock) -> wire.TrainingMetricsOverview:
    progress = _progress(run)
    known = {
        "duration_ms": duration_ms(run, clock.now()),
        "latest_step": progress.get("current_step"),
        **progress,
    }
    summaries = []
    for key, points in curves.items():
        values = [point.value for point in points]
        summaries.append(
            wire.MetricSummary(
                key=key,
                title=TITLES.get(key, key),
                initial=values[0],
                latest=values[-1],
                delta=values[-1] - values[0],
                min=min(values),
                max=max(values),
            )
        )
    return wire.TrainingMetricsOverview(**runs.present(known), metric_summaries=summaries)

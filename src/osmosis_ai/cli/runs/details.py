"""What the commands about a run of the platform share, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.name_completion import complete_run
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Row, Status, Styled

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.api.wire.eval_runs import EvalRunDetail
    from osmosis_ai.api.wire.runs import Run
    from osmosis_ai.api.wire.training_runs import TrainingRunDetail
    from osmosis_ai.services.runs.lifecycle import RunKind

RunArgument = Annotated[
    str, typer.Argument(help="Name or id of a run.", show_default=False, autocompletion=complete_run)
]

NOUNS: Mapping[RunKind, str] = {"eval": "evaluation", "train": "training"}
"""How a kind of run is spoken of."""

_SCOPES = {
    "workspace": "workspace",
    "user": "personal",
    "user_override": "personal, overrides workspace",
    "run": "this run only",
}


def standing_rows(
    run: Run, *, with_id: bool, waiting: bool, progress: Mapping[str, Any] | None
) -> Iterator[Row]:
    """Yield which run it is and how it stands.

    Args:
        run: its own fields.
        with_id: show its id.
        waiting: whether it has not begun.
        progress: how much of it is done, of how much, in which unit; None while the platform does not say.
    """
    yield "Name", run.name or "(unnamed)"
    if with_id:
        yield "ID", run.id
    yield "Status", Status(run.status)
    if run.error:
        yield "Error", Styled(run.error, "bad")
    if waiting:
        yield "Progress", "Waiting to start..."
    elif progress is not None:
        done, total = formats.count(progress["completed"]), formats.count(progress["total"])
        yield "Progress", f"{done} / {total} {progress['unit']}"


def configuration_rows(detail: EvalRunDetail | TrainingRunDetail, settings: str) -> Iterator[Row]:
    """Yield how a run was configured.

    Args:
        detail: the run.
        settings: its settings, on one line.
    """
    if detail.entrypoint:
        yield "Entrypoint", detail.entrypoint
    if settings:
        yield "Config", settings
    if detail.branch:
        yield "Branch", detail.branch
    if detail.commit_sha:
        yield "Commit", detail.commit_sha[:7]
    scopes = detail.resolved_secret_scopes or {}
    if scopes:
        shown = (f"{name} ({_SCOPES.get(scope, scope)})" for name, scope in sorted(scopes.items()))
        yield "Secrets", ", ".join(shown)
    if detail.env_config:
        variables = ", ".join(f"{name}={value}" for name, value in sorted(detail.env_config.items()))
        yield "Environment Variables", variables


def keep_metrics(
    save: Callable[[], tuple[Path | None, str | None]], *, available: bool, asked: bool
) -> dict[str, Any]:
    """Keep a run's metrics in a file for people, or where a script asks; failing to is only a warning.

    Args:
        save: writes the file, and returns it or why there is none.
        available: whether there are metrics.
        asked: whether the command says where they go.

    Returns:
        What a script is told of it.
    """
    if not available or (current().mode != "rich" and not asked):
        return {"output_path": None, "save_warning": None}
    path, problem = save()
    if problem is not None:
        current().warn(problem)
    return {"output_path": str(path) if path else None, "save_warning": problem}

"""Training directories of this machine, described as a platform's runs are: their curves in the same tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.files import expanded

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import TrainingMetrics
    from osmosis_ai.training.runs.curves import TrainingCurves
    from osmosis_ai.training.runs.validation_headline import ValidationHeadline
    from osmosis_ai.viewer.source import RunDetail

_PATHS = ("/", "./", "../", "~")
"""How a path begins that is no run's name, which may have a slash, too."""


@dataclass(frozen=True)
class LocalTraining:
    """A training directory; ``metrics`` are its curves as a platform tells them."""

    directory: Path
    detail: RunDetail
    curves: TrainingCurves
    metrics: TrainingMetrics

    @property
    def validation(self) -> ValidationHeadline | None:
        """What the newest validation came to; None before there is one."""
        return self.curves.headline()

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        from osmosis_ai.services.eval_runs.local_runs import local_item

        return {
            "local_run": local_item(self.detail.summary, self.directory),
            "config": dict(self.detail.config_effective),
            "config_written": self.detail.config_written,
            "problems": list(self.detail.problems),
            "validation": self.validation.to_json() if self.validation is not None else None,
            "checkpoints": [
                {"name": saved.name, "step": saved.step, "reward": saved.reward, "size_bytes": saved.size}
                for saved in self.curves.checkpoints
            ],
            "metrics": self.metrics.model_dump(mode="json"),
        }


def training_directory(word: str) -> Path | None:
    """Return the training directory that a word is the path of; None where it may be the name of a platform's run.

    Raises:
        NotFoundError: it is none, and no platform can be meant: by a path, or outside of a workspace.
        OsmosisError: it is a path that leads to something else.
    """
    from osmosis_ai.evaluation.run_places import kind_of
    from osmosis_ai.services.downloaded_runs import is_downloaded_run

    try:
        given = expanded(word).absolute()
        kind, there = kind_of(given), given.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    if kind == "training":
        return given
    if kind == "eval" or is_downloaded_run(given):
        raise OsmosisError(
            f"{word} is the directory of an evaluation, and no training directory.",
            hint=f"osmosis eval info {quote(word)}, osmosis eval show {quote(word)}",
        )
    is_path = _is_path(word)
    if is_path and there:
        what = (
            "a directory without a training run's manifest.json and metrics.jsonl"
            if given.is_dir()
            else "a file"
        )
        raise OsmosisError(
            f"{word} is no training directory: it is {what}.",
            hint=f"osmosis view {quote(word if given.is_dir() else str(Path(word).parent))} finds the runs below it; "
            "a platform's run goes by its name (`osmosis train list`)",
        )
    if is_path and (word.startswith(_PATHS) or not _is_logged_in()):
        raise _missing(word, given.parent)
    _require_platform_of(word, there=there)
    return None


def require_run_of_platform(word: str, command: str, instead: Callable[[Path], str]) -> None:
    """Refuse a training directory to a command that is about runs of a platform alone.

    A word without a slash is the name of such a run where somebody is logged in, whatever is here.

    Args:
        word: what names the run.
        command: what it was given to.
        instead: tells of the directory which command does something like it.

    Raises:
        OsmosisError: it is one, or as :func:`training_directory`.
    """
    if not _is_path(word) and (_is_logged_in() or not _is_here(word)):
        return
    directory = training_directory(word)
    if directory is not None:
        raise OsmosisError(
            f"{word} is a training directory of this machine, and `{command}` takes runs of a platform.",
            hint=instead(directory),
        )


def _is_here(word: str) -> bool:
    from osmosis_ai.evaluation.run_places import kind_of

    try:
        return kind_of(Path(word).absolute()) == "training"
    except (OSError, ValueError):
        return False


def _is_path(word: str) -> bool:
    return word in (".", "..", "~") or "/" in word or os.sep in word


def _is_logged_in() -> bool:
    from osmosis_ai.api.credentials.resolution import require_credentials

    try:
        require_credentials()
    except OsmosisError:
        return False
    return True


def _missing(word: str, folder: Path) -> NotFoundError:
    """Return what to say of a path that leads nowhere, with the training directories that are likest to it."""
    from osmosis_ai.config.issues import nearest
    from osmosis_ai.evaluation.run_places import RunPlaces

    written = Path(word).parent
    if not folder.is_dir():
        folder, written = Path.cwd(), Path()
    places = [place.path for place in RunPlaces(folder).all() if place.kind == "training"]
    near = nearest(word, [str(written / path.relative_to(folder)) for path in places], most=3, cutoff=0)
    meant = f"did you mean {' or '.join(map(quote, near))}? " if near else ""
    return NotFoundError(
        f"there is no training directory `{word[:200]}`.",
        details={"nearest": near},
        hint=f"{meant}a platform's run goes by its name (`osmosis train list`)",
    )


def _require_platform_of(word: str, *, there: bool) -> None:
    """Refuse a word that is no training directory where no platform can be meant: outside of any workspace."""
    from osmosis_ai.workspace.layout import find_workspace

    try:
        find_workspace(require_scaffold=False)
    except WorkspaceRequiredError:
        raise NotFoundError(
            f"there is no training run {'in ' if there else ''}`{word[:200]}`.",
            hint="a run of this machine goes by the path of its directory, a platform's by its name, inside its workspace",
        ) from None


def describe_training(directory: Path) -> LocalTraining:
    """Return a training directory with its curves.

    Raises:
        OsmosisError: its manifest can not be read.
    """
    from osmosis_ai.viewer.local.training_runs import read_training, training_detail

    known = read_training(directory, directory.name)
    if known.recorded is None:
        raise OsmosisError(known.problems[0])
    curves = known.recorded.curves()
    moments = {record.step: record.timestamp_ms for record in known.recorded.records}
    return LocalTraining(
        directory, training_detail(known, directory), curves, _metrics(known.entry.status, curves, moments)
    )


def _metrics(status: str, curves: TrainingCurves, moments: dict[int, int]) -> TrainingMetrics:
    from osmosis_ai.api.wire.training_runs import (
        MetricPoint,
        MetricSeries,
        MetricSummary,
        TrainingMetrics,
        TrainingMetricsOverview,
    )

    series, summaries = [], []
    for curve in curves.curves:
        values = [point.value for point in curve.points]
        first, last = values[0], values[-1]
        summaries.append(
            MetricSummary(
                key=curve.key,
                title=curve.title,
                initial=first,
                latest=last,
                delta=last - first,
                min=min(values),
                max=max(values),
            )
        )
        points = [
            MetricPoint(step=point.step, value=point.value, timestamp=moments.get(point.step, 0))
            for point in curve.points
        ]
        series.append(MetricSeries(metric_key=curve.key, title=curve.title, data_points=points))
    overview = TrainingMetricsOverview(latest_step=max(moments, default=None), metric_summaries=summaries)
    return TrainingMetrics(status=status, overview=overview, metrics=series, validation=curves.validation)

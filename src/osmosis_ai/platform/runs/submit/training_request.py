"""What the submit of a training run asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from osmosis_ai.config.checks import TRAINING, model_path_of, read_settings, unknown_built_in
from osmosis_ai.config.issues import InvalidConfigError, Issue, without_repeats
from osmosis_ai.config.training import TRAINER_SECTIONS, TrainingSettings
from osmosis_ai.errors import MissingExtraError
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.submit.errors import SubmitRejectedError
from osmosis_ai.platform.runs.submit.model_path import MODEL_PATH, IsAdapter, unknown_adapter
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.run_request import (
    RunRequest,
    check_body,
    common_fields,
    read_document,
    reject_any,
)
from osmosis_ai.training import require_train_extra

MAX_ROLLOUTS_PER_STEP = 100_000


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(RunRequest):
    """A checked submit of a training run."""

    kind: ClassVar[RunKind] = "training"

    settings: TrainingSettings

    @property
    def seed(self) -> int:
        """What data order, sampling and the adapter's start are drawn from."""
        return self.settings.seed

    def choose_rows(self, *, total_rows: int, sha256: str, extension: str) -> RowSelection:
        """Choose every row: which are for training, and which for validation, is the trainer's to say."""
        return RowSelection.of(total_rows=total_rows, limit=total_rows, sha256=sha256, extension=extension)

    def first_results(self, rows: RowSelection) -> dict[str, Any]:
        """Return nothing: not even the number of steps is known before the trainer has planned."""
        return {}


def parse_training_request(body: Mapping[str, Any], is_adapter: IsAdapter) -> TrainingRequest:
    """Check the body of a submit."""
    document, issues = check_body(body, TRAINING)
    issues += without_repeats(issues, _settings_issues(document))
    if MODEL_PATH not in {issue.key for issue in issues}:
        issues += _model_issues(document, is_adapter)
    reject_any(issues)
    _require_trainer()
    return _request(document, body)


def read_training_request(written: Mapping[str, Any]) -> TrainingRequest:
    """Return the request that a run's row keeps."""
    return _request(read_document(written, TRAINING))


def effective_training_config(request: TrainingRequest) -> dict[str, dict[str, Any]]:
    """Return every setting by the section of a config it belongs to, defaults included."""
    values = request.settings.model_dump(mode="json", exclude_none=True)
    return {
        section: {key: values[key] for key in model.model_fields if key in values}
        for section, model in TRAINER_SECTIONS.items()
    }


def _request(document: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> TrainingRequest:
    return TrainingRequest(**common_fields(document, TRAINING, body), settings=read_settings(document))


def _settings_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    try:
        settings = read_settings(document)
    except InvalidConfigError as error:
        yield from error.issues
        return
    rollouts = settings.rollout_batch_size * settings.n_samples_per_prompt
    if rollouts > MAX_ROLLOUTS_PER_STEP:
        problem = f"{rollouts} rollouts are more than the {MAX_ROLLOUTS_PER_STEP} that one step may have"
        yield Issue("training.rollout_batch_size", problem)


def _model_issues(document: Mapping[str, Any], is_adapter: IsAdapter) -> list[Issue]:
    """Find out whether there are weights to train, as far as a name tells."""
    model_path = model_path_of(document)
    if model_path is None or is_adapter(model_path):
        return []
    unknown = unknown_adapter(model_path) or unknown_built_in(model_path)
    return [unknown] if unknown is not None else []


def _require_trainer() -> None:
    try:
        require_train_extra()
    except MissingExtraError as error:
        raise SubmitRejectedError(
            409,
            "TRAINING_NOT_INSTALLED",
            f"this platform evaluates but cannot train: {error.message} The operator can install it there: "
            f"{error.hint}; then restart it.",
        ) from None

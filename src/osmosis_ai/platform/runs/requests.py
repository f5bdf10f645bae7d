"""Requests to submit a run.

A request has the keys of a config file and is checked by the same rules; all issues are reported at once. The stored
request of a run is read with ``read_eval_request`` and ``read_training_request``.
"""

from __future__ import annotations

import secrets as random_secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from osmosis_ai.config.checks import (
    EVAL,
    TRAINING,
    ConfigKind,
    document_issues,
    model_path_of,
    read_settings,
    unknown_built_in,
)
from osmosis_ai.config.execution import ExecutionSection, execution_issues, read_execution
from osmosis_ai.config.issues import InvalidConfigError, Issue, closest, without_repeats
from osmosis_ai.config.sections import EvaluationSettings, Experiment, served_agent
from osmosis_ai.config.training import TRAINER_SECTIONS, TrainingSettings
from osmosis_ai.datasets.selection import RowsDrawn, Selection, sample_rows, select_rows
from osmosis_ai.errors import MissingExtraError, NotFoundError, OsmosisError
from osmosis_ai.inference.catalog import base_model_of, served_models
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.runs.lifecycle import KIND_NAMES, RunKind
from osmosis_ai.training import has_train_extra, require_train_extra
from osmosis_ai.workspace.secrets_file import value_problem

MODEL_PATH = "experiment.model_path"
SAMPLED_FRACTION = 0.1
"""The share of rows that a run without a limit uses."""
_LONGEST_NAME = 255
_MAX_ATTEMPTS = 10_000_000
_MAX_ROLLOUTS_PER_STEP = 100_000

IsAdapter = Callable[[str], bool]
"""Returns whether a ``model_path`` is an adapter of the workspace that submits."""


def rejected(
    issues: Sequence[Issue],
    status: int = 400,
    reason: str = "INVALID_CONFIG",
    # Clients list the issues below this line.
    message: str = "this run cannot be submitted with its configuration:",
) -> ApiError:
    found = []
    for issue in issues:
        described = {"key": issue.key, "message": issue.message}
        if issue.suggestion is not None and issue.message.startswith("Unrecognized"):
            section = issue.key.rpartition(".")[0]
            described["key_correction"] = ".".join(filter(None, (section, issue.suggestion)))
        elif issue.suggestion is not None:
            # Clients apply key_correction to the key, so a correction of the value goes into the message.
            described["message"] += f" (did you mean '{issue.suggestion}'?)"
        found.append(described)
    return ApiError(status, reason, message, issues[0].key, found)


# -- rows --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows of a run, as its database row keeps them; the digest identifies the dataset's bytes.

    ``chosen`` rows of an imported run are known from its samples alone. ``validation`` has the id, digest and extension
    of a training run's validation dataset.
    """

    total_rows: int
    limit: int | None
    draw_seed: int | None
    sha256: str
    extension: str
    chosen: bool = False
    validation: tuple[str, str, str] | None = None

    @classmethod
    def read(cls, recorded: Mapping[str, Any] | None) -> RowSelection:
        return cls(**(recorded or {}))

    def rows(self) -> Selection:
        """Return the rows; the same ones every time."""
        if self.draw_seed is None:
            return select_rows(self.total_rows, limit=self.limit, rows=None)
        return sample_rows(self.total_rows, fraction=SAMPLED_FRACTION, seed=self.draw_seed)

    def drawn(self, rows: int) -> RowsDrawn:
        """Describe the selection of ``rows`` rows, without drawing them again."""
        if self.draw_seed is None:
            return RowsDrawn(rows, self.total_rows, "chosen" if self.chosen else "first")
        return RowsDrawn(rows, self.total_rows, "random", SAMPLED_FRACTION, self.draw_seed)


# -- requests of either kind -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A checked request: ``written`` is what a run's row keeps, ``provided`` are values for this run alone."""

    kind: ClassVar[RunKind]

    experiment: Experiment
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    written: Mapping[str, Any]
    provided: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def seed(self) -> int:
        """The seed of the model calls; evaluations use that of `osmosis eval run`, so that results compare."""
        return 0

    @property
    def execution(self) -> ExecutionSection:
        """Requirements for the machine that executes the run."""
        return read_execution(self.written.get("advanced_config"))

    def choose_rows(self, total_rows: int, sha256: str, extension: str) -> RowSelection:
        """Select all rows of a dataset."""
        return RowSelection(total_rows, total_rows, None, sha256, extension)

    def first_results(self, rows: RowSelection) -> dict[str, Any]:
        """Return the results of the run before it starts."""
        return {}


def check_body(body: Mapping[str, Any], kind: ConfigKind) -> tuple[dict[str, Any], list[Issue]]:
    """Return the config in ``body``, and its issues by the rules of config files."""
    document = _read_document(body, kind)
    return document, [
        *_unknown_parts(body, kind),
        *document_issues(document, kind),
        *execution_issues(document, kind.name),
        *_provided_issues(body),
        *_length_issues(document),
    ]


def _read_document(body: Mapping[str, Any], kind: ConfigKind) -> dict[str, Any]:
    """Return the config in ``body``; on the wire, null means absent."""
    document = {
        section: _without_nulls(body[part])
        for part, section in kind.parts.items()
        if body.get(part) is not None
    }
    secrets = body.get("secrets")
    if isinstance(secrets, Mapping):
        known = {name: value for name, value in secrets.items() if name != "provided" and value is not None}
        document["secrets"] = {"required": [], **known}
    else:
        document["secrets"] = {"required": []} if secrets is None else secrets
    return document


def _without_nulls(section: Any) -> Any:
    if not isinstance(section, Mapping):
        return section
    return {key: value for key, value in section.items() if value is not None}


def _common_fields(body: Mapping[str, Any], kind: ConfigKind) -> dict[str, Any]:
    document = _read_document(body, kind)
    secrets = tuple(document["secrets"]["required"])
    written = {part: document[section] for part, section in kind.parts.items() if document.get(section)}
    if secrets:
        written["secrets"] = {"required": list(secrets)}
    return {
        "experiment": Experiment(**document["experiment"]),
        "env": document.get("env", {}),
        "secrets": secrets,
        "written": written,
        "provided": dict((body.get("secrets") or {}).get("provided") or {}),
    }


def _unknown_parts(body: Mapping[str, Any], kind: ConfigKind) -> Iterator[Issue]:
    other = TRAINING if kind is EVAL else EVAL
    known = (*kind.parts, "secrets")
    for part in body:
        if part in known:
            continue
        if part in other.parts:
            yield Issue(part, f"Unrecognized key; it belongs to {KIND_NAMES[other.name]} runs")
        else:
            yield Issue(str(part), "Unrecognized key", suggestion=closest(str(part), known))


def _provided_issues(body: Mapping[str, Any]) -> Iterator[Issue]:
    secrets = body.get("secrets")
    if not isinstance(secrets, Mapping) or secrets.get("provided") is None:
        return
    given, listed = secrets["provided"], secrets.get("required")
    if not isinstance(given, Mapping):
        yield Issue("secrets.provided", "must be an object: the values of secrets, by name")
        return
    required = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    for position, (name, value) in enumerate(given.items(), start=1):
        if name not in required:
            # The name is not repeated: it may be a value in the wrong place.
            yield Issue("secrets.provided", f"entry {position} is not listed in `required`")
        elif (problem := value_problem(value)) is not None:
            yield Issue(f"secrets.provided.{name}", problem)


def _length_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    experiment = document.get("experiment")
    for name, value in experiment.items() if isinstance(experiment, Mapping) else ():
        if isinstance(value, str) and len(value) > _LONGEST_NAME:
            yield Issue(f"experiment.{name}", f"must not be longer than {_LONGEST_NAME} characters")


# -- evaluations -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvalRequest(RunRequest):
    kind = "eval"

    evaluation: EvaluationSettings

    def choose_rows(self, total_rows: int, sha256: str, extension: str) -> RowSelection:
        """Select the first ``limit`` rows, or a random share of all."""
        limit = self.evaluation.limit
        draw_seed = random_secrets.randbits(31) if limit is None else None
        rows = RowSelection(total_rows, limit, draw_seed, sha256, extension)
        planned = len(rows.rows()) * self.evaluation.n
        if planned > _MAX_ATTEMPTS:
            problem = f"{planned} rollouts are more than the {_MAX_ATTEMPTS} that one run may have"
            raise rejected([Issue("evaluation.n", problem)])
        return rows

    def first_results(self, rows: RowSelection) -> dict[str, Any]:
        """Return how large the run is."""
        return {
            "pass_threshold": self.evaluation.pass_threshold,
            "total_runs": 0,
            "sampled_rows": len(rows.rows()),
            "total_dataset_rows": rows.total_rows,
        }


def parse_eval_request(body: Mapping[str, Any], is_adapter: IsAdapter) -> EvalRequest:
    document, issues = check_body(body, EVAL)
    keys = {issue.key for issue in issues}
    # An issue with one of these leaves open which model is meant, or with which variables it is called.
    hiding = ("experiment", MODEL_PATH, "env", "secrets")
    if not any(key in hiding or key.startswith(("env.", "secrets.")) for key in keys):
        issues += _eval_model_issues(document, is_adapter)
    if issues:
        raise rejected(issues)
    return read_eval_request(body)


def read_eval_request(body: Mapping[str, Any]) -> EvalRequest:
    """Return the request in a body without issues, or in a run's row."""
    return EvalRequest(**_common_fields(body, EVAL), evaluation=evaluation_settings(body))


def evaluation_settings(body: Mapping[str, Any]) -> EvaluationSettings:
    """Return the evaluation settings in a body without issues, or in a run's row."""
    return EvaluationSettings(**_without_nulls(body.get("evaluation_config") or {}))


def _eval_model_issues(document: Mapping[str, Any], is_adapter: IsAdapter) -> Iterator[Issue]:
    """Check whether the model exists and has its key, which must be a secret of the run."""
    from osmosis_ai.llm.providers import resolve_model

    model_path = document["experiment"]["model_path"]
    if is_adapter(model_path):
        base = model_path.rpartition(":")[0]
        if not is_servable(base):
            yield Issue(
                MODEL_PATH, f"is an adapter of `{base}`, which this platform cannot serve without torch"
            )
        return
    if (unknown := _unknown_adapter(model_path, base_model_of(model_path))) is not None:
        yield unknown
        return
    placeholders = dict.fromkeys(document["secrets"]["required"], "given when the run starts")
    known = {**document.get("env", {}), **placeholders}
    try:
        resolve_model(model_path, known, served=served_models())
    except OsmosisError as error:
        missing = error.details.get("missing_variable")
        if missing is not None:
            problem = f"needs a key: store the secret `{missing}` and list it in [secrets].required"
        else:
            problem = error.message.rstrip(".")
        yield Issue(MODEL_PATH, problem)


def is_servable(base_model: str) -> bool:
    """Return whether this platform can serve adapters of a model: a built-in one, or any if torch is installed."""
    return base_model in served_models() or has_train_extra()


def _unknown_adapter(model_path: str, base: str) -> Issue | None:
    """Return the issue of a ``model_path`` like ``<base>:<name>`` that names no adapter."""
    if base == model_path:
        return None
    name = model_path.rpartition(":")[2]
    return Issue(
        MODEL_PATH,
        f"this workspace has no adapter '{name}' of `{base}`; `osmosis model list` shows its adapters",
    )


# -- training runs -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(RunRequest):
    kind = "training"

    settings: TrainingSettings

    @property
    def seed(self) -> int:
        """The seed of the data order, sampling and the adapter's initial weights."""
        return self.settings.seed


def parse_training_request(body: Mapping[str, Any], is_adapter: IsAdapter) -> TrainingRequest:
    from osmosis_ai.training.model_support import base_of

    document, issues = check_body(body, TRAINING)
    issues += without_repeats(issues, _settings_issues(document))
    model_path = model_path_of(document)
    if model_path is not None and MODEL_PATH not in {issue.key for issue in issues}:
        unknown = _unknown_adapter(model_path, base_of(model_path)) or unknown_built_in(model_path)
        if unknown is not None and not is_adapter(model_path):
            issues.append(unknown)
    issues = issues or list(_model_issues(document))
    if issues:
        raise rejected(issues)
    try:
        require_train_extra()
    except MissingExtraError as error:
        raise ApiError(
            409,
            "TRAINING_NOT_INSTALLED",
            f"this platform evaluates but cannot train: {error.message} The operator can install it there: "
            f"{error.hint}; then restart it.",
        ) from None
    return read_training_request(body)


def read_training_request(body: Mapping[str, Any]) -> TrainingRequest:
    """Return the request in a body without issues, or in a run's row."""
    settings = read_settings(_read_document(body, TRAINING))
    return TrainingRequest(**_common_fields(body, TRAINING), settings=settings)


def runs_rollouts(body: Mapping[str, Any]) -> bool:
    """Return whether workers start rollouts from the repository: not of a remote agent, and none for conversations."""
    advanced = body.get("advanced_config") or {}
    is_remote = served_agent(body["experiment_config"]["entrypoint"]) is not None
    return not is_remote and advanced.get("method") != "sft"


def effective_training_config(request: TrainingRequest) -> dict[str, dict[str, Any]]:
    """Return every setting by its section of a config, with defaults."""
    values = request.settings.model_dump(mode="json", exclude_none=True)
    return {
        section: {key: values[key] for key in model.model_fields if key in values}
        for section, model in TRAINER_SECTIONS.items()
    }


def _model_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    """Check a model whose configuration is known here; the machine that trains checks the others."""
    from osmosis_ai.training.model_support import HUB_NAME, base_of, is_relative_folder, model_support

    base = base_of(document["experiment"]["model_path"])
    if is_relative_folder(base):
        yield Issue(MODEL_PATH, "is a relative path: use an absolute one, or a name on the Hugging Face Hub")
    if not HUB_NAME.fullmatch(base):
        return
    try:
        model_support(base, read_settings(document)).require()
    except NotFoundError:
        return
    except OsmosisError as error:
        yield Issue(MODEL_PATH, str(error))


def _settings_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    try:
        settings = read_settings(document)
    except InvalidConfigError as error:
        yield from error.issues
        return
    rollouts = settings.rollout_batch_size * settings.n_samples_per_prompt
    if rollouts > _MAX_ROLLOUTS_PER_STEP:
        problem = f"{rollouts} rollouts are more than the {_MAX_ROLLOUTS_PER_STEP} that one step may have"
        yield Issue("training.rollout_batch_size", problem)
    if settings.validation_attempts * (settings.validation_rows or 1) > _MAX_ROLLOUTS_PER_STEP:
        problem = f"validation may have at most {_MAX_ROLLOUTS_PER_STEP} rollouts"
        yield Issue("advanced.validation_attempts", problem)
